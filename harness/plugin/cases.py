"""From scenario files to pytest cases: parametrization, marks and keywords, the fixtures, and the session's plan."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.plugin.options import Options
from harness.plugin.runner import Runner
from harness.plugin.session import STATE, Plan, PlannedCase, case_directories, get_runner
from harness.plugin.verdicts import TuningFailure, note_not_run, note_record

if TYPE_CHECKING:
    from harness.record import Record
    from harness.scenario import BadScenario, Case

FIXTURE = "tuning_case"
LOADED = pytest.StashKey[dict[Path, list[Any]]]()  # folder -> what load_scenarios found: read once a process


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Give a test that uses `tuning_case` (or `tuning`) one case for each that the scenario files expand to."""
    if FIXTURE not in metafunc.fixturenames:
        return
    folder = _folder(metafunc)
    loaded = metafunc.config.stash.setdefault(LOADED, {})
    if folder not in loaded:
        loaded[folder] = _load(folder)
    metafunc.parametrize(FIXTURE, [_parameter(metafunc.config, entry) for entry in loaded[folder]], indirect=True)


def _folder(metafunc: pytest.Metafunc) -> Path:
    marker = metafunc.definition.get_closest_marker("scenarios")
    name = marker.args[0] if marker and marker.args else "scenarios"
    return metafunc.definition.path.parent / name


def _load(folder: Path) -> "list[Case | BadScenario]":
    from harness.scenario import BadScenario, Source, load_scenarios

    found = load_scenarios(folder) if folder.is_dir() else []
    if found:
        return found
    # An empty parameter set would be a skipped test: a lost folder must not look green.
    error = f"{folder}: no scenario files (*.yaml) there" if folder.is_dir() else f"{folder}: no such folder"
    return [BadScenario(id="invalid:no-scenarios", source=Source(str(folder), 0), error=error)]


def _parameter(config: pytest.Config, entry: Any) -> Any:
    marks = getattr(entry, "marks", ())  # a bad scenario has none
    for name in marks:
        if name not in _registered(config):
            config.addinivalue_line("markers", f"{name}: cases of that method or tag")
            _registered(config).add(name)
    return pytest.param(entry, id=entry.id, marks=[getattr(pytest.mark, name) for name in marks])


MARKS = pytest.StashKey[set[str]]()


def _registered(config: pytest.Config) -> set[str]:
    if MARKS not in config.stash:
        config.stash[MARKS] = {line.split(":")[0].split("(")[0].strip() for line in config.getini("markers")}
    return config.stash[MARKS]


def entry_of(item: pytest.Item) -> Any:
    """The Case or BadScenario an item stands for; None for any other test."""
    callspec = getattr(item, "callspec", None)
    return callspec.params.get(FIXTURE) if callspec else None


def prepare(item: pytest.Item) -> None:
    """Give a collected item its extra -k words; a scenario that cannot be used gets no fixture that could hide why."""
    entry = entry_of(item)
    if entry is None:
        return
    if hasattr(entry, "error"):
        item.fixturenames = []  # type: ignore[attr-defined]
    else:
        item.extra_keyword_matches.update((*entry.keywords, *entry.marks))


def fail_if_bad(item: pytest.Item) -> None:
    """In the call phase, so that a bad scenario is a failure, as pytest calls it, and not an error."""
    entry = entry_of(item)
    if hasattr(entry, "error"):
        note_not_run(item, entry.error, {})
        pytest.fail(entry.error, pytrace=False)


def make_plan(items: Sequence[pytest.Item], options: Options, runner: Runner, base: Path) -> Plan:
    """What each collected case needs, and which cannot run here.  `base`: where pytest was started."""
    entries = {item.nodeid: entry for item in items if (entry := entry_of(item)) is not None}
    good = [(nodeid, entry.id) for nodeid, entry in entries.items() if not hasattr(entry, "error")]
    directories = case_directories(good)
    cases = {
        nodeid: _bad(entry) if hasattr(entry, "error") else _planned(entry, directories[nodeid], options, runner, base)
        for nodeid, entry in entries.items()
    }
    return Plan(slots=runner.slots, cases=cases)


def _bad(entry: "BadScenario") -> PlannedCase:
    return PlannedCase(case_id=entry.id, directory=None, experiment=entry.id, labels={}, error=entry.error)


def _planned(case: "Case", directory: str, options: Options, runner: Runner, base: Path) -> PlannedCase:
    from harness.attempt import found_labels
    from harness.probe.redact import redact_tree, secret_values

    scenario = case.scenario
    secrets = secret_values(os.environ)
    return PlannedCase(
        case_id=case.id,
        directory=directory,
        experiment=scenario.name,
        labels=redact_tree(scenario.labels_in(options.session, options.labels, found_labels(base)), secrets),
        gpus=scenario.gpus or 0,
        processes=scenario.processes or scenario.gpus or 1,
        skip=runner.missing(case),
        time_limit_s=scenario.time_limit_within(options.time_limit_s),
    )


@dataclass(frozen=True)
class Tuning:
    """A case that ran: its record, and the folder that holds it."""

    case: "Case"
    record: "Record"
    directory: Path

    def check(self) -> None:
        """Judge the case: raises TuningFailure unless its verdict is the expected one, which is mostly `none`."""
        __tracebackhide__ = True
        verdict = self.record.verdict
        if verdict is None or verdict.kind != (self.record.expected or "none"):
            raise TuningFailure(self.record, self.directory / "record.json")


@pytest.fixture
def tuning_case(request: pytest.FixtureRequest) -> "Case":
    """The case, as its scenario file gives it."""
    case: Case = request.param
    return case


@pytest.fixture
def tuning(request: pytest.FixtureRequest, tuning_case: "Case") -> Tuning:
    """Lease what the case needs, run it, and give its record; skips, with the reason, where it cannot run.

    Slow: as long as the job takes, and as long as other jobs hold what it needs."""
    from harness.leases import BusyError, LeaseError

    item = request.node
    state = request.config.stash[STATE]
    planned = state.planned(item.nodeid)
    assert planned is not None
    assert planned.directory is not None
    if state.unusable is not None:
        pytest.fail(state.unusable, pytrace=False)
    if planned.skip is not None:
        note_not_run(item, planned.skip, planned.labels)
        pytest.skip(planned.skip)
    runner = get_runner(request.config)
    directory = state.options.directory / planned.directory
    try:
        record = runner.run(tuning_case, nodeid=item.nodeid, case_dir=directory)
    except BusyError as error:
        note_not_run(item, str(error), planned.labels)
        pytest.skip(str(error))
    except LeaseError as error:
        pytest.fail(str(error), pytrace=False)  # a fault of the set-up: a skip would hide it
    succeeded = record.verdict is not None and record.verdict.kind == "none"
    steps = runner.step_times(record, directory) if succeeded else []
    note_record(item, record, f"{state.options.session}/{planned.directory}/record.json", steps)
    return Tuning(tuning_case, record, directory)
