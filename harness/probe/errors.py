"""Exceptions as records, and which of those that a rank has seen is the one that ended it.

No exception object is kept: its frames would keep the tensors alive that a program frees when it catches an OOM."""

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Collection, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any

from .redact import redact

Record = dict[str, Any]
Frame = tuple[str, str]  # file name, function name

MESSAGE_LIMIT = 4000  # characters, from the start: an OOM's figures stand there
TRACEBACK_LIMIT = 8000  # characters, from the end: the frames where it was raised
CHAIN_LIMIT = 8
FRAME_LIMIT = 1000

OWN_FOLDER = os.path.dirname(os.path.abspath(__file__))
SEEN = "_harness_probe_seen"  # attribute on an exception: by whom it was seen
NUMBER = "_harness_probe_number"  # the same: which record is its

# Whose sight tells more of an exception (train: the step, the phase), and of which exception in doubt; of equals, the
# latest.
RANKS = {"train": 3, "main": 2, "exit": 1, "log": 0, "retry": 0}
PASSING = ("log", "retry")  # the program goes on


def qualified(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def describe(
    error: BaseException,
    *,
    where: str,
    step: int | None,
    phase: str,
    exit_code: int | None = None,
    secrets: Collection[str] = (),
) -> Record:
    """The fields of an `exception` event."""
    return {
        "type": qualified(type(error)),
        "bases": [qualified(cls) for cls in type(error).__mro__[1:] if cls is not object],
        "message": message_of(error, secrets),
        "traceback": render(error, secrets),
        "chain": [
            {"type": qualified(type(link)), "message": message_of(link, secrets), "link": how}
            for link, how in chain_of(error, CHAIN_LIMIT)
        ],
        "step": step,
        "phase": phase,
        "part": part_of(frames_of(error.__traceback__)),
        "where": where,
        "exit_code": exit_code,
    }


def message_of(error: BaseException, secrets: Collection[str] = ()) -> str:
    try:
        text = str(error)
    except Exception as fault:  # a target's own __str__ may raise
        if is_of_handler(fault):
            raise
        text = f"<{qualified(type(error))} whose text failed with {qualified(type(fault))}>"
    return redact(text[: 2 * MESSAGE_LIMIT], secrets)[:MESSAGE_LIMIT]


def chain_of(error: BaseException, limit: int) -> Iterator[tuple[BaseException, str]]:
    """Causes and contexts, nearest first, each with which it is to the one before; bears cycles.

    A context that `from None` hides is still the reason.
    """
    seen: set[int] = set()
    while id(error) not in seen and len(seen) < limit:
        seen.add(id(error))
        link, how = (error.__context__, "context") if error.__cause__ is None else (error.__cause__, "cause")
        if link is None or id(link) in seen:
            return
        yield link, how
        error = link


def behind_exit(error: SystemExit) -> BaseException | None:
    """The exception that a program was handling when it called sys.exit(); None when there was none."""
    return next((e for e, _ in chain_of(error, 100) if not isinstance(e, (SystemExit, GeneratorExit))), None)


def last_exception() -> BaseException | None:
    """What has last left a program, or a cell of a notebook."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return error if isinstance(error, BaseException) else None


def exit_code_of(error: BaseException | None) -> int | None:
    """The exit code that the interpreter gives when `error` leaves the program; None: it dies of a signal (SIGINT)."""
    if error is None:
        return 0
    if isinstance(error, KeyboardInterrupt):
        return None
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def render(error: BaseException, secrets: Collection[str] = ()) -> str:
    """The traceback's end as the interpreter would print it, without the probe's own frames."""
    try:
        told = traceback.TracebackException(type(error), error, error.__traceback__, limit=-60, compact=True)
        for part in _walk(told):
            part.stack[:] = [frame for frame in part.stack if not is_own(frame.filename)]
        text = "".join(told.format())
    except Exception as fault:
        if is_of_handler(fault):
            raise
        text = f"<traceback not readable: {qualified(type(fault))}: {fault}>"
    return redact(text[-2 * TRACEBACK_LIMIT :], secrets)[-TRACEBACK_LIMIT:]


def _walk(told: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    waiting, seen = [told], set()
    while waiting:
        part = waiting.pop()
        if id(part) not in seen:
            seen.add(id(part))
            yield part
            more = [part.__cause__, part.__context__, *(getattr(part, "exceptions", None) or ())]
            waiting.extend(link for link in more if link is not None)


def is_own(filename: str) -> bool:
    """Whether a frame is the probe's.  The built-in target is a program like any other: its frames stay."""
    folder, name = os.path.split(filename)
    return folder == OWN_FOLDER and name not in ("finetune.py", "synthetic.py")


def frames_of(trace: TracebackType | None) -> list[Frame]:
    """File and function of each frame, outermost first; at most 1,000."""
    frames: list[Frame] = []
    while trace is not None and len(frames) < FRAME_LIMIT:
        code = trace.tb_frame.f_code
        frames.append((code.co_filename, code.co_name))
        trace = trace.tb_next
    return frames


def is_of_handler(error: BaseException) -> bool:
    """Whether a signal's handler raised it: that is the program's, whatever code the handler broke into.

    torch's for SIGCHLD says so of a DataLoader's worker that was killed, and says it once."""
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    codes = {getattr(getattr(handler, "__func__", handler), "__code__", None) for handler in handlers} - {None}
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code not in codes:
        trace = trace.tb_next
    return trace is not None


def without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback with the probe's frames unlinked, at its start and between."""
    kept = []
    while trace is not None:
        if not is_own(trace.tb_frame.f_code.co_filename):
            kept.append(trace)
        trace = trace.tb_next
    following: TracebackType | None = None
    for link in reversed(kept):
        link.tb_next = following
        following = link
    return following


# (end of the file name, functions, part); the outermost frame that fits decides: below `backward` there may be a
# forward again (checkpointing), below `evaluate` there always is one.
_PARTS: tuple[tuple[str, frozenset[str], str], ...] = (
    ("", frozenset(["_evaluate", "evaluate", "evaluation_loop", "prediction_loop", "prediction_step"]), "eval"),
    ("", frozenset(["_save_checkpoint", "save_model", "save_pretrained", "save_state"]), "save"),
    ("/torch/serialization.py", frozenset(["save"]), "save"),
    ("", frozenset(["get_batch_samples", "_next_data", "_process_next_batch"]), "data"),
    ("/torch/utils/data/dataloader.py", frozenset(), "data"),
    ("/accelerate/data_loader.py", frozenset(), "data"),
    ("/torch/autograd/__init__.py", frozenset(["backward", "grad"]), "backward"),
    ("/torch/_tensor.py", frozenset(["backward"]), "backward"),
    ("/accelerate/accelerator.py", frozenset(["backward"]), "backward"),
    ("/deepspeed/runtime/engine.py", frozenset(["backward"]), "backward"),
    ("", frozenset(["clip_grad_norm_", "_clip_grad_norm", "_get_grad_norm", "optimizer_step"]), "optimizer"),
    ("/accelerate/optimizer.py", frozenset(["step"]), "optimizer"),
    ("/torch/amp/grad_scaler.py", frozenset(), "optimizer"),
    ("/torch/optim/lr_scheduler.py", frozenset(), "optimizer"),
    ("/torch/optim/", frozenset(["step", "wrapper", "_use_grad"]), "optimizer"),
    ("", frozenset(["compute_loss"]), "forward"),
    ("/torch/nn/modules/module.py", frozenset(["_call_impl", "_wrapped_call_impl"]), "forward"),
    ("/torch/nn/parallel/distributed.py", frozenset(["forward"]), "forward"),
)


def part_of(frames: Sequence[Frame]) -> str | None:
    """The part of a training step in which a traceback lies, by its outermost telling frame; None outside of one."""
    for filename, function in frames:
        path = filename.replace("\\", "/")
        for place, functions, part in _PARTS:
            in_place = place in path if place.endswith("/") else path.endswith(place)
            if in_place and (not functions or function in functions):
                return part
    return None


def choose(records: Iterable[Record]) -> Record | None:
    """The record that tells best why a rank ended that ended by an exit code alone; of equals the latest."""
    best = None
    for record in records:
        if best is None or RANKS[record["where"]] >= RANKS[best["where"]]:
            best = record
    return best


class Sightings:
    """The exceptions a rank has seen and not outlived."""

    kept = 20

    def __init__(self) -> None:
        self._records: dict[int, Record] = {}
        self._added = 0
        self._lock = threading.Lock()

    def is_news(self, error: BaseException, where: str) -> bool:
        """Whether this very exception was not yet seen by who tells as much; marks it.

        One that was forgotten is news again when it leaves the program after all.
        """
        before = getattr(error, SEEN, None)
        if before in RANKS and RANKS[before] >= RANKS[where]:
            outlived = hasattr(error, NUMBER) and self.record_of(error) is None
            return outlived and where in ("main", "exit")
        _set(error, SEEN, where)
        return True

    def add(self, record: Record, error: BaseException) -> Record:
        """Keep the record of an exception, not the exception; returns it with the time."""
        with self._lock:
            self._added += 1
            _set(error, NUMBER, self._added)
            kept = {**self._records, self._added: {"t": time.time(), **record}}
            self._records = dict(list(kept.items())[-self.kept :])
            return kept[self._added]

    def record_of(self, error: BaseException) -> Record | None:
        """What is kept of this very exception."""
        return self._records.get(getattr(error, NUMBER, 0))

    def forget(self) -> None:
        """Training has gone on since: what was seen was caught and handled."""
        if self._records:
            with self._lock:
                self._records = {}

    def best(self) -> Record | None:
        return choose(self._records.values())


def _set(error: BaseException, name: str, value: Any) -> None:
    with contextlib.suppress(Exception):  # a class that lets nobody set attributes: recorded twice at worst
        setattr(error, name, value)
