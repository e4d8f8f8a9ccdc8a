"""A harness session in one pytest process: its plan of cases and its folder.

The worker that collects writes the plan into the session's folder; xdist's controller, which sees node ids only, reads
it there."""

import errno
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness import __version__
from harness.plugin.options import Options
from harness.plugin.runner import RUNNER_FACTORY, AttemptRunner, Runner, Slots

PLAN_FILE = "cases.json"
SESSION_FILE = "session.json"


@dataclass(frozen=True)
class PlannedCase:
    """What is known of a case before it runs."""

    case_id: str
    directory: str | None  # name in the session's folder; None for a scenario that cannot be used
    experiment: str  # the scenario's name
    labels: dict[str, str]  # all of them, the session's included
    gpus: int = 0
    processes: int = 0
    skip: str | None = None  # why it will not run here
    error: str | None = None  # what is wrong with the scenario file
    time_limit_s: float | None = None


@dataclass(frozen=True)
class Plan:
    """The cases of a session by node id, in the order of collection, and what the machine can lease to them."""

    slots: Slots
    cases: dict[str, PlannedCase]

    def to_json(self) -> dict[str, Any]:
        return {"schema": 1, **asdict(self)}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "Plan":
        cases = {nodeid: PlannedCase(**case) for nodeid, case in document["cases"].items()}
        return cls(slots=Slots(**document["slots"]), cases=cases)


@dataclass
class State:
    """What one process knows of its harness session; `plan` stays None where no case was collected."""

    options: Options
    plan: Plan | None = None
    runner: Runner | None = None
    worker: bool = False
    unusable: str | None = None  # why no case of this process can run
    signals: dict[int, Any] = field(default_factory=dict)  # handlers that stood before ours

    def planned(self, nodeid: str) -> PlannedCase | None:
        return self.plan.cases.get(nodeid) if self.plan else None


STATE = pytest.StashKey[State]()


def get_runner(config: pytest.Config) -> Runner:
    """The runner of this process, made on first use."""
    state = config.stash[STATE]
    if state.runner is None:
        state.runner = config.stash.get(RUNNER_FACTORY, AttemptRunner)(config, state.options)
    return state.runner


def case_directories(cases: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Folder names for (node id, case id) pairs: the case's id, with a number where two items run the same case."""
    taken = {case_id for _, case_id in cases}
    seen: set[str] = set()
    names = {}
    for nodeid, case_id in cases:
        name, number = case_id, 2
        if case_id in seen:
            while (name := f"{case_id}-{number}") in taken:
                number += 1
        seen.add(case_id)
        taken.add(name)
        names[nodeid] = name
    return names


@contextmanager
def usable(options: Options) -> Iterator[None]:
    """What cannot be made or written within is pytest.UsageError: a wrong --results, said before any case runs."""
    try:
        yield
    except OSError as error:
        reason = "it is no folder" if isinstance(error, FileExistsError) else error.strerror or error
        raise pytest.UsageError(f"--results {options.results}: {reason}") from error


def check_results(options: Options) -> None:
    """Raises pytest.UsageError where a session's folder could not be made; makes nothing."""
    with usable(options):
        folder = options.results
        while not os.path.lexists(folder):
            folder = folder.parent
        if not folder.is_dir():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))
        if not os.access(folder, os.W_OK | os.X_OK):
            code = errno.EROFS if os.statvfs(folder).f_flag & os.ST_RDONLY else errno.EACCES
            raise OSError(code, os.strerror(code), str(folder))


def create_folder(options: Options) -> None:
    """Make the session's folder, readable by its owner only: logs may hold what a program printed.

    Raises pytest.UsageError where that cannot be."""
    with usable(options):
        options.results.mkdir(parents=True, exist_ok=True)
        options.directory.mkdir(mode=0o700, exist_ok=True)


def write_plan(plan: Plan, directory: Path) -> None:
    from harness.record import write_json

    write_json(plan.to_json(), directory / PLAN_FILE)


def read_plan(directory: Path) -> Plan | None:
    """The plan a worker left; None where no case was collected."""
    try:
        return Plan.from_json(json.loads((directory / PLAN_FILE).read_bytes()))
    except OSError:  # mostly: there is none
        return None


def point_latest(options: Options) -> None:
    """Let results/latest point at this session; a folder of that name is somebody's, and stays."""
    link = options.results / f".latest.{options.session}"
    with suppress(OSError):
        link.symlink_to(options.session)
        try:
            os.replace(link, options.results / "latest")
        except OSError:
            link.unlink()
            raise


def write_session(config: pytest.Config, state: State, **more: Any) -> None:
    """Write session.json: who was asked for what, when, with which versions; `more` is added at the end."""
    from harness.probe.redact import redact, redact_argv, secret_values
    from harness.record import write_json

    assert state.plan is not None
    secrets = secret_values(os.environ)
    cases = state.plan.cases.values()
    argv = [sys.argv[0], *map(str, config.invocation_params.args)]
    document = {
        "schema": 1,
        "session": state.options.session,
        "argv": redact_argv([redact(argument, secrets) for argument in argv]),
        "directory": str(config.invocation_params.dir),
        "rootdir": str(config.rootpath),
        "started": more.pop("started", None) or time.time(),
        "xfail_kinds": list(state.options.xfail_kinds),
        "labels": {key: redact(value, secrets) for key, value in state.options.labels.items()},
        "versions": {"harness": __version__, "pytest": pytest.__version__, "python": platform.python_version()},
        "counts": {
            "cases": len(cases),
            "to_run": sum(case.skip is None and case.error is None for case in cases),
            "to_skip": sum(case.skip is not None for case in cases),
            "bad_scenarios": sum(case.error is not None for case in cases),
        },
        **more,
    }
    write_json(document, state.options.directory / SESSION_FILE)
