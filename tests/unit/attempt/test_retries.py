"""What is tried again, how long it waits, and what a case with several attempts leaves."""

import json
from pathlib import Path

import pytest

from harness.attempt import Settings, run_case
from harness.attempt.retries import RETRY_WAIT_MAX_S, is_retried, retry_wait_s
from harness.engines.local import LocalJob
from harness.leases import BusyError
from harness.probe.layout import JobPaths
from harness.record import Kind, Record, Verdict, read_record
from harness.scenario import Case, Expect, Scenario, Source, Trainer
from tests.unit.attempt.test_run import MACHINE
from tests.unit.reports.records import make_record

# Ends as NCCL does where a peer is gone, as often as its first argument says; then as its second says.
FLAKY = """
import os, sys
class DistBackendError(RuntimeError):
    pass
DistBackendError.__module__ = "torch.distributed"
times = len([name for name in os.listdir(".") if name.startswith("ended-")])
open(f"ended-{times}", "w").close()
if times < int(sys.argv[1]):
    raise DistBackendError("NCCL error in: x.cpp:3356, remote process exited or there was a network error")
if sys.argv[2] == "fails":
    raise ValueError("no such column")
"""


def verdict_of(kind: Kind, transient: bool | None = True) -> Verdict:
    return Verdict(kind=kind, reason="why", transient=transient)


NCCL, NETWORK, TIMEOUT = (verdict_of(kind) for kind in (Kind.NCCL, Kind.NETWORK, Kind.TIMEOUT))


@pytest.mark.parametrize(
    "verdict, retries, earlier, retried",
    [
        pytest.param(NCCL, {}, [], False, id="none-wanted"),
        pytest.param(NCCL, {"nccl": 1}, [], True, id="first"),
        pytest.param(NCCL, {"nccl": 1}, [NCCL], False, id="used-up"),
        pytest.param(NCCL, {"nccl": 2}, [NCCL], True, id="second"),
        pytest.param(NCCL, {"network": 2}, [], False, id="another-kind"),
        pytest.param(NCCL, {"nccl": 1, "network": 1}, [NETWORK], True, id="each-kind-has-its-own"),
        pytest.param(NCCL, {"any": 1}, [], True, id="any"),
        pytest.param(NCCL, {"any": 1}, [NETWORK], False, id="any-is-shared"),
        pytest.param(TIMEOUT, {"nccl": 1, "any": 1}, [NCCL], True, id="a-named-kind-takes-none-of-any"),
        pytest.param(NCCL, {"nccl": 0, "any": 5}, [], False, id="a-named-kind-takes-none-from-any"),
        pytest.param(NCCL, {"any": 0}, [], False, id="zero"),
        pytest.param(verdict_of(Kind.NCCL, None), {"any": 5}, [], False, id="nobody-knows"),
        pytest.param(verdict_of(Kind.NCCL, False), {"nccl": 5}, [], False, id="lasting"),
        pytest.param(verdict_of(Kind.NONE, None), {"any": 5}, [], False, id="trained"),
        pytest.param(verdict_of(Kind.GPU_OOM), {"any": 5}, [], False, id="expected"),
        pytest.param(None, {"any": 5}, [], False, id="no-verdict"),
    ],
)
def test_what_is_tried_again(
    verdict: Verdict | None, retries: dict[str, int], earlier: list[Verdict], retried: bool
) -> None:
    record = make_record(verdict=verdict, expected=Kind.GPU_OOM)
    assert is_retried(record, retries, earlier) is retried


def test_the_wait_doubles_up_to_a_limit_and_differs_between_cases() -> None:
    waits = [retry_wait_s(number, 10.0, "case") for number in range(1, 101)]
    for number, wait in enumerate(waits):
        longest = min(RETRY_WAIT_MAX_S, 10.0 * 2**number)
        assert longest / 2 <= wait <= longest
    assert waits == [retry_wait_s(number, 10.0, "case") for number in range(1, 101)]
    assert len({retry_wait_s(1, 10.0, f"case-{number}") for number in range(20)}) == 20
    assert retry_wait_s(3, 0.0, "case") == 0.0


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "flaky.py").write_text(FLAKY)
    return Settings(
        session="s",
        session_dir=tmp_path,
        base_dir=tmp_path,
        lock_dir=tmp_path / "locks",
        grace_s=0.5,
        retry_wait_s=0.01,
    )


def case_with(times: int, then: str, expect: Expect | None = None, **retries: int) -> Case:
    trainer = Trainer(kind="script", target="flaky.py", args=[str(times), then])
    scenario = Scenario(name="flaky", processes=1, trainer=trainer, measure_steps=False, retries=retries, expect=expect)
    return Case("flaky-1proc", scenario, Source("flaky.yaml", 1), (), ())


def kinds(record: Record) -> list[str | None]:
    return [attempt.verdict.kind.value if attempt.verdict else None for attempt in record.attempts]


@pytest.mark.parametrize(
    "case, ended",
    [
        pytest.param(case_with(1, "trains", any=2), ["nccl", "none"], id="passes-on-attempt-2"),
        pytest.param(case_with(1, "fails", any=2), ["nccl", "user_error"], id="fails-for-good-on-attempt-2"),
        pytest.param(case_with(9, "", nccl=2), ["nccl", "nccl", "nccl"], id="used-up"),
        pytest.param(case_with(0, "fails", any=2), ["user_error"], id="not-transient"),
        pytest.param(case_with(9, "", network=2), ["nccl"], id="another-kind"),
        pytest.param(case_with(9, "", Expect(kind="nccl"), any=2), ["nccl"], id="expected"),
        pytest.param(case_with(1, "trains", Expect(kind="crash"), any=2), ["nccl", "none"], id="not-the-expected"),
    ],
)
def test_every_attempt_is_kept_with_its_verdict(
    tmp_path: Path, settings: Settings, case: Case, ended: list[str]
) -> None:
    told: list[str] = []
    record = run_case(case, settings, MACHINE, case_dir=tmp_path / "case", on_wait=told.append)
    assert record == read_record(tmp_path / "case" / "record.json")
    assert kinds(record) == ended
    assert [attempt.directory for attempt in record.attempts] == [f"attempt-{n}" for n in range(1, len(ended) + 1)]
    assert record.verdict == record.attempts[-1].verdict
    assert record.state == "finished"
    assert (ended[-1] == "none") is (record.tail == "")
    assert all((tmp_path / "case" / attempt.directory / "end.json").is_file() for attempt in record.attempts)
    assert [text.partition(";")[0] for text in told] == [
        f"attempt {attempt.number} ended: nccl: {attempt.verdict.reason}"
        for attempt in record.attempts[:-1]
        if attempt.verdict is not None
    ]
    events = [json.loads(line) for line in (tmp_path / "leases.jsonl").read_text().splitlines()]
    leases = [event["e"] for event in events if event["e"] in ("acquired", "released")]
    assert leases == ["acquired", "released"] * len(ended)


def interrupt(_: str) -> None:
    raise KeyboardInterrupt


def busy(_: str) -> None:
    raise BusyError("GPU-1 used by process 7")


def test_ctrl_c_while_it_waits_leaves_the_record_of_the_last_attempt(tmp_path: Path, settings: Settings) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_case(case_with(1, "trains", any=1), settings, MACHINE, case_dir=tmp_path / "case", on_wait=interrupt)
    record = read_record(tmp_path / "case" / "record.json")
    assert record.state == "finished"
    assert record.verdict is not None
    assert record.verdict.kind is Kind.NCCL
    assert not (tmp_path / "case" / "attempt-2").exists()


def test_ctrl_c_in_the_second_attempt_leaves_the_record_of_that_one(tmp_path: Path, settings: Settings) -> None:
    started: list[str] = []

    def start(paths: JobPaths, job: LocalJob) -> None:
        started.append(paths.root.name)
        if len(started) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_case(case_with(9, "", any=9), settings, MACHINE, case_dir=tmp_path / "case", on_start=start)
    record = read_record(tmp_path / "case" / "record.json")
    assert (record.state, started) == ("finished", ["attempt-1", "attempt-2"])
    assert record.attempts[0].verdict is not None
    assert record.attempts[0].verdict.kind is Kind.NCCL
    assert record.verdict is not None
    assert record.verdict == record.attempts[1].verdict


def test_gpus_that_are_not_left_for_a_retry_do_not_undo_the_attempt_before(tmp_path: Path, settings: Settings) -> None:
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        if len(told) == 1:
            busy(text)

    case = case_with(1, "trains", any=1)
    record = run_case(case, settings, MACHINE, case_dir=tmp_path / "case", on_wait=tell)
    assert kinds(record) == ["nccl"]
    assert record == read_record(tmp_path / "case" / "record.json")
    assert told[-1] == "not tried again: GPU-1 used by process 7"


def test_a_case_that_waits_still_runs_for_who_reads_its_record(tmp_path: Path, settings: Settings) -> None:
    seen: list[Record] = []

    def look(_: str) -> None:
        seen.append(read_record(tmp_path / "case" / "record.json"))

    run_case(case_with(1, "trains", any=1), settings, MACHINE, case_dir=tmp_path / "case", on_wait=look)
    assert [(record.state, record.verdict, kinds(record)) for record in seen] == [("running", None, ["nccl"])]
