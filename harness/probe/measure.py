"""What one rank measures of itself: phases, segments, steps, tokens, exceptions, and the journal they go to.

The methods of `Meter` are called by the hooks, under its guard: a fault in here becomes a `probe_error` event and never
reaches the target."""

import sys
import time
from collections import Counter
from types import TracebackType
from typing import Any

from .checksum import combined, tensor_sums
from .dump import Dumps
from .errors import (
    PASSING,
    Record,
    Sightings,
    behind_exit,
    describe,
    exit_code_of,
    is_of_handler,
    message_of,
    qualified,
)
from .exhaustion import Exhaustion
from .journal import JournalFile
from .layout import JobPaths
from .memory import no_memory, read_memory
from .model import describe_model
from .pending import Ended, Pending, Read
from .redact import redact_tree
from .shape import data_place, describe_shape
from .tokens import Counts, no_counts, told_counts
from .writing import write_document

FAULTS_TOLD = 5  # of one hook; a hook that fails in every step must not fill the journal
PASSING_TOLD = 20  # exceptions that were only logged, and as many caught by who tries again with a smaller batch
AFTER_ERROR_S = 2.0  # how long the device may take to finish earlier steps once an exception was seen
AFTER_END_S = 60.0  # the same where all went well: a slow device loses no figures

_active: "Meter | None" = None


def activate(meter: "Meter") -> None:
    global _active
    _active = meter


def phase(name: str) -> None:
    """For programs that know the probe, as the built-in target does: the phase `name` begins now."""
    if _active is not None:
        with _active.guard("phase"):
            _active.own_target = True
            _active.mark(name)


def job_folder() -> str | None:
    """The job directory this process measures for; None without a probe."""
    return None if _active is None else str(_active.job.root)


class Meter:
    """The state of one rank's measuring."""

    def __init__(self, job: JobPaths, rank: int, journal: JournalFile | None, secrets: set[str]) -> None:
        self.job, self.rank, self.secrets = job, rank, secrets
        self.own_target = False
        self.phase = "import"
        self.steps = 0
        self.seen_by: str | None = None
        self.exit_code: int | None = 0
        self.trainer: Any = None  # the Trainer whose train() runs
        self.shifted: bool | None = None  # whether its loss shifts the labels; None: not yet asked
        self.depth = 0  # of train() calls
        self.wants_history = False  # of the GPU's allocator
        self.told = False  # the program tells its steps itself
        self.is_own = False  # the job is the program's own
        self.dumps = Dumps(job)
        self._journal = journal
        self._faults: Counter[str] = Counter()
        self._passing: Counter[str] = Counter()
        self._sightings = Sightings()
        self.exhaustion = Exhaustion(job, rank)
        self._pending = Pending(self._emit)
        self._segment = -1
        self._open = False  # a segment of a Trainer has begun and not ended
        self._optimizer_segment = False  # a program without a Trainer has begun to step
        self._in_call = 0  # segments of this train() call
        self._cuda = False
        self._last_step: int | None = None
        self._last_end = self._phase_began = time.monotonic()
        self._model: dict[str, Any] | None = None
        self._shape: dict[str, Any] | None = None
        self._first_sums: list[int] | None = None  # of the trainable tensors, at the segment's start; None: not known
        self._reset()

    def guard(self, where: str) -> "Guard":
        return Guard(self, where)

    def fault(self, where: str, error: BaseException) -> None:
        """Journal a failure of the probe itself."""
        self._faults[where] += 1
        if self._faults[where] <= FAULTS_TOLD:
            said = f"{qualified(type(error))}: {message_of(error, self.secrets)}"
            self._write("probe_error", where=where, message=said)
            if self.is_own and self._faults.total() == 1:  # nobody else will look into the journal
                print(f"harness: a measurement failed, {where}: {said}", file=sys.stderr)

    def switch_off(self) -> None:
        """In a forked child: it is no rank, and the journal is its parent's."""
        self._journal = None

    def wake(self) -> None:
        """The process trains; that is news to a meter that was off until then (`late.py`)."""

    @property
    def off(self) -> bool:
        return self._journal is None

    def _write(self, event: str, **fields: Any) -> None:
        if self._journal is not None:
            self._journal.write(event, **fields)

    def mark(self, name: str, *, sync: bool = True) -> None:
        """The phase `name` begins; on a GPU the memory figures of the phase before are journalled."""
        with self.guard("memory"):
            memory = read_memory(self.phase, reset=self.own_target)
            if memory:
                self._write("memory", **memory)
        self.phase = name
        self._phase_began = time.monotonic()
        self._write("phase", name=name)
        if sync and self._journal is not None:
            self._journal.sync()

    @property
    def training(self) -> bool:
        return self.depth > 0 or self._open

    def train_entered(self, trainer: Any) -> None:
        self.depth += 1
        if self.depth == 1:
            self.trainer, self.shifted, self._in_call = trainer, None, 0

    def train_left(self, error: BaseException | None) -> None:
        self.depth -= 1
        if error is None:
            self._sightings.forget()
        else:
            self._pending.flush(AFTER_ERROR_S)
            if not isinstance(error, (SystemExit, GeneratorExit)):  # an exit is judged when it has left the program
                self.saw(error, "train")
        if self.depth == 0:
            self.end_segment()
            self.trainer = None
            self._training_left(error)

    def begin(
        self,
        args: Any,
        state: Any,
        model: Any,
        counted: dict[str, Any] | None,
        roles: dict[str, Any] | None = None,
    ) -> None:
        """A segment begins: the loop of a Trainer is about to fetch its first batch."""
        self._pending.flush(AFTER_ERROR_S)
        self._start_segment()
        self._optimizer_segment = False
        self._in_call += 1
        self._last_step = state.global_step
        device = getattr(args, "device", None)
        self._cuda = getattr(device, "type", None) == "cuda"
        gpus = max(1, getattr(args, "n_gpu", 1))
        ran = getattr(self.trainer, "_train_batch_size", None) or getattr(state, "train_batch_size", None)
        described = describe_model(model, counted, device)
        if described != self._model:
            self._model = described
            self._write("model", **described)
        with self.guard("shape"):
            shape = describe_shape(model, roles, args, self.trainer)
            if shape != self._shape:
                self._shape = shape
                self._write("shape", **shape)
        data_rank, data_ranks = data_place(self.trainer)
        self._write(
            "segment",
            segment=self._segment,
            restart=self._in_call > 1,
            step=state.global_step,
            max_steps=state.max_steps,
            batch_asked=args.per_device_train_batch_size,
            batch_ran=None if ran is None else ran // gpus,
            accumulation=args.gradient_accumulation_steps,
            data_rank=data_rank,
            data_ranks=data_ranks,
        )
        with self.guard("parameters"):
            self._first_sums = None
            self._first_sums = tensor_sums(model)
            if self._first_sums is not None:
                self._write_sums("first", state.global_step, self._first_sums, None)
        self.mark("first_step")
        self._last_end = time.monotonic()

    def saw_result(self, model: Any, step: int) -> None:
        """The loop of a Trainer has ended well: are the parameters still those it began with?"""
        first, sums = self._first_sums, tensor_sums(model) if self._open else None
        if sums is not None:
            comparable = first is not None and len(first) == len(sums)
            changed = sum(a != b for a, b in zip(first or (), sums, strict=True)) if comparable else None
            self._write_sums("last", step, sums, changed)

    def _write_sums(self, when: str, step: int, sums: list[int], changed: int | None) -> None:
        self._write(
            "parameters",
            when=when,
            segment=self._segment,
            step=step,
            tensors=len(sums),
            checksum=combined(sums),
            changed=changed,
        )

    def label(self, labels: dict[str, Any]) -> None:
        """Labels that the program gives itself."""
        if labels:
            self._write("labels", labels=redact_tree(labels, self.secrets))

    def _training_left(self, error: BaseException | None) -> None:
        """After the last line of training: the dump, of rank 0, and of any rank that ended badly."""
        if self.off:
            return
        self.dumps.ended_by = None
        if error is not None and exit_code_of(error) != 0:
            self.dumps.ended_by = {
                "kind": "unknown",
                "type": qualified(type(error)),
                "message": message_of(error, self.secrets),
                "rank": self.rank,
                "step": self._last_step,
            }
        if error is not None or self.rank == 0:
            self.dumps.write()

    def _start_segment(self) -> None:
        self._segment += 1
        self._open = True
        self._reset()
        self._pending.new_segment()
        if self._journal is not None:
            self._journal.sync_regularly()

    def end_segment(self) -> None:
        """The loop has ended, well or not."""
        if self._open:
            self._pending.flush(AFTER_END_S)  # after an exception nothing is left to wait for
            self._open = False
            self.mark("teardown")

    def _reset(self) -> None:
        self._loss: Any = None
        self._norm: Any = None
        self._rate: Any = None
        self._counts: Counts | str | None = None
        self._overhead_s = 0.0
        self._overhead: list[str] = []

    def saw_loss(self, loss: Any) -> None:
        """What training_step returned for a micro-batch, already scaled by their number: the step's loss is the sum."""
        if getattr(loss, "is_cpu", False):
            loss = loss.item()
        self._loss = loss if self._loss is None else self._loss + loss

    def saw_norm(self, norm: Any) -> None:
        self._norm = _local(norm)

    def saw_optimizer(self, optimizer: Any) -> None:
        """Before the optimizer's step, so before the scheduler's."""
        groups = getattr(optimizer, "param_groups", None)
        self._rate = groups[0].get("lr") if groups else None

    def saw_counts(self, counts: Counts | str) -> None:
        self._counts = counts

    def tag_overhead(self, what: str) -> None:
        if what not in self._overhead:
            self._overhead.append(what)

    def add_overhead(self, seconds: float) -> None:
        """Something other than the step has just ended on the host; counts when it logged, saved or evaluated."""
        if self._overhead:
            self._overhead_s += seconds
            if self._cuda:
                self._pending.begin_anew()

    def step_ended(self, step: int, epoch: float | None) -> None:
        """A Trainer's optimizer step has ended."""
        counts = self._counts if self._counts is not None else self._why_uncounted()
        self._step_ended(step, counts, epoch)
        self.seen_by = "trainer"

    def optimizer_stepped(self, step: int, optimizer: Any, *, leads_anew: bool) -> None:
        """A step of a program without a Trainer has ended; `leads_anew`: with it another optimizer's series begins."""
        if not self._optimizer_segment or leads_anew:
            norm = self._norm  # clipped before anybody knew that a segment begins
            self._last_end = self._phase_began
            self._start_loop(step, cuda=_device_type(optimizer) == "cuda")
            self._norm = norm
        self.saw_optimizer(optimizer)
        self._step_ended(step, None)
        self.seen_by = self.seen_by or "optimizer"

    def told_by_program(self) -> None:
        """From now on the program tells its steps itself; the first one begins now."""
        self.told, self._optimizer_segment = True, False
        self._last_end = time.monotonic()

    def program_stepped(
        self, step: int, *, loss: Any, norm: Any, rate: Any, counts: tuple[Any, Any, Any, Any], epoch: Any
    ) -> None:
        """A step of which the program tells has ended; numbers may be 0-dim tensors.  `counts`: see `told_counts`."""
        if not self._optimizer_segment or step <= (self._last_step or 0):
            torch = sys.modules.get("torch")
            self._start_loop(step, cuda=torch is not None and torch.cuda.is_initialized())
        self._loss, self._norm, self._rate = _number(_local(loss)), _number(_local(norm)), _number(rate)
        told = None
        with self.guard("Journal.step"):  # odd counts cost the counts, not the step
            told = told_counts(counts)
        self._step_ended(step, told, _number(epoch))
        self.seen_by = "journal"

    def loop_left(self, error: BaseException | None) -> None:
        """The loop of which the program tells has ended."""
        self._pending.flush(AFTER_END_S if error is None else AFTER_ERROR_S)
        if error is not None and not isinstance(error, (SystemExit, GeneratorExit)):
            self.saw(error, "train")
        if self._journal is not None:
            self._journal.sync()
        self._training_left(error)

    def _start_loop(self, step: int, *, cuda: bool) -> None:
        """A segment of a program without a Trainer, whose first step is `step`."""
        self._start_segment()
        self._open, self._optimizer_segment = False, True
        self._cuda = cuda
        unknown = dict.fromkeys(("max_steps", "batch_asked", "batch_ran", "accumulation", "data_rank", "data_ranks"))
        self._write("segment", segment=self._segment, restart=False, step=step - 1, **unknown)

    def _step_ended(self, step: int, counts: Counts | str | None, epoch: float | None = None) -> None:
        now = time.monotonic()
        fields = {
            "step": step,
            "segment": self._segment,
            "ended_m": now,
            "seconds": now - self._last_end,
            "overhead_seconds": self._overhead_s,
            "overhead": self._overhead,
            "epoch": epoch,
        }
        numbers = {"loss": self._loss, "grad_norm": self._norm, "learning_rate": self._rate}
        self._reset()
        self._last_end, self._last_step = now, step
        self.steps += 1
        self._sightings.forget()
        self._pending.add(Ended(fields, numbers, counts), cuda=self._cuda)
        if self.phase != "steady":
            self.mark("steady", sync=False)  # the disk may take its time: not within a step

    def _emit(self, read: Read) -> None:
        ended = read.ended
        ended.fields.update(read.numbers, device_seconds=read.device_seconds)
        events = [("step", ended.fields)]
        if ended.counts is not None:
            counts = no_counts(ended.counts) if isinstance(ended.counts, str) else ended.counts.fields(read.tokens)
            events.append(("tokens", {"step": ended.fields["step"], "segment": ended.fields["segment"], **counts}))
        if self._journal is not None:
            self._journal.write_all(events)
            self.dumps.outdated = True

    def _why_uncounted(self) -> str:
        cls = type(self.trainer)
        method = getattr(cls, "get_batch_samples", None)
        if method is None:
            return "this version of transformers has no Trainer.get_batch_samples"
        return f"{qualified(cls)} does not fetch its batches through Trainer.get_batch_samples"

    def logged(self, step: int, logs: dict[str, Any], epoch: float | None) -> None:
        self.tag_overhead("log")
        numbers = {k: v for k, v in logs.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
        self._write("log", step=step, epoch=epoch, logs=numbers)
        self.dumps.outdated = True

    def evaluated(self, step: int) -> None:
        self.tag_overhead("eval")
        self._write("eval", step=step)

    def saved(self, step: int) -> None:
        self.tag_overhead("save")
        self._write("save", step=step)

    def saw(self, error: BaseException, where: str, exit_code: int | None = None) -> Record | None:
        """Journal an exception, once; returns its record if it may be blamed.  KeyboardInterrupt never is."""
        if self.off or not self._sightings.is_news(error, where):
            return None
        if where in PASSING:
            self._passing[where] += 1
            if self._passing[where] > PASSING_TOLD:
                return None
        in_step = (self._open or self._optimizer_segment) and self._last_step is not None
        step = (self._last_step or 0) + 1 if in_step else None
        record = describe(error, where=where, step=step, phase=self.phase, exit_code=exit_code, secrets=self.secrets)
        self._write("exception", **record)
        self.dumps.outdated = True
        is_bare_exit = isinstance(error, SystemExit)
        if isinstance(error, KeyboardInterrupt) or (is_bare_exit and self._sightings.best()):
            return None
        kept = self._sightings.add(record, error)
        with self.guard("memory"):
            self.exhaustion.saw(kept)
        return kept

    def left(self, error: BaseException | None) -> None:
        """The program has ended by `error`, or by itself; writes error.json when that was a bad end."""
        self.exit_code = exit_code_of(error)
        self._pending.flush(self._patience())
        if error is None or self.exit_code == 0:
            return
        record = self._why(error)
        if record is not None and not self.off:
            with self.guard("memory"):
                self.exhaustion.ended_by(record)
            self._write_error({**record, "rank": self.rank})
        if self._journal is not None:
            self._journal.sync()

    def _why(self, error: BaseException) -> Record | None:
        """The exception that ended the program: the one that left it, or was being handled when it called sys.exit().

        Only where that is nothing but an exit code, what was seen before tells more.
        """
        if not isinstance(error, SystemExit):
            return self.saw(error, "main") or self._sightings.record_of(error)
        reason = behind_exit(error)
        if reason is not None:
            return self.saw(reason, "exit", self.exit_code) or self._sightings.record_of(reason)
        self.saw(error, "exit", self.exit_code)
        return self._sightings.best()

    def _patience(self) -> float:
        return AFTER_END_S if self.exit_code == 0 else AFTER_ERROR_S

    def _write_error(self, record: dict[str, Any]) -> None:
        write_document(self.job.error(self.rank), record)

    def end(self) -> None:
        """The interpreter is about to go; the last thing the journal hears."""
        journal = self._journal
        if journal is None:
            return
        self._pending.flush(self._patience())
        with self.guard("memory"):
            self._write("memory", **(read_memory(self.phase, reset=self.own_target) or no_memory(self.phase)))
        self._write("end", exit_code=self.exit_code, steps=self.steps, seen_by=self.seen_by)
        self._journal = None
        journal.close()
        if self.rank == 0:
            with self.guard("dump"):
                self.dumps.renew()


class Guard:
    """Turns an exception of the probe's own code into a `probe_error` event; what a signal's handler raises passes."""

    __slots__ = ("_meter", "_where")

    def __init__(self, meter: Meter, where: str) -> None:
        self._meter, self._where = meter, where

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, cls: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception) or is_of_handler(error):
            return False
        self._meter.fault(self._where, error)
        return True


def _local(value: Any) -> Any:
    """A DTensor's value where every rank has it; gathering it would be a collective of our own."""
    if not hasattr(value, "to_local"):
        return value
    return value.to_local() if all(placement.is_replicate() for placement in value.placements) else None


def _number(value: Any) -> Any:
    """A float for a number of a program, None for what is none; a tensor on a device stays one, to be read late."""
    if value is None or (hasattr(value, "is_cpu") and not value.is_cpu):
        return value
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def _device_type(optimizer: Any) -> str | None:
    groups = getattr(optimizer, "param_groups", None)
    parameters = groups[0].get("params") if groups else None
    return parameters[0].device.type if parameters else None
