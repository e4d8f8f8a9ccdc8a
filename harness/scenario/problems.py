"""Says what pydantic found in the words of a scenario file: line, key, what is wrong, and what to do."""

import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from harness.scenario import ids, parts
from harness.scenario.located import ScenarioError, YamlMap, line_of, suggest
from harness.scenario.spelling import RENAMED

MAX_SHOWN = 5

_YAML_KEYS = {field: key for key, field in RENAMED.items()}
_PARTS: dict[str, type[BaseModel]] = {
    "model": parts.Model,
    "method": parts.Method,
    "trainer": parts.Trainer,
    "data": parts.Data,
    "data.lengths": parts.Lengths,
    "needs": parts.Needs,
    "expect": parts.Expect,
    "expect.when": parts.When,
    "diagnostics": parts.Diagnostics,
    "until": parts.Until,
    "stack": parts.StackFiles,
}
_KINDS = {
    "int_type": ("a whole number", "write one without quotes or a point"),
    "int_from_float": ("a whole number", "write one without a point"),
    "float_type": ("a number", "write one without quotes"),
    "bool_type": ("true or false", "write one of them"),
    "string_type": ("text", "put it in quotes"),
    "list_type": ("a list", "put [ ] around it"),
    "dict_type": ("a mapping", "write keys and values"),
    "model_type": ("a mapping", "write keys and values"),
}
_UNIONS: list[list[str | int]] = [["data", "lengths"], ["method", "targets"]]
_LIMITS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}


def of_validation(error: ValidationError, scenario: YamlMap, keys: Sequence[str]) -> list[ScenarioError]:
    """The problems in the order of their lines, one for a key, at most `MAX_SHOWN`."""
    found: dict[str, ScenarioError] = {}
    for item in error.errors(include_url=False):
        path = _path(item["loc"])
        if path in _UNIONS and (item["type"] == "literal_error") != isinstance(item["input"], str):
            continue  # the union's other member is what the writer was after
        problem = _problem(dict(item), path, scenario, keys)
        found.setdefault(problem.key, problem)
    return sorted(found.values(), key=lambda problem: (problem.line, problem.key))[:MAX_SHOWN]


def _problem(item: dict[str, Any], path: list[str | int], scenario: YamlMap, keys: Sequence[str]) -> ScenarioError:
    context = item.get("ctx") or {}
    if isinstance(refusal := context.get("error"), parts.Refusal):
        path = [*path, *refusal.path]
    fields = [step for step in path if isinstance(step, str)]
    key = ".".join(fields)
    said = _YAML_KEYS.get(key) or re.sub(r"^until\.", "measure.until.", key)
    return ScenarioError(line_of(scenario, path), said, _text(item, context, fields, keys))


def _path(loc: Sequence[str | int]) -> list[str | int]:
    """The location less the name of a union's member, which pydantic puts after the union's own."""
    for union in _UNIONS:
        if list(loc[:2]) == union:
            return [*union, *loc[3:]]
    return list(loc)


def _text(item: dict[str, Any], context: dict[str, Any], fields: list[str], keys: Sequence[str]) -> str:
    kind = item["type"]
    if kind == "missing":
        return "is missing; add it"
    if kind == "extra_forbidden":
        return f"unknown key; {suggest(fields[-1], _known(fields[:-1], keys))}"
    got = _shown(item["input"]) if fields[:1] != ["env"] else "something else"  # it may be a secret
    if kind in _LIMITS:
        words, limit = _LIMITS[kind]
        return f"must be {words} {ids.number(context[limit])}, got {got}; correct the value"
    if kind == "literal_error":
        words = str(context["expected"])
        choices = re.findall(r"'([^']*)'", words)
        near = suggest(item["input"], choices) if isinstance(item["input"], str) else ""
        return f"must be {words}, got {got}; {near if near.startswith('did') else 'write one of them'}"
    if kind == "value_error":
        return str(context["error"])
    if kind in _KINDS:
        wanted, remedy = _KINDS[kind]
        hint = _number_hint(item["input"]) if "number" in wanted else None
        return f"must be {wanted}, got {got}; {hint or remedy}"
    return f"{item['msg'].lower()}, got {got}; correct the value"


def _number_hint(value: Any) -> str | None:
    if isinstance(value, str) and re.fullmatch(r"[-+]?\d[\d_,' ]*", value) and not value.isdigit():
        return f"write {re.sub(r'[^-+0-9]', '', value)}: YAML 1.2 numbers have no separators"
    return None


def _known(fields: list[str], keys: Sequence[str]) -> list[str]:
    if not fields:
        return [*keys, "matrix"]
    part = _PARTS.get(".".join(fields))
    names = list(part.model_fields) if part else []
    return [_YAML_KEYS.get(".".join([*fields, name]), ".".join([*fields, name])).rpartition(".")[2] for name in names]


def _shown(value: Any) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
