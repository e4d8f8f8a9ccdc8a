"""The termination log: its place, its lines, its limit."""

import os
from pathlib import Path

import pytest

from harness.cli.termination import LIMIT_BYTES, log_path, log_text, write_log


def test_all_that_is_known_stands_on_a_line_of_its_own() -> None:
    text = log_text(kind="gpu_oom", rank=3, step=0, reason="rank 3 asked\nfor 2 GiB\x1b[31m", record=Path("/r.json"))
    assert text.decode() == "kind: gpu_oom\nrank: 3\nstep: 0\nreason: rank 3 asked for 2 GiB\nrecord: /r.json\n"
    assert log_text(kind="none") == b"kind: none\n"


@pytest.mark.parametrize("letter", ["a", "é", "語", "💥"])
@pytest.mark.parametrize("shift", range(4))
def test_a_long_reason_is_cut_between_two_characters(letter: str, shift: int) -> None:
    text = log_text(kind="crash", reason="x" * shift + letter * 5000, record=Path("/results/record.json"))
    assert LIMIT_BYTES - 4 < len(text) <= LIMIT_BYTES
    lines = text.decode().splitlines()
    assert lines[1].endswith(f"{letter}…")
    assert lines[2] == "record: /results/record.json"


def test_nothing_is_cut_that_fits() -> None:
    reason = "x" * (LIMIT_BYTES - len("kind: crash\nreason: \n"))
    assert log_text(kind="crash", reason=reason).decode() == f"kind: crash\nreason: {reason}\n"


def test_a_path_that_is_too_long_or_no_text() -> None:
    text = log_text(kind="crash", reason="why", record=Path("/é" * 3000))
    assert len(text) <= LIMIT_BYTES
    assert text.decode().startswith("kind: crash\n")
    assert log_text(kind="none", record=Path(os.fsdecode(b"/\xff"))).decode().startswith("kind: none\nrecord: /")


def test_where_it_is_written(tmp_path: Path) -> None:
    usual = tmp_path / "termination-log"
    assert log_path({}, usual) is None
    usual.touch()
    assert log_path({}, usual) == usual
    assert log_path({"TERMINATION_LOG_FILE": ""}, usual) == usual
    assert log_path({"TERMINATION_LOG_FILE": "/some/where"}, usual) == Path("/some/where")
    assert log_path({}, tmp_path) is None  # a folder


def test_it_is_overwritten_in_place(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("something long of another program")
    inode = path.stat().st_ino
    write_log(b"kind: none\n", path)
    assert path.read_bytes() == b"kind: none\n"
    assert path.stat().st_ino == inode


def test_a_pipe_without_a_reader_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device"):
        write_log(b"kind: none\n", tmp_path / "pipe")
