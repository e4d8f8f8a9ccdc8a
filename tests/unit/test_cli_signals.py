"""Signals from outside: the first raises, later ones are the supervisor's, and what stood before comes back."""

import os
import signal
import subprocess

import pytest

from harness.cli.signals import Signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_only_the_first_raises(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Signals() as signals:
        with pytest.raises(KeyboardInterrupt, match=number.name):
            signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)
        assert signals.received is number
    assert signal.getsignal(number) is before


def test_later_ones_go_to_the_supervisor() -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper, Signals() as signals:
        signals.job_started(sleeper.pid)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGHUP)
        assert sleeper.wait() == -signal.SIGHUP
        signal.raise_signal(signal.SIGHUP)  # it has ended


def test_after_the_end_none_raises() -> None:
    with Signals() as signals:
        signals.job_ended()
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received is None


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Signals():
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
