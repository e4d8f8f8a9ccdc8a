"""Expands a scenario's `matrix` into its combinations: the product of the axes, less `exclude`, plus `include`."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from harness.scenario import ids
from harness.scenario.located import ScenarioError, YamlList, YamlMap, suggest
from harness.scenario.schema import NAME
from harness.scenario.spelling import TOP_LEVEL, lengthen, long_key, set_dotted

MAX_CASES = 10_000  # a file
MAX_TOKEN = 60

KEYS = sorted(TOP_LEVEL - {"name"})
# Set by an `include`, these say how a combination is run and not what it is: they are in no id unless they are axes.
_NOT_IN_IDS = {
    *("needs", "expect", "retries", "labels", "env", "time_limit", "hang_after", "keep_outputs", "tags", "measure"),
    "diagnostics",
}


@dataclass(frozen=True)
class Setting:
    """One value at one dotted key; `token` is its part of the id, None where it has none."""

    value: Any
    line: int
    token: str | None


@dataclass(frozen=True)
class Combination:
    line: int
    settings: dict[str, Setting] = field(default_factory=dict)
    axes: frozenset[str] = frozenset()  # keys of the product, which an include may not change
    label: str | None = None

    @property
    def tokens(self) -> dict[str, str]:
        return {key: setting.token for key, setting in self.settings.items() if setting.token is not None}


def expand(scenario: YamlMap) -> list[tuple[YamlMap, Combination]]:
    """The scenarios (without `matrix`) that a scenario stands for, each with what made it.  Raises ScenarioError."""
    base = scenario.copy()
    base.drop("matrix")
    if "matrix" not in scenario:
        return [(base, Combination(scenario.line))]
    expanded = []
    for combination in combinations(scenario["matrix"], scenario.lines["matrix"]):
        made = base
        # `method` before `method.rank`, whatever order they were written in.
        for key in sorted(combination.settings, key=lambda key: (key.count("."), key)):
            setting = combination.settings[key]
            made = set_dotted(made, key, setting.value, setting.line)
        expanded.append((made, combination))
    return expanded


def combinations(matrix: Any, line: int) -> list[Combination]:
    if not isinstance(matrix, YamlMap):
        raise ScenarioError(line, "matrix", "must be a mapping of dotted keys to lists; write it as one")
    axes = {}
    for written, values in matrix.items():
        if written not in ("include", "exclude"):
            at = matrix.lines[written]
            key = _known_key(written, f"matrix.{written}", at)
            if key in axes:
                raise ScenarioError(at, f"matrix.{written}", f"is the same axis as {key}; remove one")
            axes[key] = _axis(key, f"matrix.{written}", values, at)
    count = math.prod(len(values) for values in axes.values())
    if count > MAX_CASES:
        raise ScenarioError(
            line, "matrix", f"makes {count:,} cases, the limit is {MAX_CASES:,} a file; shorten its lists"
        )
    made = [_combination(axes, settings, line) for settings in itertools.product(*axes.values())] if axes else []
    for dotted, at in _entries(matrix, "exclude"):
        made = _exclude(made, dotted, list(axes), at)
    for dotted, at in _entries(matrix, "include"):
        made = _include(made, dotted, at)
        if len(made) > MAX_CASES:
            raise ScenarioError(at, "matrix.include", f"makes more than {MAX_CASES:,} cases; shorten it")
    if not made:
        raise ScenarioError(line, "matrix", "leaves no combination; give an axis values, or remove the matrix")
    return made


def _combination(axes: dict[str, list[Setting]], settings: tuple[Setting, ...], line: int) -> Combination:
    return Combination(
        max(setting.line for setting in settings), dict(zip(axes, settings, strict=True)), frozenset(axes)
    )


def _known_key(written: str, place: str, line: int) -> str:
    first = written.split(".")[0]
    if first in ("name", "matrix", "defaults", "scenarios"):
        raise ScenarioError(line, place, f"{first} cannot vary in a matrix; write another scenario")
    if first not in KEYS:
        raise ScenarioError(line, place, f"unknown key; {suggest(first, KEYS)}")
    if not all(written.split(".")):
        raise ScenarioError(line, place, "has an empty part between its dots; write a key such as data.samples")
    return long_key(written)


def _axis(key: str, place: str, values: Any, line: int) -> list[Setting]:
    if not isinstance(values, YamlList):
        raise ScenarioError(line, place, "must be a list of values; put [ ] around it")
    if not values:
        raise ScenarioError(line, place, "is an empty list, which makes no case; give it a value or remove it")
    settings = [_setting(key, place, value, at) for value, at in zip(values, values.lines, strict=True)]
    for first, second in itertools.combinations(settings, 2) if len(settings) <= 200 else ():
        if same(first.value, second.value):
            raise ScenarioError(second.line, place, f"holds {second.value!r} twice; remove one")
    return settings


def _setting(key: str, place: str, written: Any, line: int, *, in_id: bool = True) -> Setting:
    """An axis's value; a mapping may carry `label:`, its word in the id, and {value:, label:} labels a plain value."""
    label, value = None, written
    if isinstance(written, YamlMap) and "label" in written:
        label = _label(written["label"], f"{place}.label", written.lines["label"])
        value = written.copy()
        value.drop("label")
        if list(value) == ["value"]:
            value = value["value"]
    if isinstance(value, YamlMap) and not value:
        raise ScenarioError(line, place, "holds an empty mapping; give it a key or remove it")
    if not in_id:
        return Setting(value, line, None)
    text = label if label is not None else ids.token(key, lengthen(key, value, line))
    if len(text) > MAX_TOKEN:
        raise ScenarioError(line, place, f"would make the id too long ({text[:30]}...); add label: WORD to this value")
    return Setting(value, line, text)


def _label(label: Any, place: str, line: int) -> str:
    label = ids.number(label) if isinstance(label, int) and not isinstance(label, bool) else label
    if not isinstance(label, str) or not NAME.match(label) or ".." in label or len(label) > MAX_TOKEN:
        raise ScenarioError(
            line, place, f"{label!r} cannot be part of an id; use at most {MAX_TOKEN} of A-Z a-z 0-9 . _ -"
        )
    return label


def _entries(matrix: YamlMap, name: str) -> Iterator[tuple[YamlMap, int]]:
    if name not in matrix:
        return
    entries = matrix[name]
    if not isinstance(entries, YamlList) or not entries:
        problem = "must be a list of mappings from dotted keys to values; write one, or remove it"
        raise ScenarioError(matrix.lines[name], f"matrix.{name}", problem)
    for entry, line in zip(entries, entries.lines, strict=True):
        if not isinstance(entry, YamlMap) or not entry:
            raise ScenarioError(line, f"matrix.{name}", "holds an entry that is no mapping; write {gpus: 8, ...}")
        yield entry, line


def _exclude(made: list[Combination], entry: YamlMap, axes: list[str], line: int) -> list[Combination]:
    for written in entry:
        if long_key(written) not in axes:
            problem = f"is not an axis of this matrix; {suggest(long_key(written), axes)}"
            raise ScenarioError(entry.lines[written], f"matrix.exclude.{written}", problem)
    wanted = {long_key(key): Setting(value, line, None) for key, value in entry.items()}
    left = [
        combination
        for combination in made
        if not all(_agrees(combination, key, setting) for key, setting in wanted.items())
    ]
    if len(left) == len(made):
        raise ScenarioError(line, "matrix.exclude", "matches no combination; correct it or remove it")
    return left


def _include(made: list[Combination], entry: YamlMap, line: int) -> list[Combination]:
    """GitHub Actions' rule: lay the entry over every combination whose axes it agrees with, or else add a new one."""
    label = None
    if "label" in entry:
        label = _label(entry["label"], "matrix.include.label", entry.lines["label"])
        entry = entry.copy()
        entry.drop("label")
    keys = {written: _known_key(written, f"matrix.include.{written}", entry.lines[written]) for written in entry}
    # What is filled in follows from the axes, so the id needs no word for it.
    settings = {key: _included(entry, written, key, in_id=False) for written, key in keys.items()}
    grown = [_fill_in(combination, settings, label) for combination in made]
    if any(new is not old for new, old in zip(grown, made, strict=True)):
        return grown
    in_ids = {written: key.split(".")[0] not in _NOT_IN_IDS for written, key in keys.items()}
    own = {key: _included(entry, written, key, in_id=in_ids[written]) for written, key in keys.items()}
    return [*made, Combination(line, own, label=label)]


def _included(entry: YamlMap, written: str, key: str, *, in_id: bool) -> Setting:
    return _setting(key, f"matrix.include.{written}", entry[written], entry.lines[written], in_id=in_id)


def _fill_in(combination: Combination, settings: dict[str, Setting], label: str | None) -> Combination:
    """The combination with the settings laid over it; itself where they disagree with its axes."""
    shared = combination.axes & settings.keys()
    if not combination.axes or not all(_agrees(combination, key, settings[key]) for key in shared):
        return combination
    added = {key: setting for key, setting in settings.items() if key not in shared}
    return replace(combination, settings=combination.settings | added, label=label or combination.label)


def _agrees(combination: Combination, key: str, setting: Setting) -> bool:
    return same(lengthen(key, combination.settings[key].value, 0), lengthen(key, setting.value, 0))


def same(one: Any, other: Any) -> bool:
    """Equality as a YAML reader sees it: 1 is 1.0, but true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
