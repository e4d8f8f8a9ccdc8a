"""The documentation against the code's own tables."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from harness.engines.diagnostics import VARIABLES
from harness.probe.journal import EVENTS
from harness.record import Kind
from harness.sampling.sampler import SAMPLE_FIELDS, SYSTEM_EVENTS
from harness.supervise import SUPERVISOR_EVENTS

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
    assert rows(heading) == [(event, field, text) for event, fields in table.items() for field, text in fields.items()]


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
