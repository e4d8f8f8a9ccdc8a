"""The built-in target under the staged probe, against counts that are made from the data alone."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from harness.probe import synthetic
from harness.probe.finetune import training_arguments
from harness.probe.staging import BUILT_IN
from tests.unit.probe.jobs import TINY, Ended, finetune, run

pytestmark = pytest.mark.slow

LENGTHS = {"distribution": "lognormal", "min": 4, "max": 32, "mean": 14, "std": 8}


def counted(ended: Ended) -> tuple[int, ...]:
    """Tokens that all ranks journalled: padded, non-pad, trainable, samples."""
    events = [event for rank in ended.job.ranks() for event in ended.events("tokens", rank)]
    return tuple(sum(e[name] for e in events) for name in ("padded", "non_pad", "trainable", "samples"))


def expected(data: dict[str, Any]) -> tuple[int, ...]:
    layout = synthetic.layout(data)
    totals = synthetic.count(layout, range(layout.rows))
    return totals.padded, totals.non_pad, totals.trainable, totals.samples


def test_the_loss_falls(tmp_path: Path) -> None:
    ended = finetune(tmp_path, data={"samples": 64, "sequence_length": 64}, training={"max_steps": 20})
    assert ended.exit_code == 0, ended.logs()
    losses = [step["loss"] for step in ended.events("step")]
    assert len(losses) == 20
    assert sum(losses[-3:]) / 3 < losses[0] - 0.7
    names = [event["name"] for event in ended.events("phase")]
    assert names == ["import", "setup", "model_load", "data", "setup", "first_step", "steady", "teardown"]
    assert all(after > before for before, after in itertools.pairwise(s["ended_m"] for s in ended.events("step")))
    assert not (tmp_path / "outputs").exists() or not any((tmp_path / "outputs").iterdir())


@pytest.mark.parametrize("packing", ["padded", "packed"])
def test_tokens_of_two_ranks_with_workers_and_accumulation(tmp_path: Path, packing: str) -> None:
    data: dict[str, Any] = {"sequence_length": 32, "lengths": LENGTHS, "packing": packing, "workers": 2, "seed": 3}
    # 2 ranks of 2 micro-batches of 2 rows: whole steps alone, so that no row comes twice to fill the last one.
    samples = next(n for n in range(64, 0, -1) if synthetic.layout({**data, "samples": n}).rows % 8 == 0)
    data["samples"] = samples
    rows = synthetic.layout(data).rows
    training = {"max_steps": -1, "num_train_epochs": 1, "gradient_accumulation_steps": 2}
    ended = finetune(tmp_path, ranks=2, data=data, training=training)
    assert ended.exit_code == 0, ended.logs()
    assert counted(ended) == expected(data)
    for rank in (0, 1):
        assert {t["micro_batches"] for t in ended.events("tokens", rank)} == {2}
        assert len(ended.events("step", rank)) == rows // 8


def test_lora_with_checkpointing_trains_adapters_alone(tmp_path: Path) -> None:
    ended = finetune(
        tmp_path,
        method={"kind": "lora", "rank": 4, "alpha": 8, "dropout": 0.1, "targets": ["q_proj", "v_proj"]},
        training={"gradient_checkpointing": True},
    )
    assert ended.exit_code == 0, ended.logs()
    model = ended.one("model")
    assert model["trainable"] == 2 * 2 * (4 * 64 + 4 * 64)
    assert all(step["grad_norm"] > 0 for step in ended.events("step"))


def test_spawned_workers_find_the_data(tmp_path: Path) -> None:
    training = {"max_steps": 2, "dataloader_multiprocessing_context": "spawn"}
    ended = finetune(tmp_path, data={"workers": 1}, training=training)
    assert ended.exit_code == 0, ended.logs()
    assert len(ended.events("step")) == 2
    assert len(ended.events("start")) == 1  # a worker is no rank


def test_a_local_model_in_bfloat16(tmp_path: Path) -> None:
    first = finetune(tmp_path / "first", training={"max_steps": 1})
    assert first.exit_code == 0, first.logs()
    from transformers import AutoConfig, AutoModelForCausalLM

    saved = tmp_path / "saved"
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**TINY)).save_pretrained(saved)
    ended = finetune(tmp_path / "second", model={"shape": None, "path": str(saved), "dtype": "bfloat16"})
    assert ended.exit_code == 0, ended.logs()
    assert ended.one("model")["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    "data, training, seed",
    [({"seed": 7}, {}, 7), ({"seed": 0}, {}, 42), (None, {}, 42), ({"seed": 7}, {"seed": 5}, 5), ({}, {"seed": 0}, 0)],
)
def test_the_seed_of_the_data_seeds_the_training(
    tmp_path: Path, data: dict[str, Any] | None, training: dict[str, Any], seed: int
) -> None:
    arguments = training_arguments({"gpus": None, "data": data, "training": training}, tmp_path)
    assert arguments.seed == seed


def test_gpus_that_are_not_there_are_named(tmp_path: Path) -> None:
    scenario = {"gpus": 1, "training": {}, "data": {}, "model": {}, "method": {}}
    ended = run(tmp_path, "-m", BUILT_IN, scenario=scenario, environ={"CUDA_VISIBLE_DEVICES": ""})
    error = ended.error()
    assert error is not None
    assert error["message"].startswith("the scenario asks for 1 GPUs, and torch ")


@pytest.mark.parametrize("ranks", [1, 2])
def test_parameters_before_and_after(tmp_path: Path, ranks: int) -> None:
    ended = finetune(tmp_path, ranks=ranks)
    for rank in range(ranks):
        first, last = ended.events("parameters", rank)
        assert (first["when"], first["changed"], first["step"]) == ("first", None, 0)
        assert (last["when"], last["changed"], last["step"]) == ("last", last["tensors"], 4)
        assert ended.one("segment", rank)["data_rank"] == rank
        assert ended.one("segment", rank)["data_ranks"] == ranks
    for when in (0, 1):  # gradients are exchanged: all ranks hold the same
        assert len({ended.events("parameters", rank)[when]["checksum"] for rank in range(ranks)}) == 1


def test_a_rate_of_0_changes_nothing(tmp_path: Path) -> None:
    ended = finetune(tmp_path, training={"learning_rate": 0.0})
    first, last = ended.events("parameters")
    assert (last["changed"], last["checksum"]) == (0, first["checksum"])


@pytest.mark.parametrize("packing", ["padded", "packed"])
def test_squares_of_documents(tmp_path: Path, packing: str) -> None:
    """What attention's work grows with: a packed row is no one document."""
    data: dict[str, Any] = {"samples": 24, "sequence_length": 32, "lengths": LENGTHS, "packing": packing, "seed": 5}
    layout = synthetic.layout(data)
    ended = finetune(tmp_path, data=data, training={"max_steps": -1, "num_train_epochs": 1})
    events = ended.events("tokens")
    pieces = [tokens for row in range(layout.rows) for _, tokens in layout.pieces(row)]
    assert sum(event["non_pad_squares"] for event in events) == sum(tokens**2 for tokens in pieces)
    assert sum(event["padded_squares"] for event in events) == layout.rows * 32**2


def until(**changes: Any) -> dict[str, Any]:
    return {"interval": 1e9, "min_steps": 5, "max_steps": 100, "max_time_s": None, "every": 5} | changes


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    "changes, last, why",
    [
        # At step 10 there are 7 measured steps at most, at step 15 there are 8 at least; that is heard of at step 20.
        pytest.param({}, 20, "interval", id="interval"),
        pytest.param({"interval": 0.0, "max_steps": 18}, 18, "max_steps", id="steps"),
        pytest.param({"interval": 0.0, "max_time_s": 1e-9}, 10, "max_time", id="time"),
    ],
)
def test_training_stops_at_one_step_on_all_ranks(
    tmp_path: Path, ranks: int, changes: dict[str, Any], last: int, why: str
) -> None:
    ended = finetune(tmp_path, ranks=ranks, until=until(**changes))
    assert ended.exit_code == 0, ended.logs()
    stop = ended.one("stop")
    assert (stop["why"], stop["step"]) == (why, last)
    for rank in range(ranks):
        assert [step["step"] for step in ended.events("step", rank)] == list(range(1, last + 1))
        assert ended.one("segment", rank)["max_steps"] == until(**changes)["max_steps"]
        assert len(ended.events("stop", rank)) == (rank == 0)  # who decides tells
    if why == "interval":
        assert stop["measured"] >= 8
        assert stop["interval"] > 0


def test_compiling_is_told_cold_and_warm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    training = {"torch_compile": True, "max_steps": 3}
    cold, warm = (finetune(tmp_path / name, training=training) for name in ("cold", "warm"))
    for ended in (cold, warm):
        assert ended.exit_code == 0, ended.logs()
        told = ended.events("compile")
        assert (told[0]["step"], told[0]["segment"]) == (1, 0)
        assert told[-1]["compilations"] >= told[-1]["graphs"] > 0
        assert told[-1]["seconds"] > 0
        assert told[-1]["recompiles"] == 0
    last = cold.events("compile")[-1]
    assert (last["cache_hits"], last["cache_misses"] > 0) == (0, True)
    last = warm.events("compile")[-1]
    assert (last["cache_hits"] > 0, last["cache_misses"]) == (True, 0)
    assert not finetune(tmp_path / "plain").events("compile")
