"""Placeholders in a target's arguments: `{model_dir}`, `{training.learning_rate}`, replaced before launch.

Only a name in braces is one, so JSON passes as it is; `{{name}}` stands for the text `{name}`."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

# Known once the case is prepared, and what each needs of the scenario.
PREPARED = {
    "case_id": None,
    "output_dir": None,
    "processes": None,  # ranks, on GPUs or not
    "model_dir": "model",
    "data_file": "data",
    "data_dir": "data",  # the folder that holds the file and nothing else
}
ALL_TRAINING = "training"  # every key of `training` as `--key value`
# Why a list without items is refused: `--key` would stand there with no word behind it.
EMPTY = (
    "is an empty list, which no command line can hold; leave it out, or write the program's own word (report_to: none)"
)
_NAME = r"[A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*"
_PLACEHOLDER = re.compile(rf"\{{\{{({_NAME})\}}\}}|\{{({_NAME})\}}")


def names(text: str) -> list[str]:
    """The placeholders of one argument, in order."""
    return [match[2] for match in _PLACEHOLDER.finditer(text) if match[2]]


def used(arguments: Sequence[str]) -> set[str]:
    """The placeholders of all arguments."""
    return {name for argument in arguments for name in names(argument)}


def keys_of(scenario: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted name -> value of every key of a resolved scenario that has a value; environment variables aside."""
    found: dict[str, Any] = {}
    for key, value in scenario.items():
        if key != "env" and value is not None:
            _flatten(key, value, found)
    return found


def fill(arguments: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """The arguments with their placeholders replaced.

    A list that is an argument of its own becomes several; a true or false is written out, never dropped.  Raises
    KeyError for a name without a value."""
    filled: list[str] = []
    for argument in arguments:
        if is_alone(argument):
            [name] = names(argument)
            filled += options(values[name]) if name == ALL_TRAINING else words(values[name])
        else:
            filled.append(_PLACEHOLDER.sub(lambda found: _replacement(found, values), argument))
    return filled


def escape(text: str) -> str:
    """The argument from which `fill` makes the text."""
    return _PLACEHOLDER.sub(lambda found: f"{{{found[0]}}}", text)


def options(values: Mapping[str, Any]) -> list[str]:
    """`--key value` for each key that has a value, as Hugging Face's argument parser reads them.

    A value that looks like an option (-1e-07, too, for argparse) is joined to its key."""
    return [word for key, value in values.items() if value is not None for word in _option(key, words(value))]


def _option(key: str, given: Sequence[str]) -> list[str]:
    if len(given) == 1 and given[0].startswith("-"):
        return [f"--{key}={given[0]}"]
    return [f"--{key}", *given]


def is_alone(argument: str) -> bool:
    """Whether the argument is a placeholder and nothing else, so that a list becomes several words, or none."""
    match = _PLACEHOLDER.fullmatch(argument)
    return bool(match and match[2])


def words(value: Any) -> list[str]:
    """A value as words of a command line: a list's items one by one, anything else as one."""
    return [text_of(item) for item in value] if isinstance(value, (list, tuple)) else [text_of(value)]


def text_of(value: Any) -> str:
    """true, false, a number with all its digits, text as it is, JSON for a mapping or a list."""
    return value if isinstance(value, str) else json.dumps(value)


def _replacement(found: "re.Match[str]", values: Mapping[str, Any]) -> str:
    return f"{{{found[1]}}}" if found[1] else text_of(values[found[2]])


def _flatten(name: str, value: Any, found: dict[str, Any]) -> None:
    found[name] = value
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if inner is not None:
                _flatten(f"{name}.{key}", inner, found)
