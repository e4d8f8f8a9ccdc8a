"""The callback by which a Trainer is measured: the probe gives it to every Trainer; a program may add it by hand.

The one module of the probe that imports another library outside of functions: to be imported inside of them."""

import os
import sys
from collections.abc import Mapping
from typing import Any

from transformers.trainer_callback import TrainerCallback

from .attach import Attached, Attachment, Name, Repo, attach
from .hooks import install_for_own
from .measure import Meter
from .model import count_parameters, is_whole, trainable_names
from .shape import count_roles

FROZEN_SINCE = "other parameters train than when the Trainer was made, and the model has been sharded since"


class BenchmarkAimCallback(Attached, TrainerCallback):  # type: ignore[misc]
    """Labels a job, and leaves all that was tracked in one JSON document and in a run of an Aim repo.

    `custom_metadata`: labels, any mapping that JSON can hold; `experiment` among them names the run's experiment.
    `output_file`: where the dump is written when training ends, well or by an exception.
    `repo`: folder or aim:// URL; by default the folder of results, where this interpreter has Aim; False: no Aim.
    `results`: where the job directory is made, if the job is the program's own.

    In a program of its own it measures the Trainer that it is given to.  In a job of the harness, which measures
    already, it adds its labels and its output file, and the run is the job's.
    Aim lives in a process of its own: nothing that becomes of it reaches training.

    Raises TypeError for arguments of a wrong type, OSError when the output file or a job directory cannot be made."""

    def __init__(
        self,
        custom_metadata: Mapping[str, Any] | None = None,
        output_file: str | os.PathLike[str] | None = None,
        repo: Repo = None,
        results: Name = "results",
    ) -> None:
        self._attached = attach(custom_metadata, output_file, repo, results)
        if self._attached.job is not None:
            install_for_own(self._attached.meter)
        self._forget()

    @property
    def harness_meter(self) -> Meter | None:
        """The meter that is to measure the Trainer which has this callback; None when another callback does it."""
        return self._attached.meter if self._attached.feeds and not self._attached.meter.off else None

    def close(self) -> None:
        """End the job now, where it is the program's own: by default it ends with the process, or when the next begins
        after training.  In a notebook, nobody finds the run before."""
        self._attached.close()

    def _forget(self) -> None:
        self._counted: dict[str, Any] | None = None
        self._roles: dict[str, Any] | None = None
        self._trained: frozenset[str] | None = None

    def _count(self, model: Any) -> None:
        self._counted, self._roles = count_parameters(model), count_roles(model)
        self._trained = trainable_names(model)

    def _count_again(self, model: Any) -> None:
        """The program may have frozen parameters, or added some, since the Trainer was made."""
        if is_whole(model):
            self._count(model)
        elif self._roles is not None and trainable_names(model) not in (None, self._trained):
            self._counted, self._roles = None, self._roles | {"reason": FROZEN_SINCE}

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if (meter := self.harness_meter) is not None:
            with meter.guard("on_init_end"):  # here the model is whole; later it may be wrapped, sharded, partitioned
                self._forget()
                if (model := kwargs.get("model")) is not None:
                    self._count(model)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._attached.job is not None and self._attached.meter.off:
            print(
                "harness: this training is not measured: its job has ended, or is a parent process's", file=sys.stderr
            )
        if (meter := self.harness_meter) is not None:
            with meter.guard("count"):
                if (model := kwargs.get("model")) is not None:
                    self._count_again(model)
            with meter.guard("on_train_begin"):
                meter.begin(args, state, kwargs.get("model"), self._counted, self._roles)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if (meter := self.harness_meter) is not None:
            with meter.guard("on_pre_optimizer_step"):
                meter.step.saw_optimizer(kwargs.get("optimizer"))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if (meter := self.harness_meter) is not None:
            with meter.guard("on_step_end"):
                meter.step_ended(state.global_step, state.epoch)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if (meter := self.harness_meter) is not None:
            with meter.guard("on_log"):
                meter.logged(state.global_step, logs or {}, state.epoch)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if (meter := self.harness_meter) is not None:
            with meter.guard("on_evaluate"):
                meter.evaluated(state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if (meter := self.harness_meter) is not None:
            with meter.guard("on_save"):
                meter.saved(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if (meter := self.harness_meter) is not None:
            with meter.guard("parameters"):
                meter.saw_result(kwargs.get("model"), state.global_step)
            with meter.guard("on_train_end"):
                meter.end_segment()

    def __reduce__(self) -> Any:
        # A Trainer that is sent to another process (a search over hyperparameters) is no rank of ours there.
        return TrainerCallback, ()

    def __deepcopy__(self, memo: Any) -> Any:
        return self


def injected(meter: Meter) -> type[BenchmarkAimCallback]:
    """The class of which every Trainer makes its own object, in a job of the harness."""

    class InjectedCallback(BenchmarkAimCallback):
        """Measures a Trainer for the job's meter."""

        def __init__(self) -> None:
            self._attached = Attachment(meter, feeds=True)
            self._forget()

    return InjectedCallback
