"""Ending early: signals, and the workers of an interrupted session.

Without this, SIGTERM ends pytest at once (no junit.xml, no end of a fixture), and xdist gives its workers 10 seconds,
of which 5 pass before they are told."""

import os
import signal
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from harness.plugin.session import State


def install_signals(state: State) -> None:
    """End as after Ctrl-C on SIGTERM and on a lost terminal, so that jobs are ended and reports written."""
    if threading.current_thread() is not threading.main_thread():
        return
    ours: dict[int, Any] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGHUP: signal.SIG_DFL}
    if state.worker:
        ours[signal.SIGINT] = signal.default_int_handler
    for number, usual in ours.items():
        if signal.getsignal(number) is usual:  # `nohup` and other plugins know what they want
            state.signals[number] = usual

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in state.signals:
            signal.signal(each, signal.SIG_IGN)  # a second one must not cut the cleaning up short
        raise KeyboardInterrupt(signal.Signals(number).name)

    for number in state.signals:
        signal.signal(number, interrupt)


def restore_signals(state: State) -> None:
    for number, handler in state.signals.items():
        signal.signal(number, handler)
    state.signals.clear()


class Workers:
    """Tells xdist's workers at once that the session ends, and waits while they end their jobs and write records."""

    patience_s = 30.0  # a job's grace, and what its supervisor needs after it

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_keyboard_interrupt(self) -> None:
        session: Any = self._config.pluginmanager.getplugin("dsession")
        nodes = list(session.sched.nodes) if session is not None and session.sched is not None else []
        for node in nodes:
            if node.gateway.spec.popen:
                with suppress(OSError):
                    os.kill(node.gateway._rinfo().pid, signal.SIGTERM)
        deadline = time.monotonic() + self.patience_s
        for node in nodes:
            with suppress(Exception):  # it died, or takes too long: xdist kills it, and the supervisor ends its job
                node.channel.waitclose(max(0.0, deadline - time.monotonic()))
