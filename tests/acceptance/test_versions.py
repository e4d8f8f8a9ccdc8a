"""Programs of others on older versions of transformers: seen and judged as on the newest (test_foreign.py)."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.journal import read_events
from harness.record import Kind, Record, read_record
from tests.acceptance.conftest import Bench, probe_errors
from tests.acceptance.stacks import TRANSFORMERS_4_46, TRANSFORMERS_4_55
from tests.acceptance.test_foreign import FAILED, TRAINED, WITHOUT_TRAINER, scenario, tokens_of_last

pytestmark = [pytest.mark.slow, pytest.mark.fms]

STACKS = {"4.46.3": TRANSFORMERS_4_46, "4.55.4": TRANSFORMERS_4_55}
MANNERS = ["plain", "seq2seq", "own_loss", "two_trainers", "callbacks", "accelerate_loop"]
FAILING = ["fails_in_collator", "swallows"]


@pytest.fixture(scope="module")
def bench(make_bench: Callable[[str], Bench]) -> Bench:
    stacks = ", ".join(str(stack.requirements) for stack in STACKS.values())
    cases = [scenario(manner, 1) for manner in MANNERS] + [scenario(manner, 2) for manner in FAILING]
    made = make_bench(f"defaults: {{matrix: {{stack: [{stacks}]}}}}\nscenarios:\n{''.join(cases)}")
    for stack in STACKS.values():
        stack.lend(made.root / "cache")
    made.run("-n", "2", environ={"CUDA_VISIBLE_DEVICES": ""})
    return made


def case_of(bench: Bench, manner: str, version: str) -> tuple[Record, Path]:
    """Its record, and the journal of rank 0."""
    (folder,) = bench.session.glob(f"{manner.replace('_', '-')}-{STACKS[version].requirements.stem}-*proc")
    record = read_record(folder / "record.json")
    assert record.environment["packages"]["transformers"] == version
    assert record.verdict is not None
    return record, folder / "attempt-1" / "rank-0" / "events.jsonl"


@pytest.mark.parametrize("version", STACKS)
@pytest.mark.parametrize("manner", MANNERS)
def test_every_step_its_loss_and_its_tokens_are_seen(bench: Bench, manner: str, version: str) -> None:
    record, journal = case_of(bench, manner, version)
    assert record.verdict is not None
    assert record.verdict.kind == Kind.NONE, record.tail
    figures = record.measurements
    assert figures is not None
    assert [segment.steps for segment in figures.segments] == TRAINED[manner]
    losses: list[Any] = [event.get("loss") for _, event in read_events(journal) if event["e"] == "step"]
    assert len(losses) == sum(TRAINED[manner])
    if manner in WITHOUT_TRAINER:
        assert set(losses) == {None}
        assert "loss_last" in figures.reasons
    else:
        assert all(math.isfinite(loss) for loss in losses)
        assert figures.tokens["non_pad"] == tokens_of_last(TRAINED[manner])


@pytest.mark.parametrize("version", STACKS)
@pytest.mark.parametrize("manner", FAILING)
def test_the_cause_and_its_rank_are_found(bench: Bench, manner: str, version: str) -> None:
    kind, step, part, reason = FAILED[manner]
    verdict = case_of(bench, manner, version)[0].verdict
    assert verdict is not None
    assert (verdict.kind, verdict.rank, verdict.step, verdict.part) == (kind, 1, step, part)
    assert verdict.reason.endswith(reason)


def test_the_probe_itself_had_no_trouble(bench: Bench) -> None:
    assert probe_errors(bench.session) == []
