"""The journal on a disk that is full for a while: what is lost takes nothing else with it."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness.journal import read_events

# Steps 2 and 3 find room for the given number of bytes alone, 4 and 5 find as much as they need.
WRITER = """
import os, resource, sys
from pathlib import Path
from harness.probe.journal import JournalFile
path, room = Path(sys.argv[1]), int(sys.argv[2])
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
journal = JournalFile(path)
journal.write("log", step=1)
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + room, most))
journal.write("log", step=2)
journal.write("log", step=3)
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
journal.write("log", step=4)
journal.write("log", step=5)
journal.close()
"""


@pytest.mark.parametrize("room", [0, 1, 20])
def test_a_torn_line_does_not_swallow_the_next(tmp_path: Path, room: int) -> None:
    path = tmp_path / "events.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", WRITER, str(path), str(room)], check=True, capture_output=True, text=True
    )
    assert [event["step"] for _, event in read_events(path)] == [1, 4, 5]
    assert done.stderr.count("harness: journal lost a line") == 1
    assert len(path.read_text().splitlines()) == (4 if room else 3)
