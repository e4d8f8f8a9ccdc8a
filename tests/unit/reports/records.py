"""Records for the tests of reports."""

from typing import Any

from harness.record import Kind, Measurements, Record, Verdict


def make_measurements(**values: Any) -> Measurements:
    empty: dict[str, Any] = {name: None for name, field in Measurements.model_fields.items() if field.is_required()}
    empty |= {"ranks": 1, "device": "cpu", "steps_seen": 20, "first_cut": 3, "steps_measured": 17}
    empty |= {"non_pad_tokens_per_s_per_device": 12345.678, "step_time_median_s": 0.25, "host_peak_rss_bytes": 2**30}
    return Measurements(**(empty | {"phases_s": {}, "tokens": {}, "segments": [], "reasons": {}} | values))


def make_record(**values: Any) -> Record:
    given: dict[str, Any] = {
        "case_id": "tiny-1proc",
        "session": "session",
        "state": "finished",
        "scenario": {},
        "source": "tiny.yaml:1",
        "labels": {"team": "a", "experiment": "tiny"},
        "command": [],
        "environment": {},
        "verdict": Verdict(kind=Kind.NONE, reason="trained 20 steps"),
        "measurements": make_measurements(),
    }
    return Record(**(given | values))
