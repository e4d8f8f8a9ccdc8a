"""Models and data for programs that read them from disk: made offline, fetched once from a hub on this machine."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.assets import script
from harness.assets.making import TOKENIZER
from harness.journal import read_document, read_events
from harness.probe.layout import JobPaths
from harness.record import Record, read_record
from harness.scenario import MODELS
from tests.acceptance.conftest import Bench, properties
from tests.fake_hub import COMMIT, FakeHub

pytestmark = pytest.mark.slow

SCENARIOS = """
defaults:
  model: tiny-llama
  trainer:
    target: ../reads_files.py
    args: ["{model_dir}", "{data_file}", --output_dir, "{output_dir}", "{training}"]
  data: {samples: 24, sequence_length: 16, lengths: {distribution: uniform, min: 4}, seed: 1}
  training:
    {max_steps: 3, per_device_train_batch_size: 4, learning_rate: 1e-3, weight_decay: 0.1, logging_steps: 1,
     bf16: false, use_cpu: true, report_to: none, disable_tqdm: true, save_strategy: "no", optim: adamw_torch,
     remove_unused_columns: false, lr_scheduler_type: constant, lr_scheduler_kwargs: {}, num_train_epochs: 2}
  processes: 1
scenarios:
  - {name: obeys}
  - {name: overrides, env: {OVERRIDES: "1"}}
"""
FETCHED = """
name: fetched
model: {path: org/tiny}
data: {samples: 16, sequence_length: 16}
training: {max_steps: 2, per_device_train_batch_size: 2}
processes: 2
"""


@pytest.fixture(scope="module")
def bench(make_bench: Callable[[str], Bench]) -> Bench:
    bench = make_bench(SCENARIOS)
    done = bench.run("-n", "2", "--junitxml", "junit.xml")
    assert done.returncode == 0, done.stdout
    return bench


def record_of(bench: Bench, name: str) -> tuple[Record, JobPaths]:
    (folder,) = bench.session.glob(f"{name}*")
    return read_record(folder / "record.json"), JobPaths(folder / "attempt-1")


def test_a_program_is_measured_on_what_was_made_for_it(bench: Bench) -> None:
    record, job = record_of(bench, "obeys")
    measured = record.measurements
    assert measured is not None
    assert measured.steps_seen == 3
    assert measured.parameters == MODELS["tiny-llama"].parameters
    tokens = [event["non_pad"] for _, event in read_events(job.events(0)) if event["e"] == "tokens"]
    assert all(4 * 4 <= count <= 4 * 16 for count in tokens)
    assert "arguments_differ" not in measured.flags
    assert {name: asset.source for name, asset in record.assets.items()} == {"model": "made", "data": "made"}
    assert measured.phases_s["assets"] is not None


def test_sessions_and_workers_share_what_was_made(bench: Bench) -> None:
    first, second = (record_of(bench, name)[0].assets for name in ("obeys", "overrides"))
    assert first == second
    made = sorted(path.name for path in (bench.root / "cache" / "models").iterdir() if not path.name.startswith("."))
    assert made == [Path(first["model"].path).name]


def test_arguments_in_effect_are_compared_with_those_that_were_asked_for(bench: Bench) -> None:
    record, job = record_of(bench, "overrides")
    (event,) = [event for _, event in read_events(job.events(0)) if event["e"] == "arguments"]
    assert (event["got"]["weight_decay"], event["got"]["bf16"], event["unknown"], event["opaque"]) == (
        0.5,
        False,
        [],
        [],
    )
    assert record.measurements is not None
    assert record.measurements.flags["arguments_differ"] == "weight_decay: 0.1 asked for, 0.5 in effect"
    told = {name: properties(element).get("flags") for name, element in bench.case_elements().items()}
    assert [flags for name, flags in told.items() if name.startswith("overrides")] == [record_flags(record)]


def record_flags(record: Record) -> str:
    assert record.measurements is not None
    return ", ".join(sorted(record.measurements.flags))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("checkpoint")
    shape: Any = MODELS["tiny-llama"].shape
    script.make_model(
        {"shape": shape, "dtype": "float32", "seed": 0, "tokenizer": str(TOKENIZER), "folder": str(folder)}
    )
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_built_in_trainer_reads_what_one_process_has_fetched(
    make_bench: Callable[[str], Bench], checkpoint: dict[str, bytes]
) -> None:
    bench = make_bench(FETCHED)
    with FakeHub.open({"models/org/tiny": checkpoint}) as hub:
        environ = {"HF_ENDPOINT": hub.url, "HF_HOME": str(bench.root / "hf"), "HF_HUB_OFFLINE": ""}
        done = bench.run(environ={**environ, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"})
    assert done.returncode == 0, done.stdout
    assert sorted(hub.fetched()) == sorted(f"{COMMIT}/{name}" for name in checkpoint)  # each once, and by no rank
    record, job = record_of(bench, "fetched")
    asset = record.assets["model"]
    assert (asset.source, asset.revision) == ("hub", COMMIT)
    assert record.scenario["model"]["path"] == "org/tiny"
    assert record.environment["variables"]["HF_HUB_OFFLINE"] == "1"
    document = read_document(job.job)
    assert document is not None
    assert document["scenario"]["model"]["path"] == asset.path
    assert os.path.samefile(Path(asset.path).parents[2], bench.root / "hf" / "hub")
