"""The lines of a running case."""

import json
import os
from pathlib import Path

import pytest

from harness.plugin.progress import Follower, describe, note
from tests.unit.plugin.conftest import Bench


def test_lines_reach_the_terminal(bench: Bench, workers: str) -> None:
    bench.scenario("case", "slow")
    result = bench.run(workers, "-o", "harness_progress_interval=0.3")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["harness: case-1proc: *: steady, step 7 of 20, 31 ms a step, loss 6.21"])


@pytest.mark.parametrize("arguments", [("-q",), ("-o", "harness_progress_interval=0")])
def test_no_lines_when_not_wanted(bench: Bench, arguments: tuple[str, ...]) -> None:
    bench.scenario("case", "slow")
    bench.run("-o", "harness_progress_interval=0.3", *arguments).stdout.no_fnmatch_line("harness: case*")


def test_a_wrong_interval_is_said(bench: Bench) -> None:
    bench.scenario("case")
    result = bench.run("-o", "harness_progress_interval=often")
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_a_follower_reads_what_was_added(tmp_path: Path) -> None:
    follower = Follower("case", tmp_path, "starting, or waiting for 1 GPU")
    assert follower.line().endswith(": starting, or waiting for 1 GPU")
    events = tmp_path / "attempt-1" / "rank-0" / "events.jsonl"
    events.parent.mkdir(parents=True)
    assert follower.line().endswith(": starting")
    with events.open("w") as file:
        file.write('{"e": "phase", "name": "steady"}\n{"e": "step", "step": 1, "sec')
        file.flush()
        assert follower.line().endswith(": steady")
        file.write('onds": 0.5, "loss": 2.0}\n')
        file.flush()
        assert follower.line().endswith(": steady, step 1, 500 ms a step, loss 2")
    (tmp_path / "attempt-1" / "end.json").touch()
    assert follower.line().endswith(": attempt-1 has ended")
    newer = tmp_path / "attempt-10" / "rank-0" / "events.jsonl"
    newer.parent.mkdir(parents=True)
    newer.write_text('{"e": "phase", "name": "import"}\n')
    assert follower.line().endswith(": import")


def test_a_follower_skips_to_the_end_of_a_long_journal(tmp_path: Path) -> None:
    events = tmp_path / "attempt-1" / "rank-0" / "events.jsonl"
    events.parent.mkdir(parents=True)
    events.write_text("".join(json.dumps({"e": "step", "step": n, "x": "y" * 90}) + "\n" for n in range(9000)))
    assert Follower("case", tmp_path, "").line().endswith("step 8999")


@pytest.mark.parametrize(
    "line",
    [b"", b"[1]", b"nonsense", b'{"e": 3}', b'"text"', b'{"x": 1}', b"\xff", pytest.param(b"[" * 200_000, id="deep")],
)
def test_lines_that_are_no_events_are_passed_over(line: bytes) -> None:
    seen: dict[str, object] = {}
    note(seen, line)
    assert seen == {}


def test_a_loss_that_is_no_number_is_left_out() -> None:
    assert describe({"step": 3, "loss": "NaN", "seconds": None}) == "starting, step 3"


def test_a_pipe_in_place_of_a_journal_does_not_block(tmp_path: Path) -> None:
    events = tmp_path / "attempt-1" / "rank-0" / "events.jsonl"
    events.parent.mkdir(parents=True)
    os.mkfifo(events)
    os.mkfifo(tmp_path.parent / "leases.jsonl")
    assert Follower("case", tmp_path, "").line().endswith(": starting")
    assert Follower("case", tmp_path / "none", "waits").line().endswith(": waits")


def test_numbers_that_no_float_holds_are_left_out() -> None:
    assert describe({"seconds": 10**400, "loss": float("inf")}) == "starting"
