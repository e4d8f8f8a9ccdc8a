"""From journals to points, without Aim."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.journal import Event
from harness.probe import series
from harness.probe.layout import JobPaths
from harness.probe.series import Journals, Point, RankSeries, SystemSeries, Tail
from tests.unit import journals
from tests.unit.forward.recorded import append, make_job, sample


def named(points: Any) -> dict[str, Point]:
    return {point.name: point for point in points}


def test_a_step_and_its_tokens() -> None:
    rank = RankSeries(3)
    found = named(rank.points(journals.step(7, 0.5, overhead_seconds=0.1, ended_m=5.0)))
    assert {name: point.value for name, point in found.items()} == {
        "loss": 4.3,
        "grad_norm": 1.0,
        "learning_rate": 1e-3,
        "step_time_s": 0.4,
    }
    assert {(p.step, p.t, str(p.context)) for p in found.values()} == {(7, journals.T0 + 5, "{'rank': 3}")}
    [rate] = rank.points(journals.tokens(7, 128))
    assert (rate.name, rate.step) == ("non_pad_tokens_per_s", 7)
    assert rate.value == pytest.approx(320)


def test_tokens_that_are_written_before_their_step() -> None:
    rank = RankSeries(0)
    assert rank.points(journals.tokens(1, 100)) == []
    assert named(rank.points(journals.step(1, 0.5)))["non_pad_tokens_per_s"].value == 200


def test_a_later_segment_does_not_overwrite_the_first() -> None:
    rank = RankSeries(0)
    contexts = [named(rank.points(journals.step(1, segment=segment)))["loss"].context for segment in (0, 1)]
    assert contexts == [{"rank": 0}, {"rank": 0, "segment": 1}]


@pytest.mark.parametrize(
    "value, points, skipped",
    [("NaN", 0, 1), ("Infinity", 0, 1), (float("nan"), 0, 1), (None, 0, 0), (10**400, 0, 1), (True, 0, 0), (2, 1, 0)],
)
def test_values_that_aim_does_not_get(value: Any, points: int, skipped: int) -> None:
    rank = RankSeries(0)
    found = rank.points(journals.event("log", step=1, logs={"eval_loss": value}))
    assert (len(list(found)), rank.skipped) == (points, skipped)


@pytest.mark.parametrize(
    "event",
    [{"e": "step"}, {"e": "tokens", "step": "x"}, {"e": "log", "step": 1, "t": 1, "logs": 3}, {"e": "unheard of"}],
)
def test_odd_events_add_nothing(event: Event) -> None:
    assert list(RankSeries(0).points(event)) == []
    assert list(SystemSeries().points({"e": "sample", "tree": None})) == []


def test_the_samplers_figures_have_aims_names() -> None:
    system = SystemSeries()
    first, second = (named(system.points(sample(n))) for n in range(2))
    assert {name: (point.value, point.step, point.context) for name, point in second.items()} == {
        "__system__cpu": (50.0, 1, {}),
        "__system__p_memory_percent": (25.0, 1, {}),
        "__system__memory_percent": (50.0, 1, {}),
    }
    assert "__system__cpu" not in first


def test_gpus_have_aims_names() -> None:
    system = SystemSeries()
    known = [("GPU-a", 0, 200), ("MIG-b", 1, 100), ("GPU-c", None, None)]
    for uuid, index, total in known:
        event = {"e": "gpu", "t": 1.0, "uuid": uuid, "index": index, "memory_total_bytes": total}
        assert list(system.points(event)) == []
    read = {"utilization_percent": 97, "memory_used_bytes": 50, "power_w": 400.5, "temperature_c": 61}
    for uuid, context, memory in [("GPU-a", {"gpu": 0}, 25.0), ("MIG-b", {"gpu": 1, "mig": "MIG-b"}, 50.0)]:
        for step in range(2):
            event = {"e": "gpu_sample", "t": 5.0 + step, "uuid": uuid, **read}
            found = named(system.points(event))
            assert {name: point.value for name, point in found.items()} == {
                "__system__gpu": 97.0,
                "__system__gpu_memory_percent": memory,
                "__system__gpu_power_watts": 400.5,
                "__system__gpu_temp": 61.0,
            }
            assert {(point.step, point.t) for point in found.values()} == {(step, 5.0 + step)}
            assert all(point.context == context for point in found.values())
    nothing = {"e": "gpu_sample", "t": 9.0, "uuid": "GPU-c", **dict.fromkeys(read)}
    assert list(system.points(nothing)) == []
    assert list(system.points({**nothing, "uuid": "GPU-never-described"})) == []


def test_a_growing_journal(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "events.jsonl")
    assert tail.read() is None
    append(tmp_path / "events.jsonl", journals.event("start"), torn='{"e": "ph')
    assert [event["e"] for event in tail.read() or ()] == ["start"]
    assert tail.read() is None
    append(tmp_path / "events.jsonl", torn='ase"}\nno json\n')
    assert tail.read() == [{"e": "phase"}]


def test_a_line_longer_than_a_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "BLOCK_BYTES", 64)
    path = tmp_path / "events.jsonl"
    path.write_text(json.dumps({"e": "long", "text": "x" * 1000}) + '\n{"e": "next"}\n')
    tail, found = Tail(path), []
    while (events := tail.read()) is not None:
        found += events
    assert [event["e"] for event in found] == ["long", "next"]


def test_all_journals_of_a_job(tmp_path: Path) -> None:
    job: JobPaths = make_job(tmp_path / "case", ranks=2)
    followed = Journals(job)
    found = []
    while (points := followed.read()) is not None:
        found += points
    assert len(found) == 2 * 6 * 5 + 4 * 2 + 3
    append(job.events(2), journals.step(1, loss="NaN"))  # a rank that comes late
    assert "loss" not in named(followed.read() or ())
    assert followed.skipped == 1


def test_a_process_that_follows_another_does_not_overwrite_its_series() -> None:
    rank = RankSeries(0)
    contexts = []
    for segment in (0, 1):
        list(rank.points(journals.event("start")))
        contexts += [named(rank.points(journals.step(1, segment=s)))["loss"].context for s in range(segment + 1)]
    assert contexts == [{"rank": 0}, {"rank": 0, "segment": 1}, {"rank": 0, "segment": 2}]
