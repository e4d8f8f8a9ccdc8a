"""The schema: what a scenario is once it is read, with every default filled in.  Values only, no YAML."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from harness.record import Kind
from harness.scenario import fms, placeholders
from harness.scenario.located import suggest

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


class Refusal(ValueError):
    """An error of a whole model that belongs to one key below it (no path: to the model itself)."""

    def __init__(self, problem: str, *path: str) -> None:
        super().__init__(problem)
        self.path = path


class Frozen(BaseModel):
    # Strict: `samples: true` or `gpus: "2"` is a slip, not a number.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Model(Frozen):
    """Exactly one of `shape` and `path`; a catalogue name has been resolved to its shape."""

    name: str | None = None  # in the catalogue
    shape: dict[str, Any] | None = None  # model_type and fields of its transformers config
    path: str | None = Field(default=None, min_length=1)  # absolute folder, or hub id
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    attention: Literal["eager", "sdpa", "flash_attention_2"] | None = None  # None: transformers chooses

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.shape is None) == (self.path is None):
            raise Refusal("names no model; give one of name: (catalogue), shape: or path:")
        if self.shape is not None and not isinstance(self.shape.get("model_type"), str):
            raise Refusal("has no model_type; add one, such as model_type: llama", "shape")
        return self


class Method(Frozen):
    """`full` trains every parameter; the other fields are LoRA's and None there."""

    kind: Literal["full", "lora"]
    rank: int | None = Field(default=None, ge=1, le=65536)
    alpha: float | None = Field(default=None, gt=0)
    dropout: float | None = Field(default=None, ge=0, lt=1)
    targets: list[str] | Literal["all-linear"] | None = None  # module name suffixes

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("kind") == "lora":
            given = {key: option for key, option in value.items() if option is not None}
            return {"rank": 8, "alpha": 16, "dropout": 0.0, "targets": "all-linear"} | given
        return value

    @model_validator(mode="after")
    def _only_for_lora(self) -> Self:
        given = [key for key in ("rank", "alpha", "dropout", "targets") if getattr(self, key) is not None]
        if self.kind != "lora" and given:
            raise Refusal(f"belongs to lora, not to {self.kind}; remove it, or exclude the combination", given[0])
        if self.targets == []:
            raise Refusal("is empty; name modules, or all-linear", "targets")
        return self


class Trainer(Frozen):
    """The target: the built-in Hugging Face trainer, fms-hf-tuning's, or a program of the user's."""

    kind: Literal["hf", "script", "fms"] = "hf"
    target: str | None = Field(default=None, min_length=1)  # absolute file path, module name, or program's name
    form: Literal["file", "module", "program"] = "file"  # program: in the folder of the stack's interpreter
    args: list[str] = []  # with placeholders
    cwd: str | None = None  # absolute; None: where the harness was started
    launcher: Literal["harness", "own"] = "harness"  # own: the target starts its ranks itself
    options: dict[str, Any] = {}  # of fms: further arguments of its sft_trainer

    @model_validator(mode="after")
    def _target(self) -> Self:
        if self.kind == "script" and self.target is None:
            raise Refusal("script needs a target; write target: FILE or target: {module: NAME}")
        if self.kind != "script":
            given = [key for key in ("target", "args", "cwd") if getattr(self, key)]
            given += ["launcher"] if self.launcher == "own" else []
            if given:
                raise Refusal(f"belongs to script, not to {self.kind}; remove it, or write kind: script", given[0])
        if self.options and self.kind != "fms":
            raise Refusal(f"belongs to fms, not to {self.kind}; remove it", "options")
        return self


class Lengths(Frozen):
    """How long samples are, in tokens.  `mean` and `std` are the lengths' own, before `min` and `max` clip them."""

    distribution: Literal["uniform", "normal", "lognormal"]
    min: int = Field(default=2, ge=2)  # a sample of one token has nothing to learn
    max: int | None = Field(default=None, ge=2)  # `Data` fills in its sequence_length
    mean: float | None = Field(default=None, gt=0)
    std: float | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        moments = self.mean is not None or self.std is not None
        if self.distribution == "uniform" and moments:
            raise Refusal("uniform has no mean and no std; give min and max", "distribution")
        if self.distribution != "uniform" and (self.mean is None or self.std is None):
            raise Refusal(f"{self.distribution} needs mean and std; add them, in tokens", "distribution")
        return self


class Data(Frozen):
    """Synthetic data, made from the seed; for programs of the user's a file of it, or data that is there."""

    format: Literal["text", "messages", "prompt_completion", "preference"] | None = None  # of a file's rows
    file: Literal["jsonl", "parquet"] | None = None
    path: str | None = Field(default=None, min_length=1)  # absolute file or folder, or hub id: instead of synthetic
    samples: int = Field(default=1024, ge=1, le=100_000_000)
    sequence_length: int = Field(default=512, ge=2, le=16_777_216)
    lengths: Literal["fixed"] | Lengths = "fixed"
    packing: Literal["padded", "packed"] = "padded"
    workers: int = Field(default=0, ge=0, le=256)
    seed: int = Field(default=0, ge=0, lt=2**32)

    @model_validator(mode="before")
    @classmethod
    def _longest(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("lengths"), dict) and value["lengths"].get("max") is None:
            longest = value.get("sequence_length", cls.model_fields["sequence_length"].default)
            return value | {"lengths": value["lengths"] | {"max": longest}}
        return value

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.path is not None:
            made = sorted(
                self.model_fields_set - {"path"} - {key for key in ("format", "file") if not getattr(self, key)}
            )
            if made:
                raise Refusal("describes synthetic data, and path: gives other data; remove one of them", made[0])
        return self

    @model_validator(mode="after")
    def _inside(self) -> Self:
        lengths = self.lengths
        if isinstance(lengths, Lengths) and not lengths.min <= (lengths.max or 0) <= self.sequence_length:
            got = f"{lengths.min}, {lengths.max}, {self.sequence_length}"
            raise Refusal(f"needs min <= max <= sequence_length, got {got}; correct them", "lengths")
        return self


def _requirement(text: str) -> str:
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        raise ValueError(f"{text!r} is no requirement; write one such as peft>=0.13") from None
    if requirement.url or requirement.marker or requirement.extras:
        raise ValueError(f"{text!r} has more than a name and versions; write one such as peft>=0.13")
    return text


class Needs(Frozen):
    """What must be there, else the case is skipped."""

    gpu_memory_bytes: int | None = Field(default=None, ge=1)  # of each GPU
    packages: list[Annotated[str, AfterValidator(_requirement)]] = []


def _kind(text: str) -> str:
    if text not in set(Kind):
        raise ValueError(f"{text!r:.60} is no kind of verdict; {suggest(text, [kind.value for kind in Kind])}")
    return text


class When(Frozen):
    """Conditions on the GPUs that a case leases; all that are given must hold."""

    gpu_memory_below_bytes: int | None = Field(default=None, ge=1)  # of the smallest
    gpu_memory_at_least_bytes: int | None = Field(default=None, ge=1)  # of each
    gpu_name: str | None = Field(default=None, min_length=1)  # a pattern for each, as NVML names them; case aside
    gpus_below: int | None = Field(default=None, ge=2, le=4096)  # how many there are

    @model_validator(mode="after")
    def _may_hold(self) -> Self:
        given = [value for value in self.model_dump().values() if value is not None]
        if not given:
            raise Refusal("is empty; give it a condition, or remove it")
        below, least = self.gpu_memory_below_bytes, self.gpu_memory_at_least_bytes
        if below is not None and least is not None and least >= below:
            problem = "is not more than gpu_memory_at_least, so that both never hold; correct one of them"
            raise Refusal(problem, "gpu_memory_below_bytes")
        return self


class Expect(Frozen):
    """The verdict that is expected where `when` holds; `none` is that of a job that trains."""

    kind: Annotated[str, AfterValidator(_kind)]
    when: When | None = None


class Until(Frozen):
    """Training goes on until the median step time is known well enough, within bounds."""

    interval: float = Field(default=0.02, gt=0, lt=1)  # width of the median's 95 % interval over the median, at most
    min_steps: int = Field(default=20, ge=1)  # before anybody asks
    max_steps: int = Field(default=500, ge=1)
    max_time_s: float | None = Field(default=None, gt=0)  # of training
    every: int = Field(
        default=10, ge=1
    )  # steps from one look at the times to the next, and from the word to its effect

    @model_validator(mode="after")
    def _may_end(self) -> Self:
        first_look = -(-self.min_steps // self.every) * self.every
        if first_look + self.every >= self.max_steps:
            least = first_look + self.every + 1
            raise Refusal(f"comes before training could stop by the interval; write at least {least}", "max_steps")
        return self


class StackFiles(Frozen):
    """Requirement files from which an environment of its own is made."""

    requirements: list[Annotated[str, Field(min_length=1)]] = Field(min_length=1)  # absolute paths
    no_deps: list[Annotated[str, Field(min_length=1)]] = []  # installed last, without what they depend on


class Diagnostics(Frozen):
    """What is kept for the search for a cause, at a cost."""

    memory_snapshot: bool = False  # the allocator's history, written when a GPU's memory runs out


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


class Scenario(Frozen):
    """One combination of model, method, size and software that is to be measured."""

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
        used = {name for argument in self.trainer.args for name in placeholders.names(argument)}
        known = {*placeholders.keys_of(self.model_dump()), *placeholders.PREPARED}
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
        if self.data is not None and not used & {"data_file", "data_dir"}:
            raise Refusal("is not passed to the script; write {data_file} among trainer: {args: [...]}", "data")
        for key in self.training if placeholders.ALL_TRAINING not in used else ():
            if f"training.{key}" not in used:
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
