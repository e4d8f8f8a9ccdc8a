"""Copies what rank 0 writes into its logs to the output of `harness exec`, as it comes."""

import os
import threading
import time
from pathlib import Path

_POLL_S = 0.1
_CHUNK = 64 * 1024
_LAST_S = 10.0  # how long a reader that does not read can hold up the end


class Echo:
    """A thread that follows files and copies their bytes to descriptors; the job never waits for it."""

    def __init__(self, *streams: tuple[Path, int]) -> None:
        self._streams = [_Stream(path, descriptor) for path, descriptor in streams]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="harness-echo", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Copy what is left and end: the files do not grow any more."""
        self._stop.set()
        self._thread.join(_LAST_S)

    def _follow(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._stop.wait(_POLL_S)
            for stream in self._streams:
                stream.copy(self._stop)
        for stream in self._streams:
            stream.close()


class _Stream:
    def __init__(self, path: Path, target: int) -> None:
        self._path = path
        self._target = target
        self._source: int | None = None
        self._broken = False

    def copy(self, stop: threading.Event) -> None:
        """Copy everything that is there by now."""
        if self._broken or not self._opened():
            return
        assert self._source is not None
        try:
            while data := os.read(self._source, _CHUNK):
                self._write(data, stop)
        except OSError:  # nobody reads any more, or a failing disk: the log has it all
            self._broken = True

    def close(self) -> None:
        if self._source is not None:
            os.close(self._source)

    def _opened(self) -> bool:
        if self._source is None:
            try:
                self._source = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return False  # the rank has not started
        return True

    def _write(self, data: bytes, stop: threading.Event) -> None:
        give_up: float | None = None
        while data:
            try:
                data = data[os.write(self._target, data) :]
            except BlockingIOError:  # somebody has made the descriptor non-blocking
                now = time.monotonic()
                give_up = give_up or (now + _LAST_S if stop.is_set() else None)
                if give_up is not None and now > give_up:
                    raise
                time.sleep(_POLL_S)
