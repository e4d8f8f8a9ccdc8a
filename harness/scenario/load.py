"""Reads a folder of scenario files into cases.  A file that is wrong becomes one `BadScenario`; the others go on."""

import os.path
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.scenario import ids, problems
from harness.scenario.catalogue import MODELS
from harness.scenario.located import ScenarioError, YamlList, YamlMap, line_of, plain, suggest
from harness.scenario.matrix import KEYS, MAX_CASES, expand
from harness.scenario.schema import Scenario
from harness.scenario.spelling import lengthen_all, overlay, settle
from harness.scenario.yaml12 import MAX_BYTES, read


@dataclass(frozen=True)
class Source:
    """Where in a scenario file something stands; lines count from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Case:
    """What a scenario expands to: one pytest item."""

    id: str
    scenario: Scenario
    source: Source
    keywords: tuple[str, ...]  # extra words for -k
    marks: tuple[str, ...]  # for -m: the method of a built-in training, and the scenario's tags
    training_lines: dict[str, int] = field(default_factory=dict, compare=False, repr=False)


@dataclass(frozen=True)
class BadScenario:
    """A file that cannot be used; `error` has a line for each problem: `file:line: key: what is wrong; remedy`."""

    id: str
    source: Source
    error: str


def load_scenarios(folder: Path) -> list[Case | BadScenario]:
    """The cases of every `*.yaml` and `*.yml` file under the folder, in the order of the files' paths.

    Reads files and nothing else; never raises for what a file holds.  Hidden files and folders are left alone."""
    loaded: list[Case | BadScenario] = []
    taken: dict[str, Source] = {}
    names: set[str] = set()
    for path in _files(folder):
        try:
            cases = _cases(path)
            _check_ids(cases, taken)
        except ScenarioError as error:
            loaded.append(_bad(path, folder, names, [error]))
        except _Problems as error:
            loaded.append(_bad(path, folder, names, error.problems))
        else:
            taken.update((case.id, case.source) for case in cases)
            loaded += cases
    return loaded


def _bad(path: Path, folder: Path, names: set[str], found: list[ScenarioError]) -> BadScenario:
    name = _unique(ids.safe("-".join(path.relative_to(folder).parts)) or "file", names)
    text = "\n".join(f"{_shown(path)}:{problem}" for problem in found)
    return BadScenario(f"invalid:{name}", Source(_shown(path), found[0].line), text)


def _shown(path: Path) -> str:
    """The path as it can be printed, whatever a file name holds."""
    return "".join(character if character.isprintable() else "?" for character in str(path))


class _Problems(Exception):
    """Several problems of one scenario."""

    def __init__(self, problems: list[ScenarioError]) -> None:
        super().__init__(problems)
        self.problems = problems


def _files(folder: Path) -> list[Path]:
    found = [path for pattern in ("*.yaml", "*.yml") for path in folder.rglob(pattern)]
    visible = [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    return sorted((path for path in visible if not path.is_dir()), key=lambda path: path.relative_to(folder).parts)


def _unique(name: str, names: set[str]) -> str:
    candidates = (name if count == 1 else f"{name}-{count}" for count in range(1, len(names) + 2))
    chosen = next(candidate for candidate in candidates if candidate not in names)
    names.add(chosen)
    return chosen


def _content(path: Path) -> bytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise ScenarioError(1, "file", "is not a regular file; replace it by one, or remove it")
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ScenarioError(1, "file", f"cannot be read: {error.strerror}; correct that, or remove it") from None


def _cases(path: Path) -> list[Case]:
    folder = Path(os.path.abspath(path.parent))
    cases: list[Case] = []
    for entry in _entries(read(_content(path))):
        for merged, combination in expand(entry):
            if len(cases) == MAX_CASES:
                raise ScenarioError(entry.line, "file", f"makes more than {MAX_CASES:,} cases; split it")
            scenario, settled = _validate(merged, folder)
            case_id = ids.case_id(scenario, combination.tokens, combination.label)
            if len(case_id) > ids.MAX_ID:
                problem = (
                    f"makes the id {case_id[:60]}..., longer than {ids.MAX_ID}; shorten name, or give values a label"
                )
                raise ScenarioError(entry.line, "name", problem)
            source = Source(_shown(path), entry.line)
            cases.append(
                Case(case_id, scenario, source, _keywords(scenario), _marks(scenario), _training_lines(settled))
            )
    return cases


def _entries(document: Any) -> Iterator[YamlMap]:
    """The file's scenarios, with its defaults laid under each."""
    if not isinstance(document, YamlMap):
        raise ScenarioError(1, "file", "is no mapping; write a scenario (name:, model:, ...), or scenarios: [...]")
    if "scenarios" not in document:
        if "defaults" in document:
            problem = "has no scenarios: beside it; put the scenarios into scenarios: [...]"
            raise ScenarioError(document.lines["defaults"], "defaults", problem)
        yield lengthen_all(document)
        return
    for key in document:
        if key not in ("defaults", "scenarios"):
            problem = f"does not stand beside scenarios:; {suggest(key, ('defaults', 'scenarios'))}"
            raise ScenarioError(document.lines[key], key, problem)
    defaults = document.get("defaults")
    if "defaults" in document and not isinstance(defaults, YamlMap):
        raise ScenarioError(document.lines["defaults"], "defaults", "must be a mapping; write a scenario's keys in it")
    scenarios = document["scenarios"]
    if not isinstance(scenarios, YamlList) or not scenarios:
        raise ScenarioError(
            document.lines["scenarios"], "scenarios", "must be a list of scenarios; give it at least one"
        )
    below = lengthen_all(defaults) if isinstance(defaults, YamlMap) else YamlMap(document.line)
    if "name" in below:
        raise ScenarioError(below.lines["name"], "defaults.name", "is each scenario's own; move it into the scenarios")
    for entry, line in zip(scenarios, scenarios.lines, strict=True):
        if not isinstance(entry, YamlMap):
            raise ScenarioError(line, "scenarios", "holds an entry that is no mapping; write name:, model:, ...")
        yield overlay(below, lengthen_all(entry))


def _validate(merged: YamlMap, folder: Path) -> tuple[Scenario, YamlMap]:
    settled = settle(merged, folder)
    values = plain(settled)
    try:
        return Scenario.model_validate(values), settled
    except ValidationError as error:
        raise _Problems(problems.of_validation(error, settled, ["name", *KEYS])) from None


def _keywords(scenario: Scenario) -> tuple[str, ...]:
    name = scenario.model.name if scenario.model else None
    return MODELS[name].keywords if name in MODELS else ()


def _marks(scenario: Scenario) -> tuple[str, ...]:
    known = scenario.trainer.kind == "hf" or "method" in scenario.model_fields_set
    return tuple(dict.fromkeys([*([scenario.method.kind] if known else []), *scenario.tags]))


def _training_lines(settled: YamlMap) -> dict[str, int]:
    training = settled.get("training")
    return {key: line_of(settled, ["training", key]) for key in training} if isinstance(training, YamlMap) else {}


def _check_ids(cases: list[Case], taken: dict[str, Source]) -> None:
    own: dict[str, Source] = {}
    for case in cases:
        other = own.get(case.id) or taken.get(case.id)
        if other is not None:
            same_scenario = other == case.source
            remedy = "give the include entry or the axis's value a label:" if same_scenario else "rename one of the two"
            raise ScenarioError(
                case.source.line, "name", f"makes the id {case.id} a second time, first at {other}; {remedy}"
            )
        own[case.id] = case.source
