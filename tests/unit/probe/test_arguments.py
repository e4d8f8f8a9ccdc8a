"""Training arguments as the program has them, of those that the scenario names."""

import json
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.probe.arguments import parsed_arguments
from harness.probe.layout import JobPaths


class Strategy(Enum):
    NO = "no"


ARGS = SimpleNamespace(
    save_strategy=Strategy.NO,
    fsdp=[Strategy.NO, "x"],
    learning_rate=1e-4,
    kwargs={"a": Strategy.NO, "b": None},
    odd=object(),
    odd_list=[object()],
    url="https://user:pw@host/x",
)


def parsed(tmp_path: Path, document: Any) -> dict[str, Any] | None:
    (tmp_path / "job.json").write_text(json.dumps(document))
    return parsed_arguments(JobPaths(tmp_path), ARGS, {"hidden"})


def test_the_named_ones_are_told_as_json_has_them(tmp_path: Path) -> None:
    asked = {"save_strategy": "no", "fsdp": "", "learning_rate": 1, "kwargs": {}, "odd": 1, "odd_list": 1, "gone": 1}
    assert parsed(tmp_path, {"scenario": {"training": asked}}) == {
        "got": {"save_strategy": "no", "fsdp": ["no", "x"], "learning_rate": 1e-4, "kwargs": {"a": "no", "b": None}},
        "unknown": ["gone"],
        "opaque": ["odd", "odd_list"],
    }


def test_secrets_are_hidden(tmp_path: Path) -> None:
    told = parsed(tmp_path, {"scenario": {"training": {"url": "x"}}})
    assert told is not None
    assert "pw" not in told["got"]["url"]


@pytest.mark.parametrize("document", [{}, {"scenario": None}, {"scenario": {}}, {"scenario": {"training": {}}}])
def test_nothing_is_told_where_nothing_is_named(tmp_path: Path, document: Any) -> None:
    assert parsed(tmp_path, document) is None
