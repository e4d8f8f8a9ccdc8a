"""The forwarder's process: one thread forwards, the main thread watches the time, writes forwarder.json and ends all.

Aim was measured to hang for ever (a server that is gone, a full disk) and to hang again in its handlers at exit.  So no
call of it is waited for, and the process leaves by os._exit."""

import contextlib
import faulthandler
import json
import os
import select
import shutil
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from harness.probe.companions import AIM_PARENT, AIM_REPO, AIM_TIMEOUT_S
from harness.probe.layout import JobPaths, run_hash_of
from harness.probe.reading import read_document
from harness.probe.redact import redact
from harness.probe.series import Journals, labels_of

from .aim_run import AimError, AimRepo, AimRun, import_aim, is_remote, quiet, root_of
from .deadlines import ORPHAN_S, Deadlines
from .locks import locked
from .report import Report

PATIENCE = "HARNESS_AIM_TIMEOUT_S"  # seconds; takes the place of job.json's and of ORPHAN_S
RECORD_S = 10.0  # from end.json to the record with the verdict
OPEN_S = 120.0  # to import Aim and open the repo, of each; a busy machine is slow
FULL_DISK_BYTES = 4 * 2**20  # Aim allocates two logs of 1 MiB a run in advance
POLL_S = 0.1
WRITE_EVERY_S = 2.0
BACKSTOP_S = 2.0  # beyond a deadline
LOCK_FILE = ".aim-harness.lock"  # beside `.aim`, where job.json names no other


def main(argv: list[str]) -> NoReturn:
    """Forward the job directory `argv[0]`; the exit status is 0 whatever happened, forwarder.json says it."""
    with contextlib.suppress(OSError):
        os.nice(10)
    job, name = JobPaths(Path(argv[0])), os.environ.pop(AIM_REPO, "")
    document = read_document(job.job) or {}
    options = document["aim"] if isinstance(document.get("aim"), dict) else {}
    patience = os.environ.get(PATIENCE)  # of somebody who forwards a long job by hand
    timeout_s = float(patience or options.get("timeout_s") or AIM_TIMEOUT_S)
    report = Report(job.forwarder, redact(name))
    deadlines = Deadlines(timeout_s, timeout_s if patience else ORPHAN_S)
    parent = os.environ.pop(AIM_PARENT, "")
    report.write()
    forwarding = Forwarding(job, document, name, options.get("index_lock"), report, deadlines)
    thread = threading.Thread(target=forwarding.run, name="aim", daemon=True)
    _watch(job, thread, report, deadlines, timeout_s, int(parent) if parent.isdigit() else None)
    passed = deadlines.passed() or "the forwarder ended without a word"
    report.end(passed + disk_hint(name))  # unless the thread has written the end
    sys.stderr.flush()
    os._exit(0)


def _watch(
    job: JobPaths,
    thread: threading.Thread,
    report: Report,
    deadlines: Deadlines,
    timeout_s: float,
    parent: int | None,
) -> None:
    """Start the thread, and return when it is done or a deadline has passed."""
    due = 0.0
    while deadlines.passed() is None:
        if not deadlines.has_job_ended and job.end.exists():
            deadlines.job_ended()
            due = 0.0
        if not deadlines.is_orphaned and (_stdin_ended() or (parent is not None and os.getppid() != parent)):
            deadlines.orphaned()
            due = 0.0
        if time.monotonic() >= due:
            due = time.monotonic() + WRITE_EVERY_S
            report.write()
            # Should a call of Aim keep the interpreter's lock, this thread stands still, too: then C code ends all.
            left = min(deadlines.left_s(), max(timeout_s, ORPHAN_S))
            faulthandler.dump_traceback_later(max(left, 0.0) + BACKSTOP_S, exit=True)
        if thread.ident is None:
            thread.start()  # not before the time is watched
        thread.join(POLL_S)
        if not thread.is_alive():
            return


def disk_hint(name: str) -> str:
    """What to add to a reason where the repo's disk is full: Aim hangs there, or fails with another story."""
    if not name or is_remote(name):
        return ""
    folder = root_of(name)
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(folder if folder.exists() else folder.parent).free
        return f"; {free} bytes are free on the disk of {folder}" if free < FULL_DISK_BYTES else ""
    return ""


def _stdin_ended() -> bool:
    """Whether the harness, which holds the other end, is gone."""
    try:
        ready, _, _ = select.select([0], [], [], 0)
        return bool(ready) and os.read(0, 4096) == b""
    except OSError:
        return True


class Forwarding:
    """What the thread does, from the first import of Aim to the index."""

    def __init__(
        self,
        job: JobPaths,
        document: dict[str, Any],
        name: str,
        lock: Any,
        report: Report,
        deadlines: Deadlines,
    ) -> None:
        self._job, self._document, self._name = job, document, name
        self._report, self._deadlines = report, deadlines
        self._journals = Journals(job)
        default = None if is_remote(name) or not name else root_of(name) / LOCK_FILE
        self._lock = Path(lock) if lock else default

    def run(self) -> None:
        """Forward, and write the end of forwarder.json; never raises."""
        try:
            reason = self._forward()
        except AimError as error:
            reason = str(error)
        except BaseException as error:
            traceback.print_exc()
            told = f"{type(error).__name__}: {error}" if str(error) else f"{type(error).__name__} without a message"
            reason = f"{told} (while {self._deadlines.stage})"
        self._report.note(skipped=self._journals.skipped)
        self._report.end(None if reason is None else redact(reason) + disk_hint(self._name))

    def _forward(self) -> str | None:
        """Do all of it; returns what is missing in Aim, None when nothing is."""
        if not self._name or not self._document:
            raise AimError(f"{AIM_REPO} is not set" if not self._name else f"{self._job.job} cannot be read")
        quiet()
        self._deadlines.enter("importing aim", OPEN_S)
        self._report.note(aim=import_aim(sys.executable))
        self._deadlines.enter("waiting for the repo's lock")
        with locked(self._lock):
            self._deadlines.enter("opening the repo", OPEN_S)
            repo = AimRepo(self._name)
            self._report.pending = repo.pending
            run_hash, name = run_hash_of(str(self._document.get("job_id"))), str(self._document.get("case_id"))
            run = repo.open_run(run_hash, self._experiment, name, self._tags)
            run.describe(self._description({}), self._experiment)
        self._report.note(run_hash=run.hash)
        missing = [self._follow(repo, run), self._finish(run)]
        self._index(repo, run)
        return "; ".join(filter(None, missing)) or None

    def _follow(self, repo: AimRepo, run: AimRun) -> str | None:
        """Track what the journals hold and what is added, until the job has ended and all is read."""
        self._deadlines.enter("forwarding")
        labels: dict[str, Any] = {}
        while True:
            ended = self._deadlines.has_job_ended or self._job.end.exists()  # before reading: nothing is added after it
            self._deadlines.wake.clear()
            points = self._journals.read()
            for number, point in enumerate(points or (), 1):
                run.track(point)
                self._report.add(1)
                if number % 256 == 0 and self._deadlines.is_short():
                    break
            self._report.note(skipped=self._journals.skipped)
            if self._journals.labels != labels:  # found by them while the job runs, too
                labels = dict(self._journals.labels)
                run.describe(self._description({}), self._experiment)
            if not repo.is_there(run.hash):
                raise AimError(f"the run's files are gone from the repo {redact(repo.name)}: was it deleted?")
            if points is None and ended:
                return None
            if self._deadlines.is_short():
                return (
                    "the time was over before all was forwarded" if ended else "the harness died before the job's end"
                )
            if points is None:
                self._deadlines.wake.wait(1.0)

    def _finish(self, run: AimRun) -> str | None:
        """Wait for the verdict, write it and close the run."""
        self._deadlines.enter("waiting for the record")
        found = self._found_record()
        patience = time.monotonic() + (0.0 if self._document.get("standalone") else RECORD_S)
        while found is None and time.monotonic() < patience and not self._deadlines.is_short():
            if self._deadlines.is_orphaned:
                break  # nobody is left to write it
            time.sleep(POLL_S)
            found = self._found_record()
        self._deadlines.enter("writing the verdict")
        run.describe(self._description(found or {}), self._experiment)
        self._deadlines.enter("closing the run", OPEN_S)
        run.close()
        return None if found else "nobody has left a verdict"

    def _index(self, repo: AimRepo, run: AimRun) -> None:
        self._deadlines.enter("waiting for the repo's lock to index the run")
        with locked(self._lock):
            self._deadlines.enter("indexing the run", OPEN_S)
            repo.index(run.hash)
            self._deadlines.enter("reading the run back", OPEN_S)
            job_id, series = repo.read_back(run.hash)
        if job_id != self._document.get("job_id") or series < len(run.series):
            raise AimError(f"the run is not whole when read back: {series} of {len(run.series)} series")
        self._report.note(indexed=True)

    @property
    def _labels(self) -> dict[str, Any]:
        """Those that the program has given itself so far, and over them those given at launch."""
        return labels_of(self._document, self._journals.labels)

    @property
    def _experiment(self) -> str | None:
        experiment = self._labels.get("experiment")
        return experiment if experiment is None or isinstance(experiment, str) else json.dumps(experiment)

    @property
    def _tags(self) -> list[str]:
        scenario = self._document.get("scenario")
        tags = self._document.get("tags", scenario.get("tags") if isinstance(scenario, dict) else None)
        return [str(tag) for tag in tags] if isinstance(tags, list) else []

    @property
    def _record(self) -> Path:
        return self._job.root.parent / "record.json"

    def _found_record(self) -> dict[str, Any] | None:
        """The verdict on this attempt: a retry may have begun, of which the record tells too.

        A program that began its job itself has no record; its end.json says what it knows."""
        if self._document.get("standalone"):
            verdict = (read_document(self._job.end) or {}).get("verdict")
            return verdict if isinstance(verdict, dict) else None
        record = read_document(self._record) or {}
        attempts = record.get("attempts")
        for attempt in attempts if isinstance(attempts, list) else []:
            if isinstance(attempt, dict) and attempt.get("number") == self._document.get("attempt"):
                verdict = attempt.get("verdict")
                if isinstance(verdict, dict) and verdict.get("kind"):
                    return verdict
        verdict = record.get("verdict")
        return verdict if record.get("state") == "finished" and not attempts and isinstance(verdict, dict) else None

    def _description(self, verdict: dict[str, Any]) -> dict[str, Any]:
        """What stands under `run["benchmark"]`."""
        return {
            "case_id": self._document.get("case_id"),
            "job_id": self._document.get("job_id"),
            "attempt": self._document.get("attempt"),
            "labels": self._labels,
            "scenario": self._document.get("scenario"),
            "verdict": verdict.get("kind"),
            "reason": verdict.get("reason"),
            "rank": verdict.get("rank"),
            "step": verdict.get("step"),
            "record": str(self._record),
            "job": str(self._job.root),
        }
