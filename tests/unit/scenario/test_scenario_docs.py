"""The examples of docs/scenarios.md and docs/foreign-programs.md load, and the tables name every key."""

import re
from pathlib import Path

import pytest

from harness.scenario import MODELS, BadScenario, Data, Scenario, load_scenarios
from harness.scenario.schema import OWNED
from harness.scenario.spelling import TOP_LEVEL

DOCS = Path(__file__).parents[3] / "docs"
TEXT = (DOCS / "scenarios.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
FOREIGN = re.findall(r"```yaml\n(.*?)```", (DOCS / "foreign-programs.md").read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES) + len(FOREIGN)))
def test_an_example_loads(tmp_path: Path, number: int) -> None:
    (tmp_path / "example.yaml").write_text([*EXAMPLES, *FOREIGN][number])
    found = load_scenarios(tmp_path)
    assert [entry.error for entry in found if isinstance(entry, BadScenario)] == []
    assert found


def test_the_matrix_example_makes_what_the_text_says(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(next(example for example in EXAMPLES if "name: sweep" in example))
    ids = [entry.id for entry in load_scenarios(tmp_path)]
    assert len(ids) == 3 * 2 * 2 - 2 + 1
    assert "sweep-lora-wide-bs1-seq512-1gpu" in ids
    assert "sweep-full-bs16-seq512-8gpu" in ids


def test_every_key_stands_in_the_text() -> None:
    assert len(EXAMPLES) >= 5
    names = {*TOP_LEVEL, *Data.model_fields, *MODELS, *OWNED, "gpu_memory", "packages", "matrix", "defaults"}
    assert {name for name in names if f"`{name}`" not in TEXT} == set()
    assert Scenario.model_fields["method"].default.kind == "full"
