"""Signals from outside (Kubernetes, a closed terminal, Ctrl-C): the first ends the job in order, others at once."""

import contextlib
import os
import signal
from types import FrameType, TracebackType
from typing import Any, Self

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class Signals:
    """Within the `with` block the first signal raises KeyboardInterrupt, whose text names it.

    Later ones go to the job's supervisor, which then grants no more time; they never cut off the writing of results."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None  # the first
        self._raises = False
        self._supervisor: int | None = None  # pidfd
        self._usual: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._raises = True
        for number in _ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` knows what it wants
                self._usual[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._raises = False
        for number, usual in self._usual.items():
            signal.signal(number, usual)
        if self._supervisor is not None:
            os.close(self._supervisor)

    def job_started(self, supervisor_pid: int) -> None:
        """Whom later signals are for; a descriptor, since the number may become another process's."""
        with contextlib.suppress(OSError):  # a kernel before 5.3: later signals are lost
            self._supervisor = os.pidfd_open(supervisor_pid)

    def job_ended(self) -> None:
        """From here on no signal raises: what is left to do is short."""
        self._raises = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._raises:
            self._raises = False
            self.received = signal.Signals(number)
            raise KeyboardInterrupt(self.received.name)
        if self._supervisor is not None and self.received is not None:
            with contextlib.suppress(OSError):  # it has ended
                signal.pidfd_send_signal(self._supervisor, signal.Signals(number))
