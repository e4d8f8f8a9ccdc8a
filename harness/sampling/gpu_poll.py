"""Samples GPUs in threads of their own, so that a driver that does not answer never stops the host's samples."""

import os
import threading
import time
from collections.abc import Collection
from typing import Any

from harness.probe.journal import JournalFile
from harness.sampling import host
from harness.sampling.gpu_reader import GPU_EVENTS, GpuReader, Lost, Unit

_XID_WAIT_S = 0.5
_STALLED_S = 5.0  # a call of a healthy driver takes micro- to milliseconds, its start without persistence mode seconds
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO of the kernel
_COLUMNS = [field for field in GPU_EVENTS["gpu_sample"] if field not in ("uuid", "poll_s")]


class GpuPoll:
    """Writes the events of GPU_EVENTS until it is told to stop."""

    def __init__(
        self,
        reader: GpuReader,
        journal: JournalFile,
        interval_s: float,
        root: int,
        *,
        with_root: bool,
        without: Collection[int],
        proc: str = "/proc",
    ) -> None:
        self._reader, self._journal, self._interval_s = reader, journal, interval_s
        self._root, self._with_root, self._without, self._proc = root, with_root, without, proc
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-poll", daemon=True)
        self._asked: tuple[float, Any] | None = None  # since when, and what: the answer is awaited
        self._told_of: Any = None  # the stall that was told
        self._own_pids_seen = _is(f"{proc}/self/ns/pid", _INITIAL_PID_NAMESPACE)

    def start(self) -> None:
        self._thread.start()

    def stop(self, grace_s: float) -> bool:
        """Take a last sample; False when the driver has not answered by then."""
        self._stop.set()
        self._thread.join(grace_s)
        return not self._thread.is_alive()

    def tell_of_stall(self) -> None:
        """Write `gpu_stalled`, once for a call that has been waited for too long."""
        asked, doing = self._asked, self._reader.doing
        if asked is None or self._told_of == asked:
            return
        seconds = time.monotonic() - asked[0]
        if seconds > max(_STALLED_S, 2 * self._interval_s):
            self._told_of = asked
            self._journal.write("gpu_stalled", uuid=doing[0], call=doing[1], seconds=round(seconds, 3))

    def _run(self) -> None:
        try:
            self._poll_regularly()
        except Exception as error:  # whatever it is: the host is sampled on, and the record says why GPUs are not
            self._asked = None
            self._journal.write("gpu_error", message=f"{type(error).__name__}: {error}")

    def _poll_regularly(self) -> None:
        self._asked = (time.monotonic(), "open")
        units = self._reader.open()
        self._asked = None
        described: dict[str, tuple[str, ...]] = {}
        for unit in units:
            if unit.reason is not None:
                self._describe(unit)
        units = [unit for unit in units if unit.reason is None]
        if units:
            threading.Thread(target=self._wait_for_xids, name="gpu-xid", daemon=True).start()
        due = time.monotonic()
        while units:
            stopping = self._stop.is_set()
            for unit in list(units):
                try:
                    sample = self._sample(unit)
                except Lost as lost:
                    units.remove(unit)
                    if unit.uuid not in described:
                        self._describe(unit)
                    self._journal.write("gpu_lost", uuid=unit.uuid, reason=str(lost))
                    continue
                if described.get(unit.uuid) != tuple(unit.unavailable):
                    described[unit.uuid] = tuple(unit.unavailable)
                    self._describe(unit)
                self._journal.write("gpu_sample", **sample)
            if stopping:
                return
            due = max(due + self._interval_s, time.monotonic())
            self._stop.wait(max(0.0, due - time.monotonic()))

    def _describe(self, unit: Unit) -> None:
        facts = {field: unit.facts.get(field) for field in GPU_EVENTS["gpu"]}
        told = {"uuid": unit.uuid, "unavailable": dict(unit.unavailable), "reason": unit.reason}
        self._journal.write("gpu", **facts | told)

    def _sample(self, unit: Unit) -> dict[str, Any]:
        begun = time.monotonic()
        self._asked = (begun, unit.uuid)
        try:
            values = self._reader.poll(unit)
        finally:
            self._asked = None
        if (processes := values.get("processes")) is not None:
            values["processes"] = self._owned(processes)
        columns = {column: values.get(column) for column in _COLUMNS}
        return {"uuid": unit.uuid, **columns, "poll_s": round(time.monotonic() - begun, 6)}

    def _owned(self, processes: list[list[Any]]) -> list[list[Any]]:
        """Each with whether it is of the job."""
        below = [
            host.is_below(pid, self._root, self._without, with_root=self._with_root, proc=self._proc)
            for pid, _ in processes
        ]
        # In a container the driver may name processes by the host's pids, which mean others here or none.
        self._own_pids_seen = self._own_pids_seen or any(below)
        trusted = [own if own or self._own_pids_seen else None for own in below]
        return [[pid, held, own] for (pid, held), own in zip(processes, trusted, strict=True)]

    def _wait_for_xids(self) -> None:
        while not self._stop.is_set():
            try:
                found = self._reader.wait_for_xid(_XID_WAIT_S)
            except Lost:
                return
            if found is not None:
                self._journal.write("xid", uuid=found[0], xid=found[1])


def _is(link: str, text: str) -> bool:
    try:
        return os.readlink(link) == text
    except OSError:
        return False
