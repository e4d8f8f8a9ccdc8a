"""Reaches an unmodified program: patches the modules that train the moment the program imports them.

`transformers.trainer` (the callback, train, training_step, get_batch_samples, logging and saving), `accelerate` (the
gradient norm, and memory that ran out before a smaller batch was tried), `torch.optim` (steps of programs without a
Trainer), `torch.utils.data` (how long they wait for a batch), `logging` (exceptions that are only logged)."""

import functools
import importlib.abc
import importlib.machinery
import logging
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from .measure import Meter
from .running import Fetching
from .shape import slices
from .tokens import count

Patch = Callable[[Any, Meter], None]
Find = Callable[[Any], Meter | None]  # whose is a Trainer; None for its argument: whose Trainer runs now


def install(meter: Meter) -> None:
    """Patch the modules below when they are imported, and at once those that already are."""
    patch_modules(PATCHES, meter)
    watch_log(meter)


def patch_modules(patches: dict[str, Patch], meter: Meter) -> None:
    """Apply each patch to the module of its name, when that is imported, or at once."""
    sys.meta_path.insert(0, PatchFinder(patches, meter))
    for name, patch in patches.items():
        if name in sys.modules:
            with meter.guard(f"patch {name}"):
                patch(sys.modules[name], meter)


class PatchFinder(importlib.abc.MetaPathFinder):
    """Finds nothing by itself: lets the other finders find, and has a patch applied once the module has run."""

    def __init__(self, patches: dict[str, Patch], meter: Meter) -> None:
        self._patches, self._meter = patches, meter

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        patch = self._patches.get(fullname)
        if patch is None:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            spec = find(fullname, path, target) if find is not None and finder is not self else None
            if spec is not None:
                with self._meter.guard(f"import {fullname}"):
                    _after_exec(spec, functools.partial(self._apply, patch, fullname))
                return spec  # type: ignore[no-any-return]  # finders are whatever is on sys.meta_path
        return None

    def _apply(self, patch: Patch, name: str, module: ModuleType) -> None:
        with self._meter.guard(f"patch {name}"):
            patch(module, self._meter)


def _after_exec(spec: importlib.machinery.ModuleSpec, then: Callable[[ModuleType], None]) -> None:
    """Call `then(module)` after the module's code ran.  The loader stays the same object: others ask it for sources."""
    loader: Any = spec.loader
    original = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        if module.__spec__ is not spec:  # a zip's loader serves many modules
            original(module)
            return
        loader.__dict__.pop("exec_module", None)
        original(module)
        then(module)

    loader.exec_module = exec_module


_own: list[Meter] = []  # of jobs that the program has begun itself


def install_for_own(meter: Meter) -> None:
    """For a job that the program has begun: measure the Trainers that carry a callback of it, and no other."""
    import accelerate.accelerator
    import transformers.trainer

    _own[:] = [other for other in _own if not other.off] + [meter]
    wrap_trainer(transformers.trainer.Trainer, _whose, meter)
    wrap_accelerator(accelerate.accelerator.Accelerator, _whose)


def _whose(trainer: Any) -> Meter | None:
    if trainer is None:
        return next((meter for meter in reversed(_own) if meter.training), None)
    from .callback import BenchmarkAimCallback

    callbacks = getattr(getattr(trainer, "callback_handler", None), "callbacks", ())
    ours = (callback for callback in callbacks if isinstance(callback, BenchmarkAimCallback))
    return next((meter for callback in ours if (meter := callback.harness_meter) is not None), None)


def patch_trainer(module: Any, meter: Meter) -> None:
    """Measure every Trainer that will be made, subclasses included."""
    from .callback import injected

    module.DEFAULT_CALLBACKS.append(injected(meter))
    wrap_trainer(module.Trainer, lambda trainer: meter, meter)
    if meter.phase == "import":
        meter.mark("setup")


def wrap_trainer(trainer: Any, find: Find, meter: Meter) -> None:
    """Wrap the methods of the class Trainer, once; `meter` is told of methods that are not there."""
    for name, make in _METHODS.items():
        original = trainer.__dict__.get(name)
        if original is None:
            if name not in _MAY_LACK:
                meter.fault("patch transformers.trainer", AttributeError(f"Trainer has no {name}"))
        elif not hasattr(original, "_harness_probe"):
            wrapped: Any = functools.wraps(original)(make(original, find))
            wrapped._harness_probe = True
            setattr(trainer, name, wrapped)


def _train(original: Any, find: Find) -> Any:
    def train(self: Any, *args: Any, **kwargs: Any) -> Any:
        meter = find(self)
        if meter is None:
            return original(self, *args, **kwargs)
        with meter.guard("train"):
            meter.train_entered(self)
        try:
            result = original(self, *args, **kwargs)
        except BaseException as error:
            with meter.guard("train"):
                meter.train_left(error)
            raise
        with meter.guard("train"):
            meter.train_left(None)
        return result

    return train


def _training_step(original: Any, find: Find) -> Any:
    def training_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        meter = find(self)
        if meter is None:
            return original(self, *args, **kwargs)
        with meter.guard("training_step"):
            meter.step.computing()
        loss = original(self, *args, **kwargs)
        with meter.guard("training_step"):
            meter.step.computed()
            meter.step.saw_loss(loss)
        return loss

    return training_step


def _get_batch_samples(original: Any, find: Find) -> Any:
    def get_batch_samples(self: Any, *args: Any, **kwargs: Any) -> Any:
        meter = find(self)
        if meter is None:
            return original(self, *args, **kwargs)
        # Not the call as a whole is timed: in it the ranks exchange their counts, and wait for each other.
        result = original(self, *_timed(args, meter), **kwargs)
        with meter.guard("get_batch_samples"):
            batches = result[0]
            if meter.shifted is None or self is not meter.trainer:
                meter.shifted = _shifts(self)
            if batches:
                meter.step.saw_counts("the batches could not be counted")
                place, size = slices(self)
                meter.step.saw_counts(count(batches, shifted=meter.shifted, place=place, slices=size))
        return result

    return get_batch_samples


def _timed(args: tuple[Any, ...], meter: Meter) -> tuple[Any, ...]:
    """The arguments of get_batch_samples, the iterator over batches, which comes first, replaced."""
    if not args or not hasattr(args[0], "__next__"):
        return args
    return Fetching(args[0], meter.step), *args[1:]


def _shifts(trainer: Any) -> bool:
    """Whether the loss compares a position with the next label (causal models), or labels were shifted before."""
    model = trainer.model
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    told = getattr(trainer, "_loss_shifts_labels", None)
    # None is a class that transformers knows no loss for; it then takes the causal one, which shifts.
    return (
        True if told is None or told else getattr(model, "loss_type", None) is None and hasattr(model, "loss_function")
    )


def _maybe_log_save_evaluate(original: Any, find: Find) -> Any:
    def maybe_log_save_evaluate(self: Any, *args: Any, **kwargs: Any) -> Any:
        meter = find(self)
        if meter is None:
            return original(self, *args, **kwargs)
        with _Aside(meter):
            return original(self, *args, **kwargs)

    return maybe_log_save_evaluate


def _evaluate(original: Any, find: Find) -> Any:
    """Before the first step (eval_on_start), or where a callback asks for it; predict() is one that returns more."""

    def evaluate(self: Any, *args: Any, **kwargs: Any) -> Any:
        meter = find(self)
        if meter is None or not meter.training:
            return original(self, *args, **kwargs)
        with _Aside(meter):
            meter.step.tag_overhead("eval")
            return original(self, *args, **kwargs)

    return evaluate


class _Aside:
    """Something that is no part of a step; one within another is a part of that."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def __enter__(self) -> None:
        self._began = time.monotonic()
        self._meter.step.stand_aside()

    def __exit__(self, *_: object) -> None:
        if self._meter.step.come_back():
            with self._meter.guard("overhead"):
                self._meter.add_overhead(time.monotonic() - self._began)


def _save_model(original: Any, find: Find) -> Any:
    def save_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        meter = find(self)
        if meter is None:
            return original(self, *args, **kwargs)
        final = not meter.training and meter.phase == "teardown"
        if final:
            with meter.guard("save"):
                meter.mark("save")
        result = original(self, *args, **kwargs)
        if final:
            with meter.guard("save"):
                meter.mark("teardown")
        return result

    return save_model


_METHODS: dict[str, Callable[[Any, Find], Any]] = {
    "train": _train,
    "training_step": _training_step,
    "get_batch_samples": _get_batch_samples,
    "_maybe_log_save_evaluate": _maybe_log_save_evaluate,
    "_evaluate": _evaluate,
    "evaluate": _evaluate,
    "predict": _evaluate,
    "save_model": _save_model,
}

# get_batch_samples is absent before 4.46: then the `tokens` events say so; `_evaluate` calls evaluate.
_MAY_LACK = frozenset(["get_batch_samples", "_evaluate"])


def patch_accelerator(module: Any, meter: Meter) -> None:
    """Keep the gradient norm that clipping computes; nothing is computed for our sake."""
    wrap_accelerator(module.Accelerator, lambda trainer: meter)


def wrap_accelerator(accelerator: Any, find: Find) -> None:
    """Wrap the method of the class Accelerator that clips gradients, once."""
    original = accelerator.clip_grad_norm_
    if hasattr(original, "_harness_probe"):
        return

    @functools.wraps(original)
    def clip_grad_norm_(self: Any, *args: Any, **kwargs: Any) -> Any:
        norm = original(self, *args, **kwargs)
        if (meter := find(None)) is not None:
            with meter.guard("clip_grad_norm_"):
                meter.step.saw_norm(norm)
        return norm

    clip_grad_norm_._harness_probe = True  # type: ignore[attr-defined]
    accelerator.clip_grad_norm_ = clip_grad_norm_


def patch_loader(module: Any, meter: Meter) -> None:
    """Time how long a loop waits for torch's DataLoader, where nobody has told of a fetch around it."""
    iterator = module._BaseDataLoaderIter
    original = iterator.__next__

    @functools.wraps(original)
    def fetch(self: Any) -> Any:
        began = meter.step.fetch_begins()
        try:
            return original(self)
        finally:
            meter.step.fetch_ends(began)

    iterator.__next__ = fetch


def patch_retry(module: Any, meter: Meter) -> None:
    """See the exceptions for which find_executable_batch_size tries a smaller batch; it keeps none of them."""
    original = module.should_reduce_batch_size

    @functools.wraps(original)
    def should_reduce_batch_size(exception: Exception, *args: Any, **kwargs: Any) -> Any:
        reduces = original(exception, *args, **kwargs)
        if reduces:
            with meter.guard("should_reduce_batch_size"):
                meter.saw(exception, "retry")
        return reduces

    module.should_reduce_batch_size = should_reduce_batch_size


def patch_optimizer(module: Any, meter: Meter) -> None:
    """Count the optimizer steps of programs without a Trainer, and record the allocator's history if that is wanted."""
    if meter.wants_history:
        with meter.guard("memory history"):
            meter.exhaustion.record_history()
    series = OptimizerSeries()

    def stepped(optimizer: Any, args: Any, kwargs: Any) -> None:
        if meter.training or meter.told:
            return
        with meter.guard("optimizer"):
            number, leads_anew = series.stepped(optimizer)
            if number is not None:
                meter.optimizer_stepped(number, optimizer, leads_anew=leads_anew)

    stepped._torchdynamo_disable = True  # type: ignore[attr-defined]  # a compiled optimizer step must not trace into the probe
    module.register_optimizer_step_post_hook(stepped)


class OptimizerSeries:
    """Which optimizer's steps are the program's steps, where several step in turn (discriminator and generator).

    The first leads.  Another takes the lead when it steps twice with no step of the leader between, or when the leader
    is gone.
    """

    def __init__(self) -> None:
        self._leader: weakref.ref[Any] | None = None
        self._other: weakref.ref[Any] | None = None
        self._number = 0

    def stepped(self, optimizer: Any) -> tuple[int | None, bool]:
        """(number of the step from 1, whether a new leader's series begins); None: one that does not lead stepped."""
        leader = self._leader() if self._leader is not None else None
        if leader is optimizer:
            self._other = None
            self._number += 1
            return self._number, False
        if leader is None or (self._other is not None and self._other() is optimizer):
            first = self._leader is None
            self._leader, self._other = weakref.ref(optimizer), None
            self._number = 1
            return 1, not first
        self._other = weakref.ref(optimizer)
        return None, False


def watch_log(meter: Meter) -> None:
    """Keep the exceptions that a program logs as errors: some then throw them away and exit with a code alone."""
    previous = logging.getLogRecordFactory()

    def factory(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = previous(*args, **kwargs)
        if record.levelno >= logging.ERROR:
            error = sys.exc_info()[1]
            if isinstance(error, Exception):
                with meter.guard("log"):
                    meter.saw(error, "log")
        return record

    logging.setLogRecordFactory(factory)


PATCHES: dict[str, Patch] = {
    "transformers.trainer": patch_trainer,
    "accelerate.accelerator": patch_accelerator,
    "accelerate.utils.memory": patch_retry,
    "torch.optim.optimizer": patch_optimizer,
    "torch.utils.data.dataloader": patch_loader,
}
