"""Jobs of several ranks that stop to get on, for real: which rank is named, and what is left of them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.attempt import GRACE_S
from tests.acceptance.conftest import Pod

pytestmark = pytest.mark.slow

HANG_AFTER_S = 10.0  # more than the start of two ranks takes on a busy machine
DEATH_S = 10.0  # what a rank's death may take to end the others, besides the grace


@pytest.fixture(scope="module")
def hung(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pod]:
    """A job of two ranks, of which rank 1 sleeps in step 4."""
    with Pod.open(tmp_path_factory.mktemp("hung")) as pod:
        pod.run("--nproc", "2", "--hang-after", f"{HANG_AFTER_S:g}", "--", "hang.py", "peer")
        yield pod


def document(path: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(path.read_text())
    return read


def events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_lagging_rank_is_named(hung: Pod) -> None:
    end = document(hung.job.end)
    assert (end["why"], end["clean"]) == ("hang", True)
    assert end["hang"]["lagging_rank"] == 1
    assert end["hang"]["silent_s"] >= end["hang"]["limit_s"] == HANG_AFTER_S
    ranks = {number: (rank["steps"], rank["in_collective"]) for number, rank in end["hang"]["ranks"].items()}
    assert ranks == {"0": (3, True), "1": (3, False)}


def test_the_verdict_names_it(hung: Pod) -> None:
    verdict = document(hung.job_dir / "record.json")["verdict"]
    assert (verdict["kind"], verdict["rank"], verdict["transient"]) == ("nccl", 1, None)
    assert "rank 1 lags after step 3, at " in verdict["reason"]
    assert "in asleep; rank 0 waits in a collective operation" in verdict["reason"]
    assert verdict["evidence"][0]["file"] == "rank-1/stacks.txt"


def test_the_stacks_of_all_ranks_are_kept(hung: Pod) -> None:
    assert "in all_reduce" in hung.job.stacks(0).read_text()
    assert "in asleep" in hung.job.stacks(1).read_text()
    told = [event for event in events(hung.job.supervisor_journal()) if event["e"] in ("stacks", "hang", "ending")]
    assert [event["e"] for event in told] == ["stacks", "hang", "ending"]
    assert (told[0]["ranks"], told[0]["without"]) == ([0, 1], [])


def test_nothing_of_it_lives_and_the_record_names_the_files(hung: Pod) -> None:
    assert hung.living() == []
    assert {"rank-0/stacks", "rank-1/stacks"} <= set(document(hung.job_dir / "record.json")["artifacts"])


def test_the_rank_with_fewer_steps_lags(pod: Pod) -> None:
    pod.run("--nproc", "2", "--hang-after", f"{HANG_AFTER_S:g}", "--", "hang.py", "behind")
    hang = document(pod.job.end)["hang"]
    assert {number: rank["steps"] for number, rank in hang["ranks"].items()} == {"0": 4, "1": 3}
    assert hang["lagging_rank"] == 1


def test_a_ranks_death_ends_a_job_whose_other_rank_cannot_be_asked(pod: Pod) -> None:
    """The times that are compared are those of the journals."""
    pod.run("--nproc", "2", "--", "hang.py", "dies")
    assert pod.living() == []
    last_sign = events(pod.job.events(1))[-1]["t"]
    ended = next(event["t"] for event in events(pod.job.supervisor_journal()) if event["e"] == "end")
    assert ended - last_sign < DEATH_S + GRACE_S
    assert document(pod.job.end)["why"] == "exit"
