"""Which exception a rank is said to have ended by, and how long it waits for its device."""

import contextlib
import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.probe import hooks
from harness.probe.journal import JournalFile
from harness.probe.layout import JobPaths
from harness.probe.measure import AFTER_END_S, AFTER_ERROR_S, Meter


@pytest.fixture
def meter(tmp_path: Path) -> Iterator[Meter]:
    job = JobPaths(tmp_path)
    made = Meter(job, 0, JournalFile(job.events(0)), set())
    before = logging.getLogRecordFactory()
    hooks.watch_log(made)
    yield made
    logging.setLogRecordFactory(before)
    made.end()


Train = Callable[[BaseException | None], None]


def train_of(meter: Meter) -> Train:
    """A Trainer.train() that ends as told."""

    def train(error: BaseException | None) -> None:
        meter.train_entered(None)
        try:
            if error is not None:
                raise error
        except BaseException as left:
            meter.train_left(left)
            raise
        meter.train_left(None)

    return train


def run(meter: Meter, program: Callable[[Train], None]) -> dict[str, Any] | None:
    """Run a program as `start.main` does; its error.json."""
    try:
        program(train_of(meter))
    except BaseException as error:
        meter.left(error)
    else:
        meter.left(None)
    path = meter.job.error(0)
    return json.loads(path.read_text()) if path.exists() else None


def handled(train: Train) -> None:
    with contextlib.suppress(MemoryError):
        train(MemoryError("handled"))


def another_leaves(train: Train) -> None:
    handled(train)
    raise KeyError


def another_behind_an_exit(train: Train) -> None:
    handled(train)
    try:
        raise KeyError
    except KeyError:
        sys.exit(3)


def wrapped(train: Train) -> None:
    try:
        train(MemoryError())
    except MemoryError as error:
        raise RuntimeError("training failed") from error


def the_same(train: Train) -> None:
    train(MemoryError())


def the_same_behind_an_exit(train: Train) -> None:
    try:
        train(MemoryError())
    except MemoryError:
        sys.exit(1)


def swallowed(train: Train) -> None:
    handled(train)
    sys.exit(1)


def swallowed_and_another_logged(train: Train) -> None:
    handled(train)
    logged_alone(train)


def logged_alone(train: Train) -> None:
    try:
        raise OSError
    except OSError:
        logging.getLogger("x").exception("failed")
    sys.exit(1)


def logged_and_left(train: Train) -> None:
    try:
        train(MemoryError())
    except MemoryError:
        logging.getLogger("x").exception("failed")
        raise


def kept_for_later(train: Train) -> None:
    kept = None
    try:
        train(MemoryError())
    except MemoryError as error:
        kept = error
    train(None)
    assert kept is not None
    raise kept


def outlived(train: Train) -> None:
    handled(train)
    train(None)
    sys.exit(4)


def interrupted(train: Train) -> None:
    handled(train)
    raise KeyboardInterrupt


def interrupted_behind_an_exit(train: Train) -> None:
    handled(train)
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        sys.exit(1)


@pytest.mark.parametrize(
    "program, cls, where",
    [
        (another_leaves, "KeyError", "main"),
        (another_behind_an_exit, "KeyError", "exit"),
        (wrapped, "RuntimeError", "main"),
        (the_same, "MemoryError", "train"),
        (the_same_behind_an_exit, "MemoryError", "train"),
        (swallowed, "MemoryError", "train"),
        (swallowed_and_another_logged, "MemoryError", "train"),
        (logged_alone, "OSError", "log"),
        (logged_and_left, "MemoryError", "train"),
        (kept_for_later, "MemoryError", "main"),
        (outlived, "SystemExit", "exit"),
    ],
)
def test_the_exception_that_left_the_program_is_its_end(
    meter: Meter, program: Callable[[Train], None], cls: str, where: str
) -> None:
    error = run(meter, program)
    assert error is not None
    assert (error["type"], error["where"]) == (f"builtins.{cls}", where)


@pytest.mark.parametrize("program", [handled, interrupted, interrupted_behind_an_exit])
def test_a_good_end_and_an_interruption_are_nobodys_fault(meter: Meter, program: Callable[[Train], None]) -> None:
    assert run(meter, program) is None


def test_a_wrapped_exception_is_its_cause(meter: Meter) -> None:
    error = run(meter, wrapped)
    assert error is not None
    assert error["chain"] == [{"type": "builtins.MemoryError", "message": "", "link": "cause"}]


@pytest.mark.parametrize(
    "error, wait_s",
    [
        (None, AFTER_END_S),
        (SystemExit(0), AFTER_END_S),
        (SystemExit(1), AFTER_ERROR_S),
        (ValueError(), AFTER_ERROR_S),
        (KeyboardInterrupt(), AFTER_ERROR_S),
    ],
)
def test_a_good_end_waits_longer_for_the_device(
    meter: Meter, monkeypatch: pytest.MonkeyPatch, error: BaseException | None, wait_s: float
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("harness.probe.pending.Pending.flush", lambda _, wait: waits.append(wait))
    meter.left(error)
    meter.end()
    assert waits == [wait_s, wait_s]
