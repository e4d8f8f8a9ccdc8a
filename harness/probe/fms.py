"""The target `fms`: fms-hf-tuning's own trainer, unmodified, run as `-m harness_probe.fms ARGS...`.

It ignores options that it does not know, and trains on: its own parser is asked first whether it takes each argument,
and as it was meant."""

import difflib
import enum
import importlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from .finetune import leave
from .target import run_target

TRAINER = "tuning.sft_trainer"
# It reads its arguments there and nowhere else where one is set.
CONFIGURED_BY = ("SFT_TRAINER_CONFIG_JSON_PATH", "SFT_TRAINER_CONFIG_JSON_ENV_VAR")


def main(argv: Sequence[str]) -> None:
    """Check the arguments, then run the trainer as `python -m tuning.sft_trainer ARGS...` would.

    Raises ValueError for an argument that would be ignored or taken for something else, SystemExit(2) for one that the
    trainer's parser refuses, and whatever the trainer raises."""
    check(argv, parser(), os.environ)
    run_target(TRAINER, argv, module=True)
    leave()


def parser() -> Any:
    """The trainer's argument parser; the module is then imported anew, as a program."""
    module = importlib.import_module(TRAINER)
    made = module.get_parser()
    package, _, name = TRAINER.rpartition(".")
    del sys.modules[TRAINER]  # else runpy warns of it
    if hasattr(sys.modules[package], name):
        delattr(sys.modules[package], name)
    return made


def check(argv: Sequence[str], parser: Any, environ: Mapping[str, str]) -> None:
    """Raises ValueError, or SystemExit as the parser does."""
    configured = next((name for name in CONFIGURED_BY if environ.get(name)), None)
    if configured:
        raise ValueError(f"{configured} is set: fms-hf-tuning would read its arguments there alone; unset it")
    actions = {option: action for action in parser._actions for option in action.option_strings}
    asked = _asked(argv)
    for option, _ in asked:
        if option not in actions:
            raise ValueError(f"fms-hf-tuning has no option {option[2:]}; {_nearest(option, list(actions))}")
    parsed, left = parser.parse_known_args(list(argv))
    if left:
        raise ValueError(f"fms-hf-tuning would ignore {' '.join(left)!r}")
    for option, words in asked:
        value = getattr(parsed, actions[option].dest)
        if not same(value, words):
            raise ValueError(f"fms-hf-tuning takes {option[2:]} for {value!r}, and {' '.join(words)!r} was asked for")


def _asked(argv: Sequence[str]) -> list[tuple[str, list[str]]]:
    asked: list[tuple[str, list[str]]] = []
    for word in argv:
        if word.startswith("--"):
            option, assigned, value = word.partition("=")
            asked.append((option, [value] if assigned else []))
        elif asked:
            asked[-1][1].append(word)
        else:
            raise ValueError(f"fms-hf-tuning would ignore {word!r}")
    return asked


def _nearest(option: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(option, known, n=1)
    return f"did you mean {near[0][2:]}?" if near else "see python -m tuning.sft_trainer --help"


def same(value: Any, words: Sequence[str]) -> bool:
    """Whether a parsed value is what the words on the command line say."""
    if isinstance(value, (list, tuple)):
        return len(value) == len(words) and all(same(item, [word]) for item, word in zip(value, words, strict=True))
    if len(words) != 1:
        return False
    word = words[0]
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, bool) or value is None:
        return word.lower() in {True: ("true", "1"), False: ("false", "0"), None: ("none", "null")}[value]
    if isinstance(value, (int, float)):
        try:
            return float(word) == float(value)
        except ValueError:
            return False
    if isinstance(value, str):
        return value.lower() == word.lower()
    try:
        return bool(json.loads(word) == value)
    except ValueError:
        return False


if __name__ == "__main__":
    main(sys.argv[1:])
