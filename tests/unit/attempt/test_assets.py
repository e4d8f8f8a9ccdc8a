"""Cases whose program reads model or data from disk: what the job gets, what the record says, what goes wrong."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from harness.attempt import Machine, Settings, run_case
from harness.journal import read_document
from harness.record import Kind, Record, read_record
from harness.scenario import Case, Scenario, Source

MACHINE = Machine(gpus=(), cpus=("cpu-0",))
READS = """
import json, os, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
print(json.dumps({"rows": len(rows), "offline": os.environ.get("HF_HUB_OFFLINE")}))
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    for name in ("HF_HUB_OFFLINE", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "reads.py").write_text(READS)
    return Settings(
        session="s", session_dir=tmp_path, base_dir=tmp_path, lock_dir=tmp_path / "locks", grace_s=0.5, retry_wait_s=0.0
    )


def case(args: list[str], **fields: Any) -> Case:
    trainer = {"kind": "script", "target": "reads.py", "args": args}
    scenario = Scenario.model_validate({"name": "n", "processes": 1, "trainer": trainer, **fields})
    return Case("n", scenario, Source("s.yaml", 1), (), ())


def run(tmp_path: Path, settings: Settings, asked: Case) -> tuple[Record, list[str]]:
    told: list[str] = []
    return run_case(asked, settings, MACHINE, case_dir=tmp_path / "case", on_wait=told.append), told


def test_a_program_reads_synthetic_data(tmp_path: Path, settings: Settings) -> None:
    # A float of seconds since the epoch tells a quarter of a microsecond: more than a millionth of a shorter job.
    (tmp_path / "reads.py").write_text(f"{READS}\nimport time\ntime.sleep(2)\n")
    data = {"samples": 5, "sequence_length": 8}
    record, _ = run(tmp_path, settings, case(["{data_file}"], data=data, measure_steps=False))
    assert record.verdict is not None
    assert record.verdict.kind is Kind.NONE, record.tail
    asset = record.assets["data"]
    job = read_document(tmp_path / "case" / "attempt-1" / "job.json")
    assert job is not None
    assert (job["command"][-1], asset.source) == (asset.path, "made")
    assert Path(asset.path).is_relative_to(tmp_path / "cache")
    assert json.loads((tmp_path / "case/attempt-1/rank-0/stdout.log").read_text()) == {"rows": 5, "offline": None}
    assert record.measurements is not None
    phases = record.measurements.phases_s
    assert list(phases)[:2] == ["assets", "lease"]
    assert phases["assets"] == record.attempts[0].assets_s
    assert record.measurements.wall_s == pytest.approx(sum(seconds or 0 for seconds in phases.values()))


def test_a_program_that_reads_nothing_has_no_such_phase(tmp_path: Path, settings: Settings) -> None:
    (tmp_path / "rows.jsonl").write_text("{}\n")
    record, _ = run(tmp_path, settings, case(["rows.jsonl"], measure_steps=False))
    assert (record.assets, record.attempts[0].assets_s) == ({}, None)
    assert record.measurements is not None
    assert "assets" not in record.measurements.phases_s


def test_data_that_cannot_be_made_is_refused_before_anything_is_leased(tmp_path: Path, settings: Settings) -> None:
    data = {"samples": 5, "sequence_length": 5, "format": "messages"}
    record, _ = run(tmp_path, settings, case(["{data_file}"], data=data))
    assert record.verdict is not None
    assert (record.verdict.kind, record.state, record.attempts) == (Kind.USER_ERROR, "finished", [])
    assert "a row of messages takes at least 6 tokens" in record.verdict.reason
    assert not (tmp_path / "locks").exists()


@pytest.mark.slow
def test_a_hub_that_does_not_answer_is_asked_again(tmp_path: Path, settings: Settings) -> None:
    pytest.importorskip("huggingface_hub")
    with socket.socket() as server:  # bound, and nobody listens
        server.bind(("127.0.0.1", 0))
        env = {"HF_ENDPOINT": f"http://127.0.0.1:{server.getsockname()[1]}", "HF_HOME": str(tmp_path / "hf")}
        asked = case(["{data_file}"], data={"path": "org/rows"}, retries={"network": 1}, env=env)
        record, told = run(tmp_path, settings, asked)
    assert record.verdict is not None
    assert (record.verdict.kind, record.verdict.transient, record.attempts) == (Kind.NETWORK, True, [])
    assert [text.partition(";")[0] for text in told if text.startswith("not launched: network: ")] == [
        f"not launched: network: {record.verdict.reason}"
    ]
    assert told.count("fetching dataset org/rows") == 2


@pytest.mark.parametrize("signal_name, said", [("SIGTERM", "SIGTERM"), ("", "Ctrl-C")])
def test_a_case_that_is_interrupted_before_its_launch_leaves_a_record(
    tmp_path: Path, settings: Settings, signal_name: str, said: str
) -> None:
    def interrupt(text: str) -> None:
        raise KeyboardInterrupt(*filter(None, [signal_name]))

    asked = case(["{model_dir}"], model={"shape": {"model_type": "llama"}})
    with pytest.raises(KeyboardInterrupt):
        run_case(asked, settings, MACHINE, case_dir=tmp_path / "case", on_wait=interrupt)
    record = read_record(tmp_path / "case" / "record.json")
    assert record.verdict is not None
    assert (record.state, record.verdict.kind, record.attempts) == ("finished", Kind.KILLED, [])
    doing = "while model and data were made or fetched, before the job was launched"
    assert record.verdict.reason == f"ended from outside ({said}) {doing}"


@pytest.mark.parametrize("args", [["x" * 131_072], ["x" * 100_000] * 80])
def test_what_the_system_would_not_start_is_the_users_error(
    tmp_path: Path, settings: Settings, args: list[str]
) -> None:
    record, _ = run(tmp_path, settings, case(args))
    assert record.verdict is not None
    assert record.verdict.kind is Kind.USER_ERROR
    assert "and the system takes" in record.verdict.reason
    assert record.attempts == []
