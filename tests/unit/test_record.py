"""Records survive the disk, and a reader never meets half of one."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from harness.record import SCHEMA, Attempt, Kind, Lease, Record, Verdict, read_record, write_json, write_record

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
