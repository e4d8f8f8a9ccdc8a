"""Records survive the disk, and a reader never meets half of one."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from harness.record import SCHEMA, Attempt, Kind, Lease, Record, Verdict, read_record, write_json, write_record
from harness.reports.properties import of_record

RECORD = Record(
    case_id="tiny-lora-bs2-seq64-1proc",
    session="20261201-120000-abcdef",
    state="finished",
    scenario={"name": "tiny"},
    source="tiny.yaml:1",
    labels={"experiment": "tiny"},
    command=["python", "train.py"],
    environment={},
    attempts=[Attempt(number=1, directory="attempt-1", started=1.0, lease=Lease(cpus=[0], wait_s=0.0))],
    verdict=Verdict(kind=Kind.GPU_OOM, reason="rank 1 asked for 2 GiB", rank=1, step=3),
)


def test_round_trip(tmp_path: Path) -> None:
    write_record(RECORD, tmp_path / "record.json")
    assert read_record(tmp_path / "record.json") == RECORD
    assert json.loads((tmp_path / "record.json").read_text())["schema_version"] == SCHEMA
    assert (tmp_path / "record.json").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["record.json"]


def test_a_document_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    write_json({"a": 1}, tmp_path / "x.json")
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json({"a": float("nan")}, tmp_path / "x.json")
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": 1}
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"case_id": "x", "surprise": 1}'])
def test_what_is_no_record(tmp_path: Path, text: str) -> None:
    (tmp_path / "record.json").write_text(text)
    with pytest.raises(ValidationError):
        read_record(tmp_path / "record.json")


# As the first version of the harness wrote it.
VERSION_1 = """
{"schema_version": 1, "case_id": "tiny", "session": "s", "state": "finished", "scenario": {}, "source": "tiny.yaml:1",
 "labels": {}, "command": [], "environment": {}, "verdict": {"kind": "none", "reason": ""},
 "measurements": {
  "ranks": 1, "device": "cpu", "steps_seen": 20, "first_cut": 3, "steps_measured": 17, "window_s": 0.5,
  "step_time_median_s": 0.03, "step_time_mean_s": 0.03, "step_time_stdev_s": 0.001, "step_time_min_s": 0.02,
  "step_time_max_s": 0.04, "samples_per_s": 68.0, "padded_tokens_per_s": 4352.0, "non_pad_tokens_per_s": 4352.0,
  "trainable_tokens_per_s": 4284.0, "non_pad_tokens_per_s_per_device": 4352.0, "loss_first": 5.5, "loss_last": 3.2,
  "grad_norm_last": null, "peak_allocated_bytes": null, "peak_reserved_bytes": null, "host_peak_rss_bytes": 1000,
  "host_peak_pss_bytes": null, "phases_s": {"import": 3.0}, "parameters": 115008, "trainable_parameters": 115008,
  "tokens": {"padded": 2560, "non_pad": 2560, "trainable": 2520, "samples": 40}, "segments": [],
  "reasons": {"grad_norm_last": "not computed"}}}
"""


def test_a_record_of_version_1_is_read_and_reported(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text(VERSION_1)
    record = read_record(tmp_path / "record.json")
    assert record.schema_version == 1
    assert record.measurements is not None
    assert (record.measurements.mfu, record.measurements.flags) == (None, {})
    told = dict(of_record(record, "x"))
    assert (told["step_time_median_s"], told["steps_measured"]) == ("0.03", "17")


def test_ctrl_c_just_after_the_record_was_replaced_is_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def replaced(*names: Any) -> None:
        replace(*names)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", replaced)
    with pytest.raises(KeyboardInterrupt):
        write_json({"whole": True}, tmp_path / "record.json")
    assert os.listdir(tmp_path) == ["record.json"]
