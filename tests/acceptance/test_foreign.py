"""Programs that know nothing of the harness, each a manner of `targets/programs.py`: seen, judged, left as they are."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.record import Kind, Measurements, Record, Verdict, read_record
from tests.acceptance.conftest import TARGETS, Bench, probe_errors

pytestmark = pytest.mark.slow

# manner -> steps of each segment that are seen
TRAINED = {
    "plain": [6],
    "seq2seq": [6],
    "own_train": [6],
    "own_loss": [6],
    "own_loop": [6],
    "two_trainers": [6, 4],
    "callbacks": [5],
    "accelerate_loop": [6],
}
WITHOUT_TRAINER = ("own_loop", "accelerate_loop")  # its loss and tokens pass no hook
# manner -> kind, step and part of the failure on the last of two ranks, and its reason's end
FAILED: dict[str, tuple[Kind, int | None, str | None, str]] = {
    "fails_early": (Kind.GPU_OOM, None, None, "asked for 2.15 GiB, 1.03 GiB of 79.25 GiB free, setup"),
    "fails_in_collator": (Kind.USER_ERROR, 3, "data", "KeyError: 'input_idz'"),
    "fails_in_worker": (
        Kind.USER_ERROR,
        None,
        "data",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/shard-00041.bin'",
    ),
    "fails_in_callback": (Kind.GPU_OOM, 4, None, "asked for 2.15 GiB, 1.03 GiB of 79.25 GiB free, step 4"),
    "fails_in_save": (Kind.DISK_FULL, None, "save", "[Errno 28] No space left on device: 'out/model.safetensors'"),
    "swallows": (Kind.GPU_OOM, 4, None, "asked for 2.15 GiB, 1.03 GiB of 79.25 GiB free, step 4"),
    "leaves": (Kind.UNKNOWN, 4, None, "rank 1 ended with exit code 9 and no exception was seen"),
}


def scenario(manner: str, processes: int) -> str:
    target = f"{{target: ../programs.py, args: [{manner}]}}"
    return f"- {{name: {manner.replace('_', '-')}, processes: {processes}, trainer: {target}}}\n"


def scenarios() -> str:
    alone = [scenario(manner, 1) for manner in TRAINED]
    return "scenarios:\n" + "".join(alone + [scenario(manner, 2) for manner in FAILED])


@pytest.fixture(scope="module")
def bench(make_bench: Callable[[str], Bench]) -> Bench:
    made = make_bench(scenarios())
    made.run("-n", "2", environ={"CUDA_VISIBLE_DEVICES": ""})
    return made


def record_of(bench: Bench, manner: str, processes: int) -> Record:
    return read_record(bench.session / f"{manner.replace('_', '-')}-{processes}proc" / "record.json")


def measured(bench: Bench, manner: str) -> Measurements:
    record = record_of(bench, manner, 1)
    assert record.verdict is not None
    assert record.verdict.kind == Kind.NONE, record.tail
    assert record.measurements is not None
    return record.measurements


@pytest.mark.parametrize("manner", TRAINED)
def test_every_step_is_seen(bench: Bench, manner: str) -> None:
    assert [segment.steps for segment in measured(bench, manner).segments] == TRAINED[manner]


@pytest.mark.parametrize("manner", TRAINED)
def test_what_is_not_known_says_why(bench: Bench, manner: str) -> None:
    figures = measured(bench, manner)
    if manner in WITHOUT_TRAINER:
        assert figures.tokens["non_pad"] is None
        assert figures.loss_last is None
        assert "non_pad_tokens_per_s" in figures.reasons
        assert "loss_last" in figures.reasons
    else:
        assert figures.loss_last is not None
        assert figures.tokens["non_pad"] == tokens_of_last(TRAINED[manner])


def test_the_probe_itself_had_no_trouble(bench: Bench) -> None:
    assert probe_errors(bench.session) == []


def tokens_of_last(segments: list[int]) -> int:
    """Of the last segment: two rows a step, in the order that the Trainer draws with its default seed."""
    import torch

    drawing = torch.Generator()
    drawing.manual_seed(42)
    order = torch.randperm(64, generator=drawing).tolist()
    return sum(8 + index % 9 for index in order[: 2 * segments[-1]])


@pytest.mark.parametrize("manner", FAILED)
def test_the_cause_and_its_rank_are_found(bench: Bench, manner: str) -> None:
    kind, step, part, reason = FAILED[manner]
    verdict: Verdict | None = record_of(bench, manner, 2).verdict
    assert verdict is not None
    assert (verdict.kind, verdict.rank) == (kind, 1)
    assert verdict.reason.removesuffix("; its peers lost it").endswith(reason)
    assert verdict.part == part
    if step is not None:
        assert verdict.step == step


@pytest.mark.parametrize("manner", ["plain", "two_trainers", "accelerate_loop"])
def test_the_losses_are_those_without_the_harness(bench: Bench, manner: str, tmp_path: Path) -> None:
    bare = subprocess.run(
        [sys.executable, str(TARGETS / "programs.py"), manner],
        cwd=tmp_path,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    name = manner.replace("_", "-")
    [log] = (bench.session / f"{name}-1proc").glob("attempt-1/rank-0/stdout.log")
    assert json.loads(log.read_text().splitlines()[-1]) == json.loads(bare.stdout.splitlines()[-1])
