"""TRL as it is published, in an environment with nothing of ours: its scripts and its command are measured as is."""

import hashlib
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.record import Kind, Record, read_record
from tests.acceptance.conftest import Bench, probe_errors
from tests.acceptance.stacks import TRL

pytestmark = [pytest.mark.slow, pytest.mark.fms]

SCENARIOS = """
defaults:
  stack: {stack}
  model: tiny-llama
  data: {{samples: 64, sequence_length: 32, lengths: {{distribution: uniform, min: 8}}}}
  training: {{max_steps: 6, per_device_train_batch_size: 2, logging_steps: 1, use_cpu: true, report_to: none,
             save_strategy: "no", disable_tqdm: true}}
  processes: 1
scenarios:
  - name: script-sft
    trainer: {{target: {{module: trl.scripts.sft}}, args: [{arguments}]}}
  - name: script-dpo
    trainer: {{target: {{module: trl.scripts.dpo}}, args: [{arguments}]}}
    data: {{format: preference, file: parquet}}
  - name: command-sft
    trainer: {{target: {{program: trl}}, launcher: own, args: [sft, {arguments}]}}
    data: {{format: messages}}
  - name: command-ranks
    trainer: {{target: {{program: trl}}, launcher: own,
              args: [sft, {arguments}, --num_processes, "{{processes}}", --multi_gpu]}}
    processes: 2
"""
ARGUMENTS = (
    '--model_name_or_path, "{model_dir}", --dataset_name, "{data_dir}", --output_dir, "{output_dir}", "{training}"'
)
TRAINED = {"script-sft": 1, "script-dpo": 1, "command-sft": 1, "command-ranks": 2}  # how many ranks
OURS = {"tuning-harness", "pytest", "pytest-benchmark", "nvidia-ml-py", "aim"}  # pydantic is TRL's, too


@dataclass(frozen=True)
class Ran:
    bench: Bench
    python: Path
    before: str  # the environment's hash

    def record(self, name: str) -> Record:
        (path,) = self.bench.session.glob(f"{name}-*/record.json")
        return read_record(path)


def contents(python: Path) -> str:
    """Of all that is installed: paths and contents, but for what Python itself compiles."""
    (folder,) = python.parents[1].glob("lib/python*/site-packages")
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            with path.open("rb") as file:
                total.update(f"{path.relative_to(folder)} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()


@pytest.fixture(scope="module")
def ran(make_bench: Callable[[str], Bench]) -> Ran:
    bench = make_bench(SCENARIOS.format(stack=TRL.key, arguments=ARGUMENTS))
    python = TRL.lend(bench.root / "cache")
    before = contents(python)
    done = bench.run("-n", "2", environ={"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stdout
    return Ran(bench, python, before)


@pytest.mark.parametrize("name", TRAINED)
def test_every_rank_is_measured(ran: Ran, name: str) -> None:
    record = ran.record(name)
    assert record.verdict is not None
    assert (record.verdict.kind, record.verdict.reason) == (Kind.NONE, "")
    figures = record.measurements
    assert figures is not None
    assert (figures.steps_seen, figures.ranks) == (6, TRAINED[name])
    assert not {"ranks_differ", "arguments_differ"} & set(figures.flags)
    assert figures.loss_last is not None


@pytest.mark.parametrize("name", TRAINED)
def test_its_own_count_of_tokens_stands_beside_ours(ran: Ran, name: str) -> None:
    figures = ran.record(name).measurements
    assert figures is not None
    (told,) = [each for each in figures.reported if each.name == "num_tokens"]
    padded, non_pad = figures.tokens["padded"], figures.tokens["non_pad"]
    assert padded is not None
    assert non_pad is not None
    assert 0 < told.value == told.ours == non_pad < padded


def test_nothing_of_ours_is_in_its_environment_nor_is_left_there(ran: Ran) -> None:
    packages = ran.record("script-sft").environment["packages"]
    assert "trl" in packages
    assert OURS & set(packages) == set()
    assert probe_errors(ran.bench.session) == []
    assert contents(ran.python) == ran.before


BARE = {
    "script-sft": ["python", "-m", "trl.scripts.sft"],
    "script-dpo": ["python", "-m", "trl.scripts.dpo"],
    "command-ranks": ["trl", "sft", "--num_processes", "2", "--multi_gpu"],
}


@pytest.mark.parametrize("name", BARE)
def test_the_losses_are_those_without_the_harness(ran: Ran, name: str, tmp_path: Path) -> None:
    record = ran.record(name)
    program, *arguments = BARE[name]
    given = {
        "model_name_or_path": record.assets["model"].path,
        "dataset_name": Path(record.assets["data"].path).parent,
        "output_dir": tmp_path / "out",
        **record.scenario["training"],
    }
    bare = subprocess.run(
        [ran.python.parent / program, *arguments, *(f"--{key}={value}" for key, value in given.items())],
        cwd=tmp_path,
        env={**ran.bench.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert bare.returncode == 0, bare.stderr
    log = ran.bench.session / record.case_id / "attempt-1" / "rank-0" / "stdout.log"
    seen = losses(log.read_text())
    assert len(seen) == 6
    assert seen == losses(bare.stdout)


def losses(output: str) -> list[str]:
    """As its callback prints them, one a step."""
    return re.findall(r"'loss': '?([0-9.e-]+)", output)
