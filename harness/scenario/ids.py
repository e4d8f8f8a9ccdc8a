"""Ids of cases: readable, made from the values alone, in an order that no reordering of a file can change."""

from collections.abc import Mapping
from decimal import Decimal
from pathlib import PurePath
from typing import Any

from harness.scenario.schema import Scenario

MAX_ID = 200  # an id names a folder, and a file system's limit is 255 bytes

# The word before an axis's value in the id; "" where the value speaks for itself.  The order is the order in the id.
WORDS = {
    "model": "",
    "model.name": "",
    "model.path": "",
    "method": "",
    "training.per_device_train_batch_size": "bs",
    "data.sequence_length": "seq",
    "method.kind": "",
    "method.rank": "r",
    "method.alpha": "a",
    "method.dropout": "drop",
    "method.targets": "",
    "model.dtype": "",
    "model.attention": "",
    "training.gradient_accumulation_steps": "ga",
    "training.learning_rate": "lr",
    "training.lr_scheduler_type": "",
    "training.optim": "",
    "training.weight_decay": "wd",
    "training.warmup_steps": "warmup",
    "training.warmup_ratio": "warmupratio",
    "training.max_steps": "steps",
    "training.num_train_epochs": "epochs",
    "training.bf16": "bf16",
    "training.fp16": "fp16",
    "training.tf32": "tf32",
    "training.gradient_checkpointing": "gc",
    "training.activation_checkpointing": "ac",
    "training.torch_compile": "compile",
    "training.use_liger_kernel": "liger",
    "training.fsdp": "fsdp",
    "training.seed": "seed",
    "data.packing": "",
    "data.lengths": "",
    "data.lengths.distribution": "",
    "data.workers": "workers",
    "data.samples": "n",
    "data.seed": "dataseed",
    "expect.kind": "expect",
    "data.format": "",
    "data.file": "",
    "python": "",
    "stack": "",
    "stack.requirements": "",
    "stack.no_deps": "",
    "trainer": "",
    "trainer.kind": "",
    "trainer.target": "",
    "trainer.args": "",
    "trainer.launcher": "",
}
_ORDER = {key: place for place, key in enumerate(WORDS)}
_MODEL = ("model", "model.name", "model.path")
_PLACED = {*_MODEL, "method", "method.kind", "training.per_device_train_batch_size", "data.sequence_length"}
COUNTS = ("gpus", "processes")


def case_id(scenario: Scenario, tokens: Mapping[str, str], label: str | None = None) -> str:
    """The id of one combination.  `tokens` maps the dotted keys that make it to their words (see `token`).

    Name, model if it is an axis, method, batch size, sequence length, the other axes, label, number of processes.
    A script's method, batch size and sequence length are its own business, and the length of data that is there: they
    stand there only as axes."""
    built_in = scenario.trainer.kind != "script"
    there = scenario.data is not None and scenario.data.path is not None
    parts = [scenario.name, *(tokens[key] for key in _MODEL if key in tokens)]
    for key, known in (
        ("method", scenario.method.kind),
        ("training.per_device_train_batch_size", f"bs{scenario.training.get('per_device_train_batch_size')}"),
        ("data.sequence_length", f"seq{scenario.data.sequence_length if scenario.data else None}"),
    ):
        if key == "method" and key in tokens:
            parts.append(tokens[key])
        elif key == "data.sequence_length" and there:
            continue
        elif built_in or key in tokens or (key == "method" and "method.kind" in tokens):
            parts.append(known)
    others = [key for key in tokens if key not in _PLACED and key not in COUNTS]
    parts += [tokens[key] for key in sorted(others, key=lambda key: (_ORDER.get(key, len(_ORDER)), key))]
    parts += [label] if label else []
    parts.append(f"{scenario.world_size}{'gpu' if scenario.on_gpu else 'proc'}")
    return "-".join(parts)


def token(key: str, value: Any) -> str:
    """The words for one value of an axis: `bs4`, `lr2e-4`, `gc`, `nogc`, `sdpa`, `lora-r8`; made safe for an id."""
    if isinstance(value, Mapping):
        ordered = sorted(value, key=lambda name: (_ORDER.get(f"{key}.{name}", len(_ORDER)), name))
        if "kind" in value:
            ordered.remove("kind")
            ordered.insert(0, "kind")
        return "-".join(token(f"{key}.{name}", value[name]) for name in ordered) or "none"
    if key.startswith("stack") and value is not None:  # files, by their names alone
        value = [PurePath(path).stem for path in ([value] if isinstance(value, str) else value)]
    word = WORDS.get(key)
    own = word or safe(_own_word(key))
    if isinstance(value, bool):
        return own if value else f"no{own}"
    if isinstance(value, (int, float)):
        return f"{own}{number(value)}"
    text = "none" if value is None else ".".join(map(_item, value)) if isinstance(value, list) else str(value)
    text = safe(text) or "empty"
    return text if word == "" and value is not None else f"{own}{'' if text[0].isdigit() else '.'}{text}"


def _own_word(key: str) -> str:
    """The last part where the sections before it are no loss: `training.x`, what is known, what lies deep."""
    last = key.rpartition(".")[2]
    return last if key in WORDS or key.startswith(("training.", "method.")) or key.count(".") > 1 else key


def _item(value: Any) -> str:
    return number(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)


def number(value: int | float) -> str:
    """Every digit and none too many: `8`, `0.05`, `2e-4`, `1e6` for 1e6 but `2048` for 2048."""
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e6):
        return str(int(value))
    sign, digits, _ = Decimal(repr(value)).normalize().as_tuple()
    exponent = Decimal(repr(value)).adjusted()
    if -2 <= exponent < 6:
        return repr(value)
    mantissa = "".join(map(str, digits))
    mantissa = f"{mantissa[0]}.{mantissa[1:]}" if len(mantissa) > 1 else mantissa
    return f"{'-' if sign else ''}{mantissa}e{exponent}"


def safe(text: str) -> str:
    """The text with everything outside A-Z a-z 0-9 . _ - made into hyphens, and no two dots together."""
    kept = "".join(
        character if character.isascii() and (character.isalnum() or character in "._-") else "-" for character in text
    )
    while "--" in kept or ".." in kept:
        kept = kept.replace("--", "-").replace("..", ".")
    return kept.strip("-.")
