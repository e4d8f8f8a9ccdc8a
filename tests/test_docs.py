"""The documentation against the code's own tables."""

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import get_args, get_type_hints

import pytest

from harness.engines.diagnostics import VARIABLES
from harness.metrics.figures import FIGURES
from harness.metrics.sanity import REPORTED
from harness.probe.journal import EVENTS
from harness.record import Kind, Measurements, State
from harness.sampling.sampler import SAMPLE_FIELDS, SYSTEM_EVENTS
from harness.supervise import SUPERVISOR_EVENTS
from harness.telemetry import values
from harness.telemetry.figures import TABLES

ROOT = Path(__file__).parent.parent
JOB_DIRECTORY = (ROOT / "docs" / "job-directory.md").read_text()


def rows(heading: str) -> list[tuple[str, str, str]]:
    """The three-column rows of the table below a heading."""
    section = JOB_DIRECTORY.partition(f"### `{heading}`")[2].partition("\n#")[0]
    return re.findall(r"^\| `(\w+)` \| `(\w+)` \| (.+) \|$", section, re.MULTILINE)


@pytest.mark.parametrize(
    "heading, table",
    [
        ("rank-N/events.jsonl", EVENTS),
        ("node-0/supervisor.jsonl", SUPERVISOR_EVENTS),
        ("node-0/system.jsonl", {**SAMPLE_FIELDS, **SYSTEM_EVENTS}),
    ],
)
def test_the_tables_of_events(heading: str, table: Mapping[str, Mapping[str, str]]) -> None:
    assert rows(heading) == [(event, field, text) for event, named in table.items() for field, text in named.items()]


def test_the_table_of_variables() -> None:
    section = JOB_DIRECTORY.partition("## The environment of a job")[2].partition("\n## ")[0]
    found = re.findall(r"^\| `(\w+)` \| `(.+)` \| (.+) \| (.+) \|$", section, re.MULTILINE)
    paths = {"recorder": "RECORDER", "nccl_log": "node-0/nccl.%h.%p.log"}
    assert found == [(row.name, row.value.format(**paths), row.versions, row.why) for row in VARIABLES]


def test_every_kind_of_verdict_is_named() -> None:
    assert {f"`{kind}`" for kind in Kind} <= set(re.findall(r"`\w+`", JOB_DIRECTORY))


@pytest.mark.parametrize("page", sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")]), ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / link).exists(), link


def test_the_table_of_figures_is_the_records() -> None:
    assert list(FIGURES) == list(Measurements.model_fields)


def test_the_tables_of_figures_and_peaks_and_the_records_schema_are_the_codes() -> None:
    script = ROOT / "scripts" / "docs_tables.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "run scripts/docs_tables.py"


def test_a_figure_that_can_be_null_says_what_that_means() -> None:
    for name, field in Measurements.model_fields.items():
        nullable = NoneType in get_args(field.annotation)
        assert nullable == (not FIGURES[name].null.startswith("never null")), name


def test_the_tables_of_telemetry_are_the_records() -> None:
    there = {name: kind for name, kind in vars(values).items() if is_dataclass(kind) and isinstance(kind, type)}
    assert set(TABLES) == set(there)
    for name, (_, told) in TABLES.items():
        assert list(told) == [field.name for field in fields(there[name])], name


def test_a_figure_of_telemetry_that_can_be_null_says_what_that_means() -> None:
    for name, (_, told) in TABLES.items():
        for field, annotation in get_type_hints(getattr(values, name)).items():
            nullable = NoneType in get_args(annotation)
            assert nullable == (not told[field].null.startswith("never null")), f"{name}.{field}"


def test_every_flag_state_and_name_of_the_programs_stands_in_the_text() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    source = "".join(path.read_text() for path in (ROOT / "harness" / "metrics").glob("*.py"))
    flags = set(re.findall(r'flags\["(\w+)"\]', source)) | {"drifting", "no_steady_state"}
    assert {name for name in (*flags, *get_args(State), *REPORTED) if f"\n| `{name}` |" not in page} == set()
