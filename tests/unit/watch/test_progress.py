"""Progress of ranks on files that grow, as the supervisor sees it; the clock is the test's own."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness.watch.progress import Progress, Rank, lagging_rank, listed, living


class Job:
    """A job directory in the making, looked at once a second."""

    def __init__(self, root: Path, limit_s: float | None = 10.0, *, scales: bool = False) -> None:
        self.root, self.now = root, 100.0
        self.progress = Progress(root, limit_s, scales=scales)
        (root / "node-0").mkdir()
        self.hangs = self.progress.hangs(self.now)

    def event(self, kind: str, rank: int = 0, **fields: Any) -> None:
        self.append(f"rank-{rank}/events.jsonl", json.dumps({"e": kind, **fields}) + "\n")

    def append(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.write(text)

    def passes(self, seconds: int) -> bool:
        """Whether the job hangs after so many seconds."""
        for _ in range(seconds):
            self.now += 1.0
            self.hangs = self.progress.hangs(self.now)
        return self.hangs


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_a_job_that_never_writes_hangs(job: Job) -> None:
    assert not job.passes(9)
    assert job.passes(1)
    assert job.progress.ranks == {}


PROGRESS = [pytest.param("events.jsonl", json.dumps({"e": kind}) + "\n", id=kind) for kind in ("step", "phase", "save")]
LOGS = [pytest.param(name, "x", id=name) for name in ("stdout.log", "stderr.log")]


@pytest.mark.parametrize("name, text", [*PROGRESS, *LOGS])
@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_that_gets_on_is_enough(job: Job, rank: int, name: str, text: str) -> None:
    job.event("start", rank=0, pid=1)
    job.event("start", rank=1, pid=2)
    for _ in range(4):
        assert not job.passes(9)
        job.append(f"rank-{rank}/{name}", text)
    assert not job.passes(10)
    assert job.passes(1)


def test_the_launchers_log_counts(job: Job) -> None:
    job.passes(9)
    job.append("node-0/launcher.log", "x")
    assert not job.passes(9)


@pytest.mark.parametrize(
    "name, text",
    [
        pytest.param("rank-0/events.jsonl", '{"e":"memory"}\n', id="memory"),
        pytest.param("rank-0/events.jsonl", '{"e":"heartbeat"}\n', id="unknown-event"),
        pytest.param("rank-0/events.jsonl", "not json\n[]\n", id="no-event"),
        pytest.param("node-0/system.jsonl", '{"e":"sample"}\n', id="sampler"),
        pytest.param("rank-0/stacks.txt", "x", id="stacks"),
        pytest.param("outputs/checkpoint", "x", id="other-file"),
    ],
)
def test_what_is_no_progress(job: Job, name: str, text: str) -> None:
    job.event("start", pid=1)
    for _ in range(3):
        job.passes(4)
        job.append(name, text)
    assert job.hangs


def test_a_touched_file_is_no_progress(job: Job) -> None:
    job.event("step", step=1)
    job.passes(9)
    os.utime(job.root / "rank-0" / "events.jsonl")
    assert job.passes(2)


def test_a_line_counts_when_it_is_whole(job: Job) -> None:
    line = json.dumps({"e": "step", "step": 7})
    job.append("rank-0/events.jsonl", line[:9])
    job.passes(9)
    assert job.progress.ranks[0].steps == 0
    job.append("rank-0/events.jsonl", line[9:] + "\n")
    assert not job.passes(9)
    assert (job.progress.ranks[0].steps, job.progress.ranks[0].step) == (1, 7)


def test_more_than_one_look_can_read_is_read_in_the_end(job: Job) -> None:
    line = json.dumps({"e": "step", "step": 1, "padding": "x" * 60}) + "\n"
    job.append("rank-0/events.jsonl", line * 40_000)
    job.passes(1)
    assert 0 < job.progress.ranks[0].steps < 40_000
    job.passes(5)
    assert job.progress.ranks[0].steps == 40_000


def test_a_journal_that_was_cut_is_read_anew(job: Job) -> None:
    job.event("start", pid=1)
    job.event("step", step=1)
    job.passes(1)
    (job.root / "rank-0" / "events.jsonl").write_text('{"e":"start","pid":2}\n')
    job.passes(1)
    assert (job.progress.ranks[0].pid, job.progress.ranks[0].event) == (2, "start")


def test_time_in_which_nobody_looked_does_not_count(job: Job) -> None:
    job.now += 3600.0
    assert not job.passes(3)
    assert job.passes(3)


def test_a_slow_job_may_be_silent_for_longer(tmp_path: Path) -> None:
    job = Job(tmp_path, 10.0, scales=True)
    job.event("step", rank=1, step=1, seconds=4.0)
    job.event("step", rank=0, step=1, seconds=0.5)
    assert not job.passes(40)
    assert job.progress.limit_s == 40.0
    assert job.passes(1)


def test_what_was_asked_for_holds_exactly(job: Job) -> None:
    job.event("step", step=1, seconds=400.0)
    job.passes(1)
    assert job.progress.limit_s == 10.0


def test_no_limit_no_hang(tmp_path: Path) -> None:
    job = Job(tmp_path, None, scales=False)
    assert not job.passes(1000)


def test_links_and_pipes_are_not_followed(job: Job) -> None:
    os.mkfifo(job.root / "pipe")
    (job.root / "rank-0").mkdir()
    (job.root / "rank-0" / "events.jsonl").symlink_to(job.root / "pipe")
    os.mkfifo(job.root / "rank-0" / "stdout.log")
    assert job.passes(11)


def rank(number: int, steps: int, told: float = 0.0) -> Rank:
    return Rank(number, since=told, told=told, steps=steps)


@pytest.mark.parametrize(
    "ranks, waiting, lagging",
    [
        pytest.param([rank(0, 4), rank(1, 3), rank(2, 4)], {}, 1, id="fewest-steps"),
        pytest.param([rank(0, 3), rank(1, 3)], {0: True, 1: False}, 1, id="the-others-wait"),
        pytest.param([rank(0, 3), rank(1, 3)], {0: True, 1: True}, None, id="all-wait"),
        pytest.param([rank(0, 3), rank(1, 3)], {0: False, 1: False}, None, id="none-waits"),
        pytest.param([rank(0, 3), rank(1, 3), rank(2, 3)], {0: True, 1: False}, None, id="one-did-not-answer"),
        pytest.param([rank(0, 3), rank(1, 3), rank(2, 3)], {0: True, 1: False, 2: False}, None, id="two-do-not-wait"),
        pytest.param([rank(0, 3), rank(1, 3), rank(2, 4)], {0: True, 1: False, 2: True}, 1, id="of-those-behind"),
        pytest.param([rank(0, 3), rank(1, 3), rank(2, 4)], {0: True, 1: True, 2: False}, None, id="one-is-ahead"),
        pytest.param([rank(0, 3, 9.0), rank(1, 3, 5.0)], {}, 1, id="oldest-progress"),
        pytest.param([rank(0, 3, 9.0), rank(1, 3, 8.0)], {}, None, id="nearly-equal"),
        pytest.param([rank(0, 3, 9.0), rank(1, 3, 5.0), rank(2, 3, 5.0)], {}, None, id="two-oldest"),
        pytest.param([rank(0, 3)], {0: False}, None, id="one-rank"),
        pytest.param([], {}, None, id="no-rank"),
    ],
)
def test_the_lagging_rank(ranks: list[Rank], waiting: dict[int, bool | None], lagging: int | None) -> None:
    assert lagging_rank(ranks, waiting, equal_s=2.0) == lagging


def test_the_description(job: Job) -> None:
    job.event("step", rank=1, step=12)
    job.passes(5)
    job.append("rank-0/stdout.log", "x")
    job.passes(5)
    assert job.progress.describe({1: False}, {1: "a.py:1 in f"}) == {
        "lagging_rank": 0,
        "silent_s": 4.0,
        "limit_s": 10.0,
        "ranks": {
            "0": {"event": None, "step": None, "steps": 0, "silent_s": 4.0, "in_collective": None, "at": None},
            "1": {
                "event": "step",
                "step": 12,
                "steps": 1,
                "silent_s": 9.0,
                "in_collective": False,
                "at": "a.py:1 in f",
            },
        },
    }


def test_a_short_description_keeps_the_least_far() -> None:
    hang = {"lagging_rank": 5, "ranks": {str(n): {"steps": 9 if n < 6 else 8} for n in range(12)}}
    assert list(listed(hang, 3)["ranks"]) == ["5", "6", "7"]
    assert listed(hang, 99) == hang


def test_only_living_processes_of_the_job_are_asked() -> None:
    ranks = [Rank(0, 0.0, 0.0, pid=10), Rank(1, 0.0, 0.0, pid=11), Rank(2, 0.0, 0.0)]
    assert living(ranks, [10, 12]) == {0: 10}
