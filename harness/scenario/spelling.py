"""The short spellings that scenarios may use, rewritten to the one spelling that the schema knows.

Two passes: `lengthen` before entries are merged (so that `model: llama-7b` can be laid over `model: {dtype: ...}`), and
`settle` on the merged scenario (units, catalogue names, paths)."""

import math
import os.path
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.scenario.catalogue import MODELS
from harness.scenario.located import ScenarioError, YamlList, YamlMap, merge, suggest
from harness.scenario.parts import Until
from harness.scenario.schema import ANY, Scenario
from harness.units import parse_bytes, parse_seconds

METHODS = ("full", "lora")
TRAINERS = ("hf", "script", "fms")

TOP_LEVEL = {*Scenario.model_fields, "time_limit", "measure", "hang_after"} - {
    *("time_limit_s", "measure_steps", "hang_after_s", "peak_flops", "until"),
}

MAX_VALUES = 2_000  # in one scenario: a matrix repeats them for each case

# YAML key -> field of the schema, where a field's name carries its unit.
RENAMED = {
    "time_limit": "time_limit_s",
    "hang_after": "hang_after_s",
    "needs.gpu_memory": "needs.gpu_memory_bytes",
    "expect.when.gpu_memory_below": "expect.when.gpu_memory_below_bytes",
    "expect.when.gpu_memory_at_least": "expect.when.gpu_memory_at_least_bytes",
    "measure.steps": "measure_steps",
    "measure.peak_flops": "peak_flops",
    "measure.until": "until",
    **{f"measure.until.{name}": f"until.{name}" for name in Until.model_fields if name != "max_time_s"},
    "measure.until.max_time": "until.max_time_s",
}
MEASURE = ("steps", "peak_flops", "until")
_MODEL_SOURCES = ("name", "shape", "path")


def lengthen(key: str, value: Any, line: int) -> Any:
    """The long form of a top-level key's value: `lora` -> `{kind: lora}`, `llama-7b` -> `{name: llama-7b}`."""
    if key == "model" and isinstance(value, str):
        return _one(("path" if "/" in value or value.startswith(".") else "name"), value, line)
    if key == "expect" and isinstance(value, str):
        return _one("kind", value, line)
    if key == "stack" and isinstance(value, str | YamlList):
        return _one("requirements", value, line)
    if key == "method":
        return _kind_of(value, METHODS, line)
    if key == "trainer":
        value = _kind_of(value, TRAINERS, line)
        if isinstance(value, YamlMap) and "kind" not in value and {"target", "module", "program"} & value.keys():
            value = value.copy()
            value.put("kind", "script", line)
    return value


def lengthen_all(entry: YamlMap) -> YamlMap:
    made = YamlMap(entry.line)
    for key, value in entry.items():
        made.put(key, lengthen(key, value, entry.lines[key]), entry.lines[key])
    return made


def long_key(dotted: str) -> str:
    """`method.lora.rank` -> `method.rank`, as `{lora: {rank: 8}}` is `{kind: lora, rank: 8}`."""
    return re.sub(
        r"^(method\.(full|lora)|trainer\.(hf|script|fms))\.", lambda match: match[0].split(".")[0] + ".", dotted
    )


def _one(key: str, value: Any, line: int) -> YamlMap:
    made = YamlMap(line)
    made.put(key, value, line)
    return made


def _kind_of(value: Any, kinds: tuple[str, ...], line: int) -> Any:
    if isinstance(value, str):
        return _one("kind", value, line)
    if not isinstance(value, YamlMap) or len(value) != 1 or next(iter(value)) not in kinds:
        return value
    kind, options = next(iter(value.items()))
    if options is not None and not isinstance(options, YamlMap):
        return value
    made = options.copy() if options is not None else YamlMap(line)
    if made.get("kind", kind) != kind:
        raise ScenarioError(made.lines["kind"], "kind", f"contradicts {kind!r} above it; remove one of the two")
    made.put("kind", kind, value.lines[kind])
    return made


def overlay(base: YamlMap, over: YamlMap) -> YamlMap:
    """`over` merged into `base`, both in long form; what excludes each other replaces each other.

    That is: `gpus` and `processes`; another kind of method, trainer or expectation; a model's name, shape and path."""
    base = base.copy()
    for one, other in (("gpus", "processes"), ("processes", "gpus")):
        if one in over and other not in over:
            base.drop(other)
    for key in ("method", "trainer", "expect"):
        kinds = [part.get("kind") for part in (over.get(key), base.get(key)) if isinstance(part, YamlMap)]
        if len(kinds) == 2 and None not in kinds and kinds[0] != kinds[1]:
            base.drop(key)
    above, below = over.get("model"), base.get("model")
    if isinstance(above, YamlMap) and isinstance(below, YamlMap) and any(source in above for source in _MODEL_SOURCES):
        below = below.copy()
        for source in _MODEL_SOURCES:
            if source not in above:
                below.drop(source)
        base.put("model", below, base.lines["model"])
    return merge(base, over)


def settle(scenario: YamlMap, folder: Path) -> YamlMap:
    """The scenario with the schema's field names; relative paths are taken from `folder`.  Raises ScenarioError."""
    made = scenario.copy()
    if _count(made) > MAX_VALUES:
        raise ScenarioError(made.line, "file", f"holds a scenario of more than {MAX_VALUES:,} values; make it smaller")
    for key in TOP_LEVEL & made.keys():
        if made[key] is None:
            made.drop(key)  # as if it were not there: the way to undo what defaults say
    for field in ("time_limit_s", "hang_after_s", "measure_steps", "peak_flops", "until"):
        if field in made:
            yaml_key = next(key for key, name in RENAMED.items() if name == field)
            raise ScenarioError(made.lines[field], field, f"unknown key; did you mean {yaml_key!r}?")
    _rewrite(made, "time_limit", "time_limit_s", _time_limit)
    _rewrite(made, "hang_after", "hang_after_s", _hang_after)
    _settle_measure(made)
    _rewrite(made, "python", "python", lambda value: _path(value, folder))
    if isinstance(made.get("retries"), int) and not isinstance(made["retries"], bool):
        made.put("retries", _one(ANY, made["retries"], made.lines["retries"]), made.lines["retries"])
    for key, settle_part in (
        ("needs", _settle_needs),
        ("expect", _settle_expect),
        ("trainer", _settle_trainer),
        ("stack", _settle_stack),
        ("data", _settle_data),
        ("model", _settle_model),
    ):
        if isinstance(made.get(key), YamlMap):
            part = made[key].copy()
            settle_part(part, folder)
            made.put(key, part, made.lines[key])
    for key in ("env", "labels"):
        if isinstance(made.get(key), YamlMap):
            made.put(key, _texts(made[key], key), made.lines[key])
    return made


def _count(value: Any) -> int:
    if isinstance(value, YamlMap):
        return 1 + sum(_count(part) for part in value.values())
    return 1 + sum(_count(part) for part in value) if isinstance(value, YamlList) else 1


def _rewrite(mapping: YamlMap, key: str, field: str, convert: Callable[[Any], Any], prefix: str = "") -> None:
    """Convert a value in place and give it the field's name."""
    if key not in mapping or mapping[key] is None:
        return
    line = mapping.lines[key]
    value = _converted(mapping[key], convert, prefix + key, line)
    mapping.drop(key)
    mapping.put(field, value, line)


def _converted(value: Any, convert: Callable[[Any], Any], key: str, line: int) -> Any:
    """A ValueError becomes a ScenarioError there."""
    try:
        return convert(value)
    except ValueError as error:
        raise ScenarioError(line, key, str(error)) from None


def _items(items: YamlList, convert: Callable[[Any], Any], key: str) -> YamlList:
    """A list, its items converted."""
    made = YamlList(items.line)
    for value, line in zip(items, items.lines, strict=True):
        made.append(_converted(value, convert, key, line))
        made.lines.append(line)
    return made


def _time_limit(value: Any) -> float:
    seconds = parse_seconds(value)
    if seconds <= 0:
        raise ValueError("must be more than 0; remove the key for no limit")
    return seconds


def _hang_after(value: Any) -> float | str:
    if value == "none":
        return "none"
    seconds = parse_seconds(value)
    if seconds <= 0:
        raise ValueError("must be more than 0; write none to let a job be silent for ever")
    return seconds


def _settle_measure(scenario: YamlMap) -> None:
    """`measure: {steps: none, peak_flops: 1e15}` becomes fields of the schema."""
    if "measure" not in scenario:
        return
    line, measure = scenario.lines["measure"], scenario["measure"]
    if not isinstance(measure, YamlMap):
        raise ScenarioError(line, "measure", "must be a mapping of steps, peak_flops and until; write it as one")
    for key in measure:
        if key not in MEASURE:
            raise ScenarioError(measure.lines[key], f"measure.{key}", f"unknown key; {suggest(key, MEASURE)}")
    scenario.drop("measure")
    if "steps" in measure:
        if measure["steps"] != "none":
            problem = "can only be none (nothing to train is no failure); remove the key to measure steps"
            raise ScenarioError(measure.lines["steps"], "measure.steps", problem)
        scenario.put("measure_steps", False, measure.lines["steps"])
    if measure.get("peak_flops") is not None:
        value = measure["peak_flops"]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            problem = "must be FLOP/s of a device, dense, such as 989e12; correct it, or remove it"
            raise ScenarioError(measure.lines["peak_flops"], "measure.peak_flops", problem)
        scenario.put("peak_flops", float(value), measure.lines["peak_flops"])
    if measure.get("until") is not None:
        _settle_until(scenario, measure)


def _settle_until(scenario: YamlMap, measure: YamlMap) -> None:
    line, until = measure.lines["until"], measure["until"]
    if scenario.get("measure_steps") is False:
        raise ScenarioError(line, "measure.until", "stands beside steps: none; remove one")
    if isinstance(until, YamlMap):
        until = until.copy()
        if "max_time_s" in until:
            raise ScenarioError(until.lines["max_time_s"], "measure.until.max_time_s", "unknown key; write max_time")
        _rewrite(until, "max_time", "max_time_s", _time_limit, "measure.until.")
    scenario.put("until", until, line)


def _settle_needs(needs: YamlMap, folder: Path) -> None:
    _settle_size(needs, "gpu_memory", "needs.")


def _settle_expect(expect: YamlMap, folder: Path) -> None:
    if isinstance(expect.get("when"), YamlMap):
        when = expect["when"].copy()
        for key in ("gpu_memory_below", "gpu_memory_at_least"):
            _settle_size(when, key, "expect.when.")
        expect.put("when", when, expect.lines["when"])


def _settle_size(mapping: YamlMap, key: str, prefix: str) -> None:
    field = f"{key}_bytes"
    if field in mapping:
        raise ScenarioError(mapping.lines[field], prefix + field, f"unknown key; did you mean {key!r}?")
    _rewrite(mapping, key, field, parse_bytes, prefix)


def _settle_trainer(trainer: YamlMap, folder: Path) -> None:
    """`target: FILE`, `target: -m MODULE`, `target: {module: NAME}` or `{program: NAME}`, the last two also bare."""
    if "form" in trainer:
        raise ScenarioError(trainer.lines["form"], "trainer.form", "unknown key; write target: {module: NAME}")
    for form in ("module", "program"):
        if form in trainer:
            line, name = trainer.lines[form], trainer[form]
            if "target" in trainer:
                raise ScenarioError(line, f"trainer.{form}", "stands beside target; remove one")
            trainer.drop(form)
            trainer.put("target", _one(form, name, line), line)
    target = trainer.get("target")
    line = trainer.lines.get("target", trainer.line)
    form = "file"
    if isinstance(target, YamlMap):
        if list(target) not in (["module"], ["program"]):
            problem = "is a file path, {module: NAME} or {program: NAME}; write one of them"
            raise ScenarioError(line, "trainer.target", problem)
        form, target = next(iter(target.items()))
        if not isinstance(target, str):
            raise ScenarioError(line, f"trainer.{form}", f"must be a {form}'s name; write it as text")
        if form == "program" and "/" in target:
            raise ScenarioError(line, "trainer.program", "is a name in the interpreter's folder; write target: FILE")
    elif isinstance(target, str) and re.match(r"-m\s", target):
        form, target = "module", target[2:].strip()
    elif isinstance(target, str):
        target = _converted(target, lambda value: _path(value, folder, always=True), "trainer.target", line)
    if target is not None:
        trainer.put("target", target, line)
        trainer.put("form", form, line)
    if isinstance(trainer.get("args"), YamlList):
        trainer.put("args", _items(trainer["args"], _text, "trainer.args"), trainer.lines["args"])
    _rewrite(trainer, "cwd", "cwd", lambda value: _path(value, folder, always=True), "trainer.")


def _settle_stack(stack: YamlMap, folder: Path) -> None:
    for key in ("requirements", "no_deps"):
        files, line = stack.get(key), stack.lines.get(key, stack.line)
        if isinstance(files, str):
            files = YamlList(line)
            files.append(stack[key])
            files.lines.append(line)
        if isinstance(files, YamlList):
            absolute = _items(files, lambda value: _path(value, folder, always=True), f"stack.{key}")
            stack.put(key, absolute, line)


def _settle_data(data: YamlMap, folder: Path) -> None:
    _rewrite(data, "path", "path", lambda value: _path(value, folder, dotted_only=True), "data.")


def _settle_model(model: YamlMap, folder: Path) -> None:
    given = [source for source in _MODEL_SOURCES if model.get(source) is not None]
    if len(given) > 1:
        problem = f"gives {' and '.join(given)}; keep one of them (name: catalogue, path: folder or hub id)"
        raise ScenarioError(model.lines[given[1]], f"model.{given[1]}", problem)
    name = model.get("name")
    if isinstance(name, str):
        line = model.lines["name"]
        if name not in MODELS:
            problem = (
                f"the catalogue has no {name!r}; {suggest(name, MODELS)} (a folder or hub id: model: {{path: ...}})"
            )
            raise ScenarioError(line, "model.name", problem)
        shape = YamlMap(line)
        for field, value in MODELS[name].shape.items():
            shape.put(field, value, line)
        model.put("shape", shape, line)
    # A hub id (`org/name`) cannot be told from a relative folder, so a relative folder starts with a dot.
    _rewrite(model, "path", "path", lambda value: _path(value, folder, dotted_only=True), "model.")


def _path(value: Any, folder: Path, *, always: bool = False, dotted_only: bool = False) -> Any:
    """An absolute path for a relative one; a bare name (`python3.12`) stays unless `always`."""
    if not isinstance(value, str) or not value:
        return value
    if value.startswith("~"):
        raise ValueError("`~` is not expanded; write the whole path")
    if value.startswith("/") or (dotted_only and not value.startswith(".")) or not (always or "/" in value):
        return value
    return os.path.normpath(folder / value)


def _texts(mapping: YamlMap, prefix: str) -> YamlMap:
    made = YamlMap(mapping.line)
    for key, value in mapping.items():
        line = mapping.lines[key]
        made.put(key, _converted(value, _text, f"{prefix}.{key}", line), line)
    return made


def _text(value: Any) -> Any:
    """Text for a whole number; a float or a bool has several spellings, and only its writer knows which is meant."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, (bool, float)):
        raise ValueError("must be text; put it in quotes, spelled as the program shall see it")
    return value


def set_dotted(scenario: YamlMap, dotted: str, value: Any, line: int) -> YamlMap:
    """The scenario with one value laid over it at a dotted key.  Raises ScenarioError where the way is blocked."""
    first, *rest = dotted.split(".")
    if not rest:
        made = overlay(scenario, _one(first, lengthen(first, value, line), line))
        made.line = scenario.line
        return made
    nested: Any = value
    for key in reversed(rest):
        nested = _one(key, nested, line)
    below = scenario.get(first)
    for depth, key in enumerate(rest):
        if below is not None and not isinstance(below, YamlMap):
            reached = ".".join([first, *rest[:depth]])
            problem = f"cannot be set: {reached} is not a mapping here; write {reached} as a mapping"
            raise ScenarioError(line, dotted, problem)
        below = below.get(key) if below is not None else None
    made = overlay(scenario, _one(first, nested, line))
    made.line = scenario.line
    return made
