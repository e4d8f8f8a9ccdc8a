"""The schema: what a scenario is once it is read, with every default filled in.  Values only, no YAML."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, Field, model_validator

from harness.record import Kind
from harness.scenario import fms, placeholders
from harness.scenario.located import suggest
from harness.scenario.parts import (
    STRICT,
    Data,
    Diagnostics,
    Expect,
    Method,
    Model,
    Needs,
    Refusal,
    StackFiles,
    Trainer,
    Until,
)

# Above NCCL's own time-out for a collective operation (10 minutes), which says more, and below gloo's (30).
DEFAULT_HANG_AFTER_S = 900.0
DEFAULT_BATCH_SIZE = 8  # TrainingArguments' own; written into `training`, so that ids and records tell it

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
MAX_NAME = 80
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")

# What the built-in trainer is given by other keys, or has no use for, and the remedy.
OWNED = {
    "output_dir": "the harness sets it to the job's folder; use keep_outputs: true to keep what is written",
    "report_to": "the harness sets it to none, since it measures itself",
    "use_cpu": "write processes: N for CPU, gpus: N for GPUs",
    "no_cuda": "write processes: N for CPU, gpus: N for GPUs",
    "local_rank": "torchrun sets it",
    "dataloader_num_workers": "write data: {workers: N}",
    "do_train": "the built-in trainer does not read it",
    "do_eval": "the built-in trainer does not read it",
    "do_predict": "the built-in trainer does not read it",
    "resume_from_checkpoint": "the built-in trainer does not read it",
}
_OWNED_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "the lease sets it; write gpus: N",
    "RANK": "torchrun sets it",
    "LOCAL_RANK": "torchrun sets it",
    "WORLD_SIZE": "write gpus: N or processes: N",
}
# Kinds that end the same way however often a job is launched.
NEVER_RETRIED = {"none", "user_error", "no_training", "nan_loss"}
ANY = "any"  # in `retries`: every transient verdict that has no number of its own
_AT_LEAST_ONE = ("per_device_train_batch_size", "gradient_accumulation_steps", "per_device_eval_batch_size")
# Words of a marker expression, and pytest's own marks, which would act on the case.
_RESERVED_TAGS = {
    *("and", "or", "not", "skip", "skipif", "xfail", "parametrize", "usefixtures", "filterwarnings"),
    *("timeout", "flaky", "benchmark", "no_cover", "xdist_group", "tryfirst", "trylast"),
}


def _name(text: str) -> str:
    if len(text) > MAX_NAME or not NAME.match(text) or ".." in text:
        rule = f"use at most {MAX_NAME} of A-Z a-z 0-9 . _ -, a letter or digit first, no two dots together"
        raise ValueError(f"{text[:100]!r} cannot be part of an id; {rule}")
    return text


def _tag(text: str) -> str:
    if not text.isidentifier() or not text.isascii() or text in _RESERVED_TAGS or text in {"True", "False", "None"}:
        raise ValueError(
            f"{text!r} cannot be a pytest marker here; use letters, digits and _, and no mark of pytest's own"
        )
    return text


class Scenario(BaseModel):
    """One combination of model, method, size and software that is to be measured."""

    model_config = STRICT

    name: Annotated[str, AfterValidator(_name)]
    model: Model | None = None
    method: Method = Method(kind="full")
    trainer: Trainer = Trainer()
    data: Data | None = None
    training: dict[str, Any] = {}  # fields of TrainingArguments
    gpus: int | None = Field(default=None, ge=1, le=4096)
    processes: int | None = Field(default=None, ge=1, le=4096)
    needs: Needs = Needs()
    expect: Expect | None = None
    retries: dict[str, Annotated[int, Field(ge=0, le=100)]] = {}  # kind of a transient verdict, or ANY: how often
    python: str | None = Field(default=None, min_length=1)  # interpreter; None: the harness's own
    stack: StackFiles | None = None  # None: what the interpreter has
    env: dict[str, str] = {}
    time_limit_s: float | None = Field(default=None, gt=0)
    hang_after_s: Annotated[float, Field(gt=0)] | Literal["auto", "none"] = "auto"
    diagnostics: Diagnostics = Diagnostics()
    keep_outputs: bool = False
    until: Until | None = None  # None: the program's own number of steps
    measure_steps: bool = True  # False: a job without a training step is no failure
    peak_flops: float | None = Field(default=None, gt=0)  # FLOP/s of a device at most; None: the table's
    tags: list[Annotated[str, AfterValidator(_tag)]] = []
    labels: dict[str, str] = {}

    @property
    def world_size(self) -> int:
        """Training processes: one a GPU, or as many as `processes` says."""
        return self.gpus or self.processes or 1

    def labels_in(self, session: str, given: Mapping[str, str], found: Mapping[str, str]) -> dict[str, str]:
        """Labels of a case: by default the reserved ones and those of the surroundings, which are `found`, then the
        scenario's own, then the session's."""
        return {"experiment": self.name, "identifier": session, **found, **self.labels, **given}

    def default_labels(self, given: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
        """The labels that nobody has given: a program's own go over them."""
        return [name for name in self.labels_in("", {}, found) if name not in self.labels and name not in given]

    def time_limit_within(self, limit_s: float | None) -> float | None:
        """Seconds: the smaller of its own time limit and the session's; None where there is neither."""
        return min((limit for limit in (self.time_limit_s, limit_s) if limit is not None), default=None)

    def silence_allowed(self) -> tuple[float | None, bool]:
        """(seconds without any progress that are a hang, or None; whether a slow job is allowed more)."""
        if isinstance(self.hang_after_s, float | int):
            return float(self.hang_after_s), False
        return (None, False) if self.hang_after_s == "none" else (DEFAULT_HANG_AFTER_S, True)

    @property
    def on_gpu(self) -> bool:
        return self.gpus is not None

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, value: Any) -> Any:
        """What runs is told, not left to another's default: batch size and data, and the form of a data file."""
        if not isinstance(value, dict):
            return value
        kind = _trainer_kind(value)
        filled = dict(value)
        if kind != "script":
            filled["data"] = value["data"] if value.get("data") is not None else {}
        data = filled.get("data")
        if kind != "hf" and isinstance(data, dict) and data.get("path") is None:
            filled["data"] = {"format": "text", "file": "jsonl"} | data
        if kind == "script":
            return filled
        training = value.get("training")
        if training is None or isinstance(training, dict):
            filled["training"] = {"per_device_train_batch_size": DEFAULT_BATCH_SIZE} | (training or {})
        return filled

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.gpus is None) == (self.processes is None):
            raise Refusal("needs exactly one of gpus: and processes: (on CPU); write one of them", "gpus")
        if self.trainer.kind != "script" and self.model is None:
            raise Refusal("is missing; add model: NAME, such as model: llama-7b", "model")
        if self.trainer.kind != "hf" and self.until is not None:
            raise Refusal(
                "is for the built-in trainer: other programs decide themselves when they stop; remove it", "until"
            )
        self._check_passed_on()
        self._check_data()
        if self.on_gpu is False and self.needs.gpu_memory_bytes is not None:
            raise Refusal("needs gpus; remove it, or write gpus: N", "needs", "gpu_memory_bytes")
        self._check_training()
        self._check_fms()
        self._check_names()
        self._check_retries()
        return self

    def _check_passed_on(self) -> None:
        """A script gets its arguments and nothing else: what it is to have must stand there."""
        if self.trainer.kind != "script":
            return
        used = placeholders.used(self.trainer.args)
        values = placeholders.keys_of(self.model_dump())
        known = {*values, *placeholders.PREPARED}
        for number, argument in enumerate(self.trainer.args):
            for name in placeholders.names(argument):
                needed = placeholders.PREPARED.get(name)
                if name not in known:
                    remedy = f"{suggest(name, sorted(known))}; {{{{{name}}}}} is the text itself"
                    raise Refusal(
                        f"{{{name}}} names no key that has a value here: {remedy}", "trainer", "args", str(number)
                    )
                if needed and getattr(self, needed) is None:
                    problem = f"{{{name}}} needs {needed}: in the scenario; add it"
                    raise Refusal(problem, "trainer", "args", str(number))
                if placeholders.is_alone(argument) and values.get(name) == []:
                    raise Refusal(f"{{{name}}} {placeholders.EMPTY}", "trainer", "args", str(number))
        if self.data is not None and not used & {"data_file", "data_dir"}:
            raise Refusal("is not passed to the script; write {data_file} among trainer: {args: [...]}", "data")
        for key, value in self.training.items():
            if value == [] and f"{{{placeholders.ALL_TRAINING}}}" in self.trainer.args:
                raise Refusal(placeholders.EMPTY, "training", key)
            if value is not None and not used & {placeholders.ALL_TRAINING, f"training.{key}"}:
                problem = (
                    f"is not passed to the script; write {{training.{key}}}, or {{training}} for all, among its args"
                )
                raise Refusal(problem, "training", key)

    def _check_data(self) -> None:
        if self.data is None:
            return
        if self.trainer.kind == "hf":
            given = [key for key in ("format", "file", "path") if getattr(self.data, key) is not None]
            owner = "programs of your own; the built-in trainer makes its tokens itself"
        else:
            given = [
                key for key, default in (("packing", "padded"), ("workers", 0)) if getattr(self.data, key) != default
            ]
            owner = "the built-in trainer; tell the program by its own arguments"
        if given:
            raise Refusal(f"is for {owner}", "data", given[0])

    def _check_training(self) -> None:
        if self.until is not None and "max_steps" in self.training:
            raise Refusal("stands beside measure.until, which has a max_steps; remove one", "training", "max_steps")
        for key, value in self.training.items():
            if key in OWNED and self.trainer.kind == "hf":
                raise Refusal(f"is not for a scenario; {OWNED[key]}", "training", key)
            if key in _AT_LEAST_ONE and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise Refusal(f"must be a whole number of at least 1, got {value!r}; correct it", "training", key)

    def _check_fms(self) -> None:
        refusal = fms.refusal(self) if self.trainer.kind == "fms" else None
        if refusal is not None:
            raise Refusal(refusal[0], *refusal[1])

    def _check_retries(self) -> None:
        kinds = [kind.value for kind in Kind if kind not in NEVER_RETRIED]
        for key in self.retries:
            if key in NEVER_RETRIED:
                raise Refusal(f"ends the same way every time; known: {', '.join([*kinds, ANY])}", "retries", key)
            if key not in (*kinds, ANY):
                raise Refusal(f"is no kind of verdict; {suggest(key, [*kinds, ANY])}", "retries", key)

    def _check_names(self) -> None:
        for key in self.env:
            if not _ENVIRONMENT_NAME.match(key):
                raise Refusal("is no name of an environment variable; use letters, digits and _", "env", key)
            if key in _OWNED_ENVIRONMENT:
                raise Refusal(f"is not for a scenario; {_OWNED_ENVIRONMENT[key]}", "env", key)
            if key.startswith("HARNESS_"):
                raise Refusal("HARNESS_ is kept for the harness; choose another name", "env", key)
        for key in self.labels:
            if not key.strip() or len(key) > 100:
                raise Refusal("needs a name of 1 to 100 characters; correct it", "labels", key)


def _trainer_kind(value: dict[str, Any]) -> str:
    trainer = value.get("trainer")
    kind = trainer.get("kind", "hf") if isinstance(trainer, dict) else getattr(trainer, "kind", "hf")
    return str(kind)
