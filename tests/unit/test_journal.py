"""Journals are read whole or torn, and an event of tomorrow is no error today."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from harness.journal import Event, number_segments, open_regular, read_document, read_events, read_ranks
from harness.probe.journal import JournalFile
from harness.probe.layout import JobPaths
from tests.unit.journals import event, rank, step


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path / "rank-0" / "events.jsonl")
    journal.write("phase", name="import")
    journal.write("step", step=1, seconds=0.5)
    journal.close()
    events = [event for _, event in read_events(tmp_path / "rank-0" / "events.jsonl")]
    assert [event["e"] for event in events] == ["phase", "step"]
    assert events[1]["seconds"] == 0.5
    assert events[0]["m"] <= events[1]["m"]


def test_a_journal_is_private(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path / "events.jsonl")
    journal.close()
    assert (tmp_path / "events.jsonl").stat().st_mode & 0o777 == 0o600


def test_closing_twice_is_harmless(tmp_path: Path) -> None:
    journal = JournalFile(tmp_path / "events.jsonl")
    journal.close()
    journal.close()


@pytest.mark.parametrize(
    "value, text",
    [(math.nan, "NaN"), (math.inf, "Infinity"), (-math.inf, "-Infinity"), ([math.nan, 1.0], ["NaN", 1.0])],
)
def test_numbers_that_json_lacks_become_text(tmp_path: Path, value: object, text: object) -> None:
    journal = JournalFile(tmp_path / "events.jsonl")
    journal.write("log", logs={"loss": value})
    journal.close()
    line = (tmp_path / "events.jsonl").read_text()
    assert json.loads(line, parse_constant=lambda name: pytest.fail(f"not strict JSON: {name}"))["logs"]["loss"] == text


@pytest.mark.parametrize(
    "content, kinds",
    [
        pytest.param(b"", [], id="empty"),
        pytest.param(b'{"e":"a"}\n{"e":"b', ["a"], id="torn last line"),
        pytest.param(b'{"e":"a"}\n\x00\x00\n{"e":"b"}\n', ["a", "b"], id="a hole after a power loss"),
        pytest.param(b'{"e":"a"}\n[1]\n{"x":1}\n', ["a"], id="JSON that is no event"),
        pytest.param(b'{"e":"a"}\n{"e":' + b"[" * 100_000, ["a"], id="nested without end"),
        pytest.param(b'{"e":"a"}\n{"e":"tomorrow","x":1}\n', ["a", "tomorrow"], id="unknown event"),
    ],
)
def test_what_cannot_be_read_is_left_out(tmp_path: Path, content: bytes, kinds: list[str]) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(content)
    assert [event["e"] for _, event in read_events(path)] == kinds


def test_a_missing_journal_is_an_empty_one(tmp_path: Path) -> None:
    assert list(read_events(tmp_path / "none")) == []


def test_ranks_are_read_in_order(tmp_path: Path) -> None:
    for number in (10, 2, 0):
        JournalFile(JobPaths(tmp_path).events(number)).close()
    (tmp_path / "rank-x").mkdir()
    (tmp_path / "rank-1").touch()
    assert [journal.rank for journal in read_ranks(JobPaths(tmp_path))] == [0, 2, 10]


@pytest.mark.parametrize("text", ["", "[]", '{"cut'])
def test_a_document_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "end.json").write_text(text)
    assert read_document(tmp_path / "end.json") is None


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("/etc/hostname")
    for name in ("pipe", "folder", "link", "absent"):
        assert list(read_events(tmp_path / name)) == []
        assert read_document(tmp_path / name) is None
        with pytest.raises(OSError, match=name):
            open_regular(tmp_path / name)


def turn(steps: list[int], **ended: Any) -> list[Event]:
    """One process: a segment for each number of steps, counted from 0."""
    events = [event("start")]
    for segment, count in enumerate(steps):
        events.append(event("segment", segment=segment))
        events += [step(number, segment=segment) for number in range(1, count + 1)]
    return [*events, *([event("end", **ended)] if ended else [])]


def test_segments_of_processes_that_follow_each_other_are_numbered_on() -> None:
    """Rank 1 ended before it trained, and both were started anew."""
    first, second = number_segments([rank(0, *turn([0, 3]), *turn([5])), rank(1, *turn([]), *turn([5]), *turn([1]))])
    assert [event["segment"] for event in first.of("segment")] == [0, 1, 2]
    assert [event["segment"] for event in second.of("segment")] == [2, 3]
    assert [event["segment"] for event in first.of("step")] == [1] * 3 + [2] * 5
    assert [event["segment"] for event in second.of("step")] == [2] * 5 + [3]
    assert [line for line, _ in first.events] == list(range(1, len(first.events) + 1))


def test_the_end_of_a_rank_is_its_last_processs() -> None:
    assert rank(0, *turn([1], exit_code=0), *turn([1])).end is None
    assert (rank(0, *turn([1]), *turn([1], exit_code=3)).end or {})["exit_code"] == 3
    assert [len(part.of("step")) for part in rank(0, *turn([2]), *turn([1, 1])).processes()] == [2, 2]
