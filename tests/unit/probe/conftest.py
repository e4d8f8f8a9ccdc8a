from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.probe.journal import JournalFile
from harness.probe.layout import JobPaths
from harness.probe.measure import Meter


@pytest.fixture
def meter(tmp_path: Path) -> Iterator[Meter]:
    job = JobPaths(tmp_path)
    made = Meter(job, 0, JournalFile(job.events(0)), set())
    yield made
    made.end()
