"""The parts of a scenario, each with what can be said of it alone.  Values only, no YAML."""

from typing import Annotated, Any, Literal, Self

from packaging.requirements import InvalidRequirement, Requirement
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from harness.record import Kind
from harness.scenario.located import suggest


class Refusal(ValueError):
    """An error of a whole model that belongs to one key below it (no path: to the model itself)."""

    def __init__(self, problem: str, *path: str) -> None:
        super().__init__(problem)
        self.path = path


# Strict: `samples: true` or `gpus: "2"` is a slip, not a number.
STRICT = ConfigDict(frozen=True, extra="forbid", strict=True)


class Frozen(BaseModel):
    model_config = STRICT


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
