"""What one rank measures of itself: phases, segments, steps, tokens, exceptions, and the journal they go to.

The methods of `Meter` are called by the hooks, under its guard: a fault in here becomes a `probe_error` event and never
reaches the target."""

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from .arguments import parsed_arguments
from .compiling import describe_compiling
from .described import DescribedModel
from .dump import Dumps
from .errors import Record, exit_code_of, message_of, qualified
from .exhaustion import Exhaustion
from .failures import Failures, Place
from .guard import Guard
from .journal import JournalFile
from .layout import JobPaths
from .memory import no_memory, read_memory
from .pending import Ended, Pending, Read
from .redact import redact_tree
from .running import RunningStep, local
from .shape import data_place, why_not_split
from .tokens import Counts, no_counts, told_counts
from .writing import write_document

FAULTS_TOLD = 5  # of one hook; a hook that fails in every step must not fill the journal
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


def journal(event: str, **fields: Any) -> None:
    """For those programs: one event of their own; nothing without a probe."""
    if _active is not None:
        with _active.guard(event):
            _active.write(event, **fields)


def follow(follower: "Callable[[dict[str, Any]], None]") -> None:
    """For those programs: have `follower` called with the fields of each `step` event once they are known."""
    if _active is not None:
        _active.follower = follower


def aside(seconds: float) -> None:
    """For those programs: they have just done, between two steps, what is no part of a step."""
    if _active is not None:
        with _active.guard("aside"):
            _active.add_overhead(seconds, always=True)


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
        self.failures = Failures(self._tell_exception, secrets)
        self.exhaustion = Exhaustion(job, rank)
        self.step = RunningStep()
        self.follower: Callable[[dict[str, Any]], None] | None = None  # gets the fields of each step
        self._pending = Pending(self._emit)
        self._segment = -1
        self._open = False  # a segment of a Trainer has begun and not ended
        self._optimizer_segment = False  # a program without a Trainer has begun to step
        self._in_call = 0  # segments of this train() call
        self._cuda = False
        self._last_step: int | None = None
        self._last_end = self._phase_began = time.monotonic()
        self._described = DescribedModel(self.write, self.guard)
        self._no_optimizer = False  # its time cannot be told from the backward's
        self._compiled: dict[str, Any] | None = None

    def guard(self, where: str) -> Guard:
        return Guard(self.fault, where)

    def fault(self, where: str, error: BaseException) -> None:
        """Journal a failure of the probe itself."""
        self._faults[where] += 1
        if self._faults[where] <= FAULTS_TOLD:
            said = f"{qualified(type(error))}: {message_of(error, self.secrets)}"
            self.write("probe_error", where=where, message=said)
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

    def write(self, event: str, **fields: Any) -> None:
        if self._journal is not None:
            self._journal.write(event, **fields)

    def mark(self, name: str, *, sync: bool = True) -> None:
        """The phase `name` begins; on a GPU the memory figures of the phase before are journalled."""
        with self.guard("memory"):
            memory = read_memory(self.phase, reset=self.own_target)
            if memory:
                self.write("memory", **memory)
        self.phase = name
        self._phase_began = time.monotonic()
        self.write("phase", name=name)
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
            self.failures.forget()
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
        self.step.mark = self._pending.mark if self._cuda else None
        gpus = max(1, getattr(args, "n_gpu", 1))
        ran = getattr(self.trainer, "_train_batch_size", None) or getattr(state, "train_batch_size", None)
        self._described.describe(model, counted, roles, args, self.trainer)
        data_rank, data_ranks = data_place(self.trainer)
        no_split = why_not_split(args, self.trainer)
        self._no_optimizer = no_split is not None
        self.write(
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
            split_reason=no_split,
        )
        with self.guard("arguments"):
            arguments = parsed_arguments(self.job, args, self.secrets)
            if arguments is not None:
                self.write("arguments", segment=self._segment, **arguments)
        self._described.begins(model, self._segment, state.global_step)
        self.mark("first_step")
        self._last_end = time.monotonic()

    def saw_result(self, model: Any, step: int) -> None:
        """The loop of a Trainer has ended well."""
        if self._open:
            self._described.ends(model, self._segment, step)

    def label(self, labels: dict[str, Any]) -> None:
        """Labels that the program gives itself."""
        if labels:
            self.write("labels", labels=redact_tree(labels, self.secrets))

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
        self.step.reset()
        self.step.mark = None
        self._pending.new_segment()
        if self._journal is not None:
            self._journal.sync_regularly()

    def end_segment(self) -> None:
        """The loop has ended, well or not."""
        if self._open:
            self._pending.flush(AFTER_END_S)  # after an exception nothing is left to wait for
            self._open = False
            self._tell_compiling()
            self.mark("teardown")

    def _tell_compiling(self) -> None:
        """What torch.compile has done so far, where that has changed since it was last told."""
        with self.guard("compile"):
            compiled = describe_compiling()
            if compiled is not None and compiled != self._compiled:
                self._compiled = compiled
                self.write(
                    "compile", segment=None if self._segment < 0 else self._segment, step=self._last_step, **compiled
                )

    def add_overhead(self, seconds: float, *, always: bool = False) -> None:
        """Something other than the step has just ended on the host; counts when it logged, saved or evaluated."""
        if self.step.overhead or always:
            self.step.overhead_s += seconds
            if self._cuda and self.step.has_begun:
                self._pending.new_segment()  # between the parts of a step: its time is known by the host alone
            elif self._cuda:
                self._pending.begin_anew()

    def step_ended(self, step: int, epoch: float | None) -> None:
        """A Trainer's optimizer step has ended."""
        counts = self.step.counts if self.step.counts is not None else self._why_uncounted()
        self._step_ended(step, counts, epoch)
        self.seen_by = "trainer"

    def optimizer_stepped(self, step: int, optimizer: Any, *, leads_anew: bool) -> None:
        """A step of a program without a Trainer has ended; `leads_anew`: with it another optimizer's series begins."""
        if not self._optimizer_segment or leads_anew:
            self._last_end = self._phase_began
            self._start_loop(step, cuda=_device_type(optimizer) == "cuda")
        self.step.saw_optimizer(optimizer)
        self._step_ended(step, None)
        self.seen_by = self.seen_by or "optimizer"

    def told_by_program(self) -> None:
        """From now on the program tells its steps itself; the first one begins now."""
        self.told, self._optimizer_segment = True, False
        self.step.reset()
        self._last_end = time.monotonic()

    def program_stepped(
        self, step: int, *, loss: Any, norm: Any, rate: Any, counts: tuple[Any, Any, Any, Any], epoch: Any
    ) -> None:
        """A step of which the program tells has ended; numbers may be 0-dim tensors.  `counts`: see `told_counts`."""
        if not self._optimizer_segment or step <= (self._last_step or 0):
            torch = sys.modules.get("torch")
            self._start_loop(step, cuda=torch is not None and torch.cuda.is_initialized())
        running = self.step
        running.loss, running.norm, running.rate = _number(local(loss)), _number(local(norm)), _number(rate)
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
        seen = self.step.norm, self.step.data_wait_s  # clipped, fetched before anybody knew that a segment begins
        self._start_segment()
        self.step.norm, self.step.data_wait_s = seen
        self._open, self._optimizer_segment = False, True
        self._cuda = cuda
        unknown = dict.fromkeys(("max_steps", "batch_asked", "batch_ran", "accumulation", "data_rank", "data_ranks"))
        why = "a program without a Trainer does not tell where its forward begins and its backward ends"
        self.write("segment", segment=self._segment, restart=False, step=step - 1, **unknown, split_reason=why)

    def _step_ended(self, step: int, counts: Counts | str | None, epoch: float | None = None) -> None:
        now, running = time.monotonic(), self.step
        fields = {
            "step": step,
            "segment": self._segment,
            "ended_m": now,
            "seconds": now - self._last_end,
            "overhead_seconds": running.overhead_s,
            "overhead": running.overhead,
            **running.host_seconds(now),
            "epoch": epoch,
        }
        numbers = {"loss": running.loss, "grad_norm": running.norm, "learning_rate": running.rate}
        ended = Ended(fields, numbers, counts, marks=running.marks)
        running.reset()
        self._last_end, self._last_step = now, step
        self.steps += 1
        self.failures.forget()
        self._pending.add(ended, cuda=self._cuda)
        if self.phase != "steady":
            self._tell_compiling()
            self.mark("steady", sync=False)  # the disk may take its time: not within a step

    def _emit(self, read: Read) -> None:
        ended = read.ended
        ended.fields.update(read.numbers, device_seconds=read.device_seconds, **read.parts)
        if self._no_optimizer:
            ended.fields["optimizer_seconds"] = None
        events = [("step", ended.fields)]
        if ended.counts is not None:
            counts = no_counts(ended.counts) if isinstance(ended.counts, str) else ended.counts.fields(read.tokens)
            events.append(("tokens", {"step": ended.fields["step"], "segment": ended.fields["segment"], **counts}))
        if self._journal is not None:
            self._journal.write_all(events)
            self.dumps.outdated = True
        if self.follower is not None:
            with self.guard("follower"):
                self.follower(ended.fields)

    def _why_uncounted(self) -> str:
        cls = type(self.trainer)
        method = getattr(cls, "get_batch_samples", None)
        if method is None:
            return "this version of transformers has no Trainer.get_batch_samples"
        return f"{qualified(cls)} does not fetch its batches through Trainer.get_batch_samples"

    def logged(self, step: int, logs: dict[str, Any], epoch: float | None) -> None:
        self.step.tag_overhead("log")
        numbers = {k: v for k, v in logs.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
        self.write("log", step=step, epoch=epoch, logs=numbers)
        self.dumps.outdated = True

    def evaluated(self, step: int) -> None:
        self.step.tag_overhead("eval")
        self.write("eval", step=step)

    def saved(self, step: int) -> None:
        self.step.tag_overhead("save")
        self.write("save", step=step)

    def saw(self, error: BaseException, where: str, exit_code: int | None = None) -> Record | None:
        """Journal an exception, once; returns its record if it may be blamed."""
        if self.off:
            return None
        in_step = (self._open or self._optimizer_segment) and self._last_step is not None
        at = Place((self._last_step or 0) + 1 if in_step else None, self.phase)
        kept = self.failures.saw(error, where, at, exit_code)
        if kept is not None:
            with self.guard("memory"):
                self.exhaustion.saw(kept)
        return kept

    def _tell_exception(self, record: Record) -> None:
        self.write("exception", **record)
        self.dumps.outdated = True

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
        """The record of what ended the program."""
        reason, where = self.failures.behind(error)
        record = self.saw(reason, where, self.exit_code if where == "exit" else None)
        return self.failures.known(reason) if record is None or isinstance(reason, SystemExit) else record

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
        self._tell_compiling()
        with self.guard("memory"):
            self.write("memory", **(read_memory(self.phase, reset=self.own_target) or no_memory(self.phase)))
        self.write("end", exit_code=self.exit_code, steps=self.steps, seen_by=self.seen_by)
        self._journal = None
        journal.close()
        if self.rank == 0:
            with self.guard("dump"):
                self.dumps.renew()


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
