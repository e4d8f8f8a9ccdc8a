"""`harness exec` on real programs: exit code, termination log, record and output, whatever becomes of the job."""

import json
import signal

import pytest

from harness.exits import EXIT_CODES
from harness.leases import cpu_slots, lease
from harness.record import Kind, Record
from tests.acceptance.conftest import Ended, Pod

pytestmark = pytest.mark.slow


def check(ended: Ended, kind: Kind, pod: Pod) -> Record:
    """Exit code, termination log and record tell the same."""
    assert ended.record is not None, ended.stderr
    verdict = ended.record.verdict
    assert verdict is not None
    assert (verdict.kind, ended.code) == (kind, EXIT_CODES[kind]), (verdict, ended.stderr)
    assert ended.record.state == "finished"
    assert ended.log.pop("kind") == kind
    assert ended.log.pop("record") == str(pod.job_dir / "record.json")
    assert ended.log.pop("rank", None) == (None if verdict.rank is None else str(verdict.rank))
    assert ended.log.pop("step", None) == (None if verdict.step is None else str(verdict.step))
    assert ended.log.pop("reason", "") == verdict.reason
    assert ended.log == {}
    assert f"harness: verdict {kind}" in ended.stderr
    assert f"harness: record {pod.job_dir}/record.json\n" in ended.stderr
    assert pod.living() == []
    return ended.record


def test_success(pod: Pod) -> None:
    (pod.root / "labels.yaml").write_text("team: search\nrun: file\n")
    ended = pod.run("--labels-file", "labels.yaml", "--label", "run=7", "--", "train.py", "success")
    record = check(ended, Kind.NONE, pod)
    given = {"experiment": "train", "identifier": record.session, "team": "search", "run": "7"}
    assert record.labels == record.labels | given
    assert record.measurements is not None
    assert record.measurements.steps_seen == 6
    assert f"step_time_median_s {record.measurements.step_time_median_s:.6g}" in ended.stderr
    assert "train_loss" in ended.stdout  # what the program printed, and nothing of the harness's
    assert "harness" not in ended.stdout
    job = json.loads((pod.job_dir / "attempt-1" / "job.json").read_bytes())
    assert (job["cwd"], job["command"][-2:]) == (str(pod.root), ["train.py", "success"])


@pytest.mark.parametrize(
    "mode, ranks, kind, reason",
    [
        ("user-error", 1, Kind.USER_ERROR, "evaluation_strategy"),
        ("oom", 1, Kind.GPU_OOM, "asked for 2.15 GiB"),
        ("nccl", 1, Kind.NCCL, "ncclRemoteError"),
        ("idle", 1, Kind.NO_TRAINING, "trainable tensors changed in 6 steps"),
        ("peer-death", 2, Kind.UNKNOWN, "rank 1 ended with exit code 7 and no exception was seen"),
        ("sigkill", 2, Kind.KILLED, "rank 1 was ended by SIGKILL"),
    ],
)
def test_a_bad_end(pod: Pod, mode: str, ranks: int, kind: Kind, reason: str) -> None:
    record = check(pod.run("--nproc", str(ranks), "--", "train.py", mode), kind, pod)
    assert record.verdict is not None
    assert reason in record.verdict.reason
    assert record.scenario["processes"] == ranks


def test_what_was_measured_before_memory_ran_out_in_saving(pod: Pod) -> None:
    record = check(pod.run("--", "train.py", "oom-save"), Kind.GPU_OOM, pod)
    assert record.verdict is not None
    assert (record.verdict.phase, record.verdict.part, record.verdict.step) == ("save", "save", None)
    assert record.measurements is not None
    assert record.measurements.steps_seen == 6
    assert record.measurements.step_time_median_s


def test_a_program_that_is_not_there_and_a_second_attempt(pod: Pod) -> None:
    refused = check(pod.run("--", "not_there.py"), Kind.USER_ERROR, pod)
    assert refused.attempts == []
    for number in (1, 2):
        record = check(pod.run("--", "-m", "json.tool", "--help"), Kind.NO_TRAINING, pod)
        assert [attempt.directory for attempt in record.attempts] == [f"attempt-{n + 1}" for n in range(number)]


def test_the_time_limit(pod: Pod) -> None:
    target = pod.program("import time\ntime.sleep(300)\n")
    check(pod.run("--time-limit", "1s", "--", target), Kind.TIMEOUT, pod)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT], ids=lambda s: s.name)
def test_a_signal_from_outside(pod: Pod, number: signal.Signals) -> None:
    said = "print('ready', flush=True); print('too', file=sys.stderr)"
    target = pod.program(f"import sys, time\n{said}\ntime.sleep(300)\n")
    process = pod.start("--", target)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"  # copied while the job runs
    process.send_signal(number)
    ended = pod.end(process)
    record = check(ended, Kind.KILLED, pod)
    assert record.verdict is not None
    assert number.name in record.verdict.reason
    assert "too\n" in ended.stderr


def test_a_second_signal_ends_the_grace(pod: Pod) -> None:
    process = pod.start("--", "tree.py", str(pod.root / "token"), "300")
    assert process.stdout is not None
    assert process.stdout.readline() == "tree stands\n"
    process.send_signal(signal.SIGTERM)
    journal = pod.job_dir / "attempt-1" / "node-0" / "supervisor.jsonl"
    while b'"e":"signal"' not in journal.read_bytes():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    check(pod.end(process), Kind.KILLED, pod)
    events = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [event["name"] for event in events if event["e"] == "signal"] == ["SIGTERM", "SIGTERM"]
    asked, killed = (next(e["m"] for e in events if e["e"] == name) for name in ("signal", "killed"))
    assert killed - asked < 10.0  # the grace


def test_a_signal_while_it_waits_for_a_lease(pod: Pod) -> None:
    slots = cpu_slots()
    with lease(slots, len(slots), what="test", lock_dir=pod.root / "locks"):
        process = pod.start("--", "-m", "json.tool", "--help")
        assert process.stderr is not None
        while "waiting for" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        ended = pod.end(process)
    assert ended.code == EXIT_CODES[Kind.KILLED]
    assert ended.log == {"kind": "killed", "reason": "ended from outside by SIGTERM before the job was launched"}
    assert ended.record is None


def test_a_long_reason_and_a_long_path_in_four_byte_letters(pod: Pod) -> None:
    for _ in range(14):
        pod.job_dir /= "語" * 70
    pod.job_dir.mkdir(parents=True)
    ended = pod.run("--", pod.program("raise ValueError('💥' * 3000)\n"))
    assert ended.code == EXIT_CODES[Kind.USER_ERROR]
    data = pod.log.read_bytes()
    assert len(str(pod.job_dir).encode()) + 400 * 4 > 4096
    assert 4000 < len(data) <= 4096
    assert data.decode().splitlines()[-1] == f"record: {pod.job_dir}/record.json"
    assert ended.log["reason"].endswith("💥…")


def test_a_termination_log_that_cannot_be_written_is_no_failure(pod: Pod) -> None:
    ended = pod.run("--", pod.program("print('fine')\n"), TERMINATION_LOG_FILE=str(pod.root / "absent" / "log"))
    assert ended.code == EXIT_CODES[Kind.NO_TRAINING]
    assert "harness: warning: no termination log" in ended.stderr


def test_quiet(pod: Pod) -> None:
    ended = pod.run("--quiet", "--", pod.program("print('words')\n"))
    assert (ended.code, ended.stdout) == (EXIT_CODES[Kind.NO_TRAINING], "")
    assert (pod.job_dir / "attempt-1" / "rank-0" / "stdout.log").read_text() == "words\n"


def test_a_secret_stays_in_the_raw_logs(pod: Pod) -> None:
    secrets = {"HF_TOKEN": "correct-horse-battery", "PLAIN": "correct-horse-battery"}
    option, label = "staple-and-more-staples", "a-label-nobody-should-see"
    ended = pod.run("--label", f"api_key={label}", "--", "leak.py", "--hub-token", option, option, **secrets)
    assert ended.code != 0
    assert "cannot log in" in ended.log["reason"]
    raw = {"stdout.log", "stderr.log", "launcher.log"}
    written = [p for p in (*pod.job_dir.rglob("*"), pod.log) if p.is_file() and p.name not in raw]
    assert any(path.name == "error.json" for path in written)
    for secret in (option, label, *secrets.values()):
        assert [path for path in written if secret.encode() in path.read_bytes()] == []
        assert not [line for line in ended.stderr.splitlines() if line.startswith("harness:") and secret in line]
