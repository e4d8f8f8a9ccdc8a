"""The training arguments that were asked for against those that the program had."""

from collections.abc import Mapping, Sequence
from typing import Any

from harness.journal import RankJournal


def differing_arguments(ranks: Sequence[RankJournal], scenario: Mapping[str, Any]) -> str | None:
    """What differs, field by field, over all segments and ranks; None where nothing does or nothing was told.

    An asked null leaves the value to the program."""
    asked = {name: want for name, want in (scenario.get("training") or {}).items() if want is not None}
    found: dict[str, None] = {}  # in order, each once
    for event in (event for rank in ranks for event in rank.of("arguments")):
        got = event.get("got") or {}
        for name, want in asked.items():
            if name in (event.get("unknown") or ()):
                found[f"{name}: {_shown(want)} asked for, the program has no such argument"] = None
            elif name in got and not same(want, got[name]):
                found[f"{name}: {_shown(want)} asked for, {_shown(got[name])} in effect"] = None
    return "; ".join(found) or None


def same(asked: Any, got: Any) -> bool:
    """Whether a parsed value is the one that was asked for, whatever its spelling.

    TrainingArguments reads numbers in text and fills up mappings; of text it makes a list of words, none of `none`, and
    whatever is there of `all` (4.46 to 5.x); of fsdp's words 5.x makes true, and of true and false for
    include_num_input_tokens_seen `all` and `no`."""
    if isinstance(got, list | tuple):
        return asked == bool(got) if isinstance(asked, bool) else _same_words(asked, got)
    if isinstance(asked, bool) and got in ("all", "no"):
        return asked is (got == "all")
    if isinstance(got, bool) and (isinstance(asked, list | tuple) or _is_words(asked)):
        return got == (bool(asked) and asked != "none")
    if isinstance(asked, bool) or isinstance(got, bool):
        return _truth(asked) is not None and _truth(asked) == _truth(got)
    if isinstance(asked, Mapping) and isinstance(got, Mapping):
        return all(key in got and same(value, got[key]) for key, value in asked.items())
    numbers = _number(asked), _number(got)
    if None not in numbers:
        return numbers[0] == numbers[1]
    return asked == got or str(asked).lower() == str(got).lower()


def _same_words(asked: Any, got: Sequence[Any]) -> bool:
    words = list(asked) if isinstance(asked, list | tuple) else str(asked or "none").replace(",", " ").split()
    if words == ["all"]:
        return True
    if words == ["none"]:
        words = []
    return len(words) == len(got) and all(map(same, words, got))


def _is_words(value: Any) -> bool:
    return isinstance(value, str) and _truth(value) is None and _number(value) is None


def _truth(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False, "1": True, "0": False}.get(str(value).lower())


def _number(value: Any) -> float | None:
    try:
        return float(value) if isinstance(value, int | float | str) else None
    except ValueError:
        return None


def _shown(value: Any) -> str:
    return str(value)[:100]
