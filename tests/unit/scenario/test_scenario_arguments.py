"""`training` against TrainingArguments, read from source text."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from harness.scenario import Case, check_training, load_scenarios
from harness.scenario.arguments import training_fields

SOURCE = """
from dataclasses import dataclass, field
from typing import ClassVar, Optional, Union
from .base import Base
raise RuntimeError("this file is read, never run")

@dataclass
class Own:
    own: int = 0

@dataclass
class TrainingArguments(Own, Base):
    registry: ClassVar[dict] = {}
    hidden: int = field(init=False, default=1)
    _secret = 3
    learning_rate: float = 5e-5
    max_steps: int = -1
    bf16: bool = False
    eval_strategy: Union[IntervalStrategy, str] = "no"
    eval_steps: Optional[float] = None
    fsdp: str | None = field(default=None, metadata={"help": "x", "nargs": "?", "const": True})
    config: "Optional[Union[dict, str]]" = None
    flag: None | str | Literal[False] = None
    names: list[str] | None = None
    odd: SomethingElse | None = None
    optim: OptimizerNames = "adamw"
    def method(self): ...
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "base.py").write_text("class Base:\n    from_base: str = ''\n    bf16: int = 0\n")
    path = tmp_path / "training_args.py"
    path.write_text(SOURCE)
    return path


def case(folder: Path, training: str) -> Case:
    scenarios = folder / "scenarios"
    scenarios.mkdir()
    (scenarios / "a.yaml").write_text(f"name: a\nmodel: tiny-llama\nprocesses: 1\ntraining:\n  {training}\n")
    (found,) = load_scenarios(scenarios)
    assert isinstance(found, Case), found
    # The built-in trainer's batch size is no field of the short class above.
    training_only = {
        key: value for key, value in found.scenario.training.items() if key != "per_device_train_batch_size"
    }
    return Case(
        found.id,
        found.scenario.model_copy(update={"training": training_only}),
        found.source,
        (),
        (),
        found.training_lines,
    )


def test_fields_are_those_that_the_class_takes(source: Path) -> None:
    known = "own from_base learning_rate max_steps bf16 eval_strategy eval_steps fsdp config flag names odd optim"
    assert set(training_fields(source)) == set(known.split())


@pytest.mark.parametrize(
    "training, problem",
    [
        ("learning_rate: 1e-4", None),
        ("learning_rate: 1", None),
        ("learning_rate: '1e-4'", "learning_rate: must be a number, got '1e-4'; correct the value"),
        ("learning_rate: true", "learning_rate: must be a number, got true; correct the value"),
        ("learning_rate: null", "learning_rate: must be a number, got null; correct the value"),
        ("max_steps: 5", None),
        ("max_steps: 5.0", "max_steps: must be a whole number, got 5.0; correct the value"),
        ("bf16: true", None),
        ("bf16: 1", "bf16: must be true or false, got 1; correct the value"),
        ("bf16: yes", "bf16: must be true or false, got 'yes'; correct the value"),
        ("eval_strategy: no", None),
        ("eval_strategy: false", "eval_strategy: must be text, got false; correct the value"),
        ("eval_steps: null", None),
        ("eval_steps: x", "eval_steps: must be a number or null, got 'x'; correct the value"),
        ("fsdp: true", None),
        ("fsdp: full_shard", None),
        ("config: {a: 1}", None),
        ("config: path.json", None),
        ("config: 3", "config: must be text or a mapping or null, got 3; correct the value"),
        ("flag: false", None),
        ("names: [a]", None),
        ("names: a", "names: must be a list or null, got 'a'; correct the value"),
        ("odd: 3", None),
        ("optim: sgd", None),
        ("own: 3", None),
        ("from_base: x", None),
        (
            "evaluation_strategy: no",
            "evaluation_strategy: is no field of the installed TrainingArguments; did you mean 'eval_s",
        ),
        ("lr: 1", "lr: is no field of the installed TrainingArguments; did you mean 'learning_rate'?"),
        (
            "learning_rte: 1",
            "learning_rte: is no field of the installed TrainingArguments; did you mean 'learning_rate'?",
        ),
        ("zzz: 1", "zzz: is no field of the installed TrainingArguments; see the fields of the installed"),
        ("hidden: 1", "hidden: is no field of the installed TrainingArguments; "),
        ("registry: {}", "registry: is no field"),
    ],
)
def test_values(source: Path, training: str, problem: str | None) -> None:
    found = check_training(case(source.parent, training), source)
    if problem is None:
        assert found is None
    else:
        assert found is not None
        assert found.startswith(f"{source.parent}/scenarios/a.yaml:5: training.{problem}")


def test_every_wrong_key_is_told_with_its_line(source: Path) -> None:
    found = check_training(case(source.parent, "zzz: 1\n  bf16: true\n  yyy: 2"), source)
    assert found is not None
    assert [line.split(":")[1] for line in found.splitlines()] == ["5", "7"]


@pytest.mark.parametrize("content", [None, "x = 1\n", "def (:\n", "class TrainingArguments: ...\n"], ids=repr)
def test_a_source_that_cannot_be_read_is_the_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "training_args.py"
    if content is not None:
        path.write_text(content)
    found = check_training(case(tmp_path, "max_steps: 1"), path)
    assert found is not None
    assert "a.yaml:1: training: cannot be checked: " in found


@pytest.fixture
def installed() -> Path:
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        pytest.skip("needs transformers")
    return Path(spec.origin).with_name("training_args.py")


def test_the_installed_class_is_understood(installed: Path) -> None:
    fields = training_fields(installed)
    assert {"learning_rate", "per_device_train_batch_size", "fsdp", "fsdp_config", "bf16", "eval_strategy"} <= set(
        fields
    )
    assert "transformers" not in sys.modules or len(fields) > 50


def test_the_shipped_scenarios_fit_the_installed_class(installed: Path) -> None:
    shipped = load_scenarios(Path(__file__).parents[3] / "benchmarks" / "scenarios")
    assert [check_training(entry, installed) for entry in shipped if isinstance(entry, Case)] == [None] * len(shipped)


@pytest.mark.slow
def test_the_fields_read_are_the_fields_of_the_class_itself(installed: Path) -> None:
    program = (
        "import dataclasses, transformers;"
        "print(*sorted(f.name for f in dataclasses.fields(transformers.TrainingArguments) if f.init))"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert found.stdout.split() == sorted(training_fields(installed))
