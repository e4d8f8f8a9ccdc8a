"""The conftest of the inner pytest runs: a runner whose cases end at once, as their scenario's first tag says.

Its GPUs are H200s.  A case with `retries` has had one attempt before, which ended with `nccl`."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from harness.leases import LeaseError
from harness.plugin import RUNNER_FACTORY, Options, Slots
from harness.record import Attempt, Kind, Lease, Measurements, Record, Verdict, write_record
from harness.scenario import expected_kind

REASONS = {
    "gpu_oom": "rank 1 asked for 2.15 GiB, 1.03 GiB of 79.25 GiB free, step 3, backward",
    "user_error": "rank 0: ValueError: no such column\x1b[31m \x07",
}


class FakeRunner:
    def __init__(self, config: pytest.Config, options: Options) -> None:
        self.options = options
        self.slots = Slots(gpus=int(os.environ.get("FAKE_GPUS", "0")), cpus=2)

    def missing(self, case: Any) -> str | None:
        needed = case.scenario.gpus or 0
        return f"needs {needed} GPUs, this machine has {self.slots.gpus}" if needed > self.slots.gpus else None

    def run(self, case: Any, *, nodeid: str, case_dir: Path) -> Record:
        tag = (*case.scenario.tags, "none")[0]
        print(f"running {case.id}")
        case_dir.mkdir(exist_ok=True)
        running = self._record(case, nodeid, "running", None)
        write_record(running, case_dir / "record.json")
        self._act(tag, case_dir / "attempt-1" / "rank-0" / "events.jsonl")
        kind = Kind(tag) if tag in set(Kind) else Kind.NONE
        record = self._record(case, nodeid, "finished", Verdict(kind=kind, reason=REASONS.get(tag, f"it was {kind}")))
        write_record(record, case_dir / "record.json")
        if tag == "dies_late":
            os._exit(9)
        return record

    def _act(self, tag: str, events: Path) -> None:
        if tag == "dies":
            os._exit(9)
        if tag == "lockless":
            raise LeaseError("/locks: no folder; set HARNESS_LOCK_DIR")
        if tag == "breaks":
            raise RuntimeError("the runner itself is broken")
        if tag == "slow":
            events.parent.mkdir(parents=True)
            lines = [{"e": "phase", "name": "steady"}, {"e": "segment", "max_steps": 20}]
            lines.append({"e": "step", "step": 7, "seconds": 0.031, "loss": 6.21})
            events.write_text("".join(json.dumps(line) + "\n" for line in lines))
            try:
                time.sleep(float(os.environ.get("FAKE_SLOW_S", "1.5")))
            except KeyboardInterrupt:
                time.sleep(2.0)  # a job takes a while to end
                (events.parents[2] / "interrupted").touch()
                raise

    def step_times(self, record: Record, case_dir: Path) -> list[float]:
        seconds = float(os.environ.get("FAKE_STEP_S", "0.25"))
        return [seconds, 2 * seconds, seconds]

    def _record(self, case: Any, nodeid: str, state: Any, verdict: Verdict | None) -> Record:
        labels = {"experiment": case.scenario.name, "identifier": self.options.session}
        earlier = [Verdict(kind=Kind.NCCL, reason="rank 0: peer gone")] if case.scenario.retries else []
        ended = [*earlier, verdict]
        return Record(
            case_id=case.id,
            nodeid=nodeid,
            session=self.options.session,
            state=state,
            scenario={"name": case.scenario.name},
            source=str(case.source),
            labels=labels | dict(case.scenario.labels) | dict(self.options.labels),
            command=["python", "train.py"],
            environment={},
            attempts=[
                Attempt(number=n, directory=f"attempt-{n}", started=1.0, lease=Lease(wait_s=0.0), verdict=each)
                for n, each in enumerate(ended, 1)
            ],
            expected=expected_kind(case.scenario.expect, [("NVIDIA H200", 141 * 2**30)] * (case.scenario.gpus or 0)),
            verdict=verdict,
            measurements=measurements() if verdict else None,
            tail=""
            if verdict is None or verdict.kind == "none"
            else "Traceback:\n\x1b[31mlast line of the log\x1b[0m\x08\n",
        )


def measurements() -> Measurements:
    values: dict[str, Any] = {name: None for name, field in Measurements.model_fields.items() if field.is_required()}
    values |= {"ranks": 1, "device": "cpu", "steps_seen": 20, "first_cut": 3, "steps_measured": 17}
    values |= {"non_pad_tokens_per_s_per_device": 12345.678, "step_time_median_s": 0.25, "host_peak_rss_bytes": 2**30}
    return Measurements(**(values | {"phases_s": {}, "tokens": {}, "segments": [], "reasons": {}}))


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RUNNER_FACTORY] = FakeRunner
