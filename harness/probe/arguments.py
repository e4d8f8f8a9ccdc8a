"""The training arguments that a scenario names, as the program really has them: options may be lost, or overridden."""

from collections.abc import Collection, Mapping
from enum import Enum
from typing import Any

from .layout import JobPaths
from .reading import read_document
from .redact import redact_tree

PLAIN = (bool, int, float, str, type(None))


def parsed_arguments(job: JobPaths, args: Any, secrets: Collection[str] = ()) -> "dict[str, Any] | None":
    """The fields of an `arguments` event; None where the scenario names no training arguments.

    `args` are those of the Trainer."""
    asked = ((read_document(job.job) or {}).get("scenario") or {}).get("training")
    if not isinstance(asked, dict) or not asked:
        return None
    there = [name for name in asked if hasattr(args, name)]
    got = {name: plain(getattr(args, name)) for name in there}
    return {
        "got": redact_tree({name: value for name, (value, known) in got.items() if known}, set(secrets)),
        "unknown": [name for name in asked if name not in there],
        "opaque": [name for name, (_, known) in got.items() if not known],
    }


def plain(value: Any) -> "tuple[Any, bool]":
    """(the value as JSON has it, whether it can be told so); of a choice its value."""
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, PLAIN):
        return value, True
    if isinstance(value, (list, tuple)):
        items = [plain(item) for item in value]
        return [item for item, _ in items], all(known for _, known in items)
    if isinstance(value, Mapping):
        entries = {str(key): plain(item) for key, item in value.items()}
        return {key: item for key, (item, _) in entries.items()}, all(known for _, known in entries.values())
    return None, False
