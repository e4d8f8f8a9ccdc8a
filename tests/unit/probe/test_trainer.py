"""Programs with a Trainer and with none, unmodified, under the staged probe."""

import json
from pathlib import Path

import pytest

from tests.unit.probe.jobs import TARGETS, Ended, run

pytestmark = pytest.mark.slow

SCRIPT = str(TARGETS / "trainer_script.py")
LOOP = str(TARGETS / "optimizer_loop.py")


def phases(ended: Ended) -> list[str]:
    return [event["name"] for event in ended.events("phase")]


def test_a_plain_script_is_measured(tmp_path: Path) -> None:
    ended = run(tmp_path, SCRIPT, "good")
    assert ended.exit_code == 0, ended.logs()
    report = json.loads(ended.stdout().splitlines()[-1])
    steps = ended.events("step")
    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    assert [step["loss"] for step in steps] == pytest.approx(report["losses"], rel=1e-5)
    assert all(step["grad_norm"] > 0 and step["seconds"] > 0 and step["device_seconds"] is None for step in steps)
    assert [step["learning_rate"] for step in steps] == pytest.approx([5e-5, 3.75e-5, 2.5e-5, 1.25e-5])
    assert [step["overhead"] for step in steps] == [[], ["log"], ["log"], ["log"]]
    counts = [(t["padded"], t["non_pad"], t["trainable"], t["samples"]) for t in ended.events("tokens")]
    assert counts == [(32, 32, 28, 4)] * 4
    assert phases(ended) == ["import", "setup", "first_step", "steady", "teardown"]
    assert ended.one("end")["seen_by"] == "trainer"
    assert ended.one("model")["parameters"] == 4656
    assert not ended.events("probe_error")
    assert ended.error() is None


PARTS = ("data_wait_seconds", "forward_backward_seconds", "optimizer_seconds")


def test_a_slow_dataset_without_workers_is_a_wait_for_data(tmp_path: Path) -> None:
    ended = run(tmp_path, SCRIPT, "slow")
    assert ended.exit_code == 0, ended.logs()
    steps = ended.events("step")
    for step in steps:
        assert step["data_wait_seconds"] >= 4 * 0.05  # rows of a batch; sleep is never shorter
        assert all(step[part] > 0 for part in PARTS)
        assert sum(step[part] for part in PARTS) + step["overhead_seconds"] <= step["seconds"] + 1e-6
    # 32 rows are read for an evaluation, which is no waiting of the step after it.
    assert steps[2]["overhead"] == ["log", "eval"]
    assert steps[2]["overhead_seconds"] >= 32 * 0.05
    assert ended.one("segment")["split_reason"] is None


def test_a_slow_dataset_of_a_loop_without_a_trainer(tmp_path: Path) -> None:
    ended = run(tmp_path, LOOP, "loader")
    assert ended.exit_code == 0, ended.logs()
    steps = ended.events("step")
    assert len(steps) == 2
    assert all(2 * 0.05 <= step["data_wait_seconds"] < step["seconds"] for step in steps)
    assert {step[part] for step in steps for part in PARTS[1:]} == {None}
    assert ended.one("segment")["split_reason"].startswith("a program without a Trainer does not tell")


def test_evaluating_and_saving_are_told(tmp_path: Path) -> None:
    ended = run(tmp_path, SCRIPT, "evaluate")
    assert ended.exit_code == 0, ended.logs()
    assert [event["step"] for event in ended.events("eval")] == [2, 4]
    assert [event["step"] for event in ended.events("save")] == [3, 4]  # the Trainer saves at the end, too
    third, fourth = ended.events("step")[2:]
    assert third["overhead"] == ["log", "eval"]
    assert 0 < third["overhead_seconds"] < third["seconds"]
    assert fourth["overhead"] == ["log", "save"]


def test_evaluating_where_the_program_asks_for_it_is_no_part_of_a_step(tmp_path: Path) -> None:
    """eval_on_start, and a callback that evaluates and predicts; 32 rows each, slow to read."""
    ended = run(tmp_path, SCRIPT, "evaluates")
    assert ended.exit_code == 0, ended.logs()
    first, second, third, _ = ended.events("step")
    assert [sorted(step["overhead"]) for step in (first, second, third)] == [["eval", "log"], ["eval", "log"], ["log"]]
    assert 32 * 0.05 <= first["overhead_seconds"] < first["seconds"]
    assert 2 * 32 * 0.05 <= second["overhead_seconds"] < second["seconds"]
    for step in (first, second):  # its own four rows
        assert 4 * 0.05 <= step["data_wait_seconds"] < step["seconds"] - step["overhead_seconds"]
    assert not ended.events("probe_error")


def test_oom_in_the_backward_of_one_rank(tmp_path: Path) -> None:
    ended = run(tmp_path, SCRIPT, "backward", ranks=2, environ={"FAILING_RANK": "1"})
    assert ended.exit_code == 1
    error = ended.error(1)
    assert error is not None, ended.logs()
    assert error["type"] == "torch.OutOfMemoryError"
    assert error["bases"][0] == "builtins.RuntimeError"
    assert "Tried to allocate 2.15 GiB" in error["message"]
    assert (error["step"], error["part"], error["where"], error["rank"]) == (3, "backward", "train", 1)
    assert "harness_probe" not in error["traceback"]
    assert "RaisesInBackward" in error["traceback"] or "in backward" in error["traceback"]
    assert [step["step"] for step in ended.events("step", rank=1)] == [1, 2]
    assert ended.one("end", rank=1)["exit_code"] == 1
    assert "harness_probe" not in ended.stderr(1)
    assert not ended.events("probe_error", rank=1)


@pytest.mark.parametrize("how", ["inside", "outside", "logged"])
def test_an_exception_that_the_program_keeps_for_itself(tmp_path: Path, how: str) -> None:
    ended = run(tmp_path, SCRIPT, "swallow", how)
    assert ended.exit_code == 1
    error = ended.error()
    assert error is not None, ended.logs()
    assert (error["type"], error["step"], error["where"]) == ("torch.OutOfMemoryError", 3, "train")


def test_what_ends_a_program_that_has_handled_an_oom(tmp_path: Path) -> None:
    ended = run(tmp_path, SCRIPT, "swallow", "other")
    assert ended.exit_code == 1
    error = ended.error()
    assert error is not None, ended.logs()
    assert (error["type"], error["where"], error["chain"]) == ("builtins.KeyError", "main", [])
    assert [event["type"] for event in ended.events("exception")] == ["torch.OutOfMemoryError", "builtins.KeyError"]


def test_an_oom_that_the_program_handles_is_no_error(tmp_path: Path) -> None:
    ended = run(tmp_path, SCRIPT, "retry")
    assert ended.exit_code == 0, ended.logs()
    assert ended.one("exception")["type"] == "torch.OutOfMemoryError"
    assert ended.error() is None
    segments = [(s["segment"], s["restart"], s["batch_asked"]) for s in ended.events("segment")]
    assert segments == [(0, False, 4), (1, False, 2)]
    assert [(s["segment"], s["step"]) for s in ended.events("step")] == [
        (0, 1),
        (0, 2),
        *((1, n) for n in (1, 2, 3, 4)),
    ]


def test_a_smaller_batch_that_the_trainer_finds(tmp_path: Path) -> None:
    ended = run(tmp_path, SCRIPT, "smaller")
    assert ended.exit_code == 0, ended.logs()
    segments = [(s["segment"], s["restart"], s["batch_asked"], s["batch_ran"]) for s in ended.events("segment")]
    assert segments == [(0, False, 4, 4), (1, True, 4, 3)]
    assert [(s["segment"], s["step"]) for s in ended.events("step")] == [(1, 1), (1, 2)]
    assert [t["samples"] for t in ended.events("tokens")] == [3, 3]


def test_two_calls_of_train_the_second_resumed(tmp_path: Path) -> None:
    ended = run(tmp_path, SCRIPT, "two")
    assert ended.exit_code == 0, ended.logs()
    segments = [(s["segment"], s["step"], s["max_steps"]) for s in ended.events("segment")]
    assert segments == [(0, 0, 2), (1, 2, 3)]
    assert [(s["segment"], s["step"]) for s in ended.events("step")] == [(0, 1), (0, 2), (1, 3)]
    assert ended.one("end")["steps"] == 3


def test_a_callback_of_the_program_fails(tmp_path: Path) -> None:
    ended = run(tmp_path, SCRIPT, "callback")
    error = ended.error()
    assert error is not None, ended.logs()
    assert (error["type"], error["step"], error["part"]) == ("builtins.ValueError", 3, None)
    assert error["message"] == "a callback failed, token [redacted]"
    assert "hf_abc" not in ended.job.events(0).read_text() + json.dumps(error)


def test_a_subclass_with_its_own_step_is_counted_without_loss(tmp_path: Path) -> None:
    ended = run(tmp_path, SCRIPT, "own")
    assert ended.exit_code == 0, ended.logs()
    assert [step["loss"] for step in ended.events("step")] == [None] * 4
    assert {t["padded"] for t in ended.events("tokens")} == {None}
    reason = ended.events("tokens")[0]["reason"]
    assert reason == "__main__.OwnStep does not fetch its batches through Trainer.get_batch_samples"
    for step in ended.events("step"):  # torch's DataLoader was seen, the Trainer's own methods were not
        assert step["data_wait_seconds"] > 0
        assert (step["forward_backward_seconds"], step["optimizer_seconds"]) == (None, None)


def test_batches_without_input_ids_have_no_counts(tmp_path: Path) -> None:
    ended = run(tmp_path, SCRIPT, "embeds")
    assert ended.exit_code == 0, ended.logs()
    assert {t["reason"] for t in ended.events("tokens")} == {"the batches hold no input_ids"}
    assert all(step["loss"] > 0 for step in ended.events("step"))


@pytest.mark.parametrize("how, steps", [("plain", 5), ("two", 3), ("accelerate", 4)])
def test_a_loop_without_a_trainer(tmp_path: Path, how: str, steps: int) -> None:
    ended = run(tmp_path, LOOP, how)
    assert ended.exit_code == 0, ended.logs()
    assert [step["step"] for step in ended.events("step")] == list(range(1, steps + 1))
    assert {step["learning_rate"] for step in ended.events("step")} == {1e-2}
    assert (ended.one("end")["steps"], ended.one("end")["seen_by"]) == (steps, "optimizer")
    assert ended.one("segment")["batch_asked"] is None
    assert not ended.events("probe_error")
    if how == "accelerate":
        assert all(step["grad_norm"] > 0 for step in ended.events("step"))
