"""How many xdist workers a session of cases gets, and which ways of distributing it would break it.

Also where nothing is to be collected: the results of sessions."""

import os
import re
from pathlib import Path

import pytest

from harness.plugin.runner import Slots
from harness.plugin.session import STATE

SESSION_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{6}")
REFUSED = {
    "loadgroup": "it neither counts GPUs nor, on pytest 9.2 with xdist 3.8, keeps a group on one worker "
    "(pytest-xdist issue 1386), so that cases would share GPUs",
    "each": "it would run every case once a worker, all into the same folder",
}


def refuse_distribution(dist: str) -> None:
    """Raises pytest.UsageError for a --dist that cannot work with cases."""
    if dist in REFUSED:
        raise pytest.UsageError(f"--dist {dist} cannot run fine-tuning cases: {REFUSED[dist]}; leave --dist out")


def workers_for(config: pytest.Config) -> int | None:
    """Workers of `-n auto`: what can be leased, where the arguments point at cases; None leaves it to xdist."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ or not points_at_cases(config.args, config.invocation_params.dir):
        return None
    return _slots(config.getoption("gpus")).workers


def points_at_cases(arguments: list[str], directory: Path) -> bool:
    """Whether an argument is a folder, or a test in a folder, that holds scenario files.  Asked before collection."""
    return any(_holds_scenarios(directory / argument.partition("::")[0]) for argument in arguments)


def _holds_scenarios(path: Path) -> bool:
    folder = path if path.is_dir() else path.parent
    return any((folder / "scenarios").glob("*.y*ml"))


def is_results(path: Path, config: pytest.Config) -> bool:
    """Whether a path to collect from is the folder of results, or any session: programs leave files there."""
    is_session = SESSION_ID.fullmatch(path.name) or (path.name == "latest" and _points_at_session(path))
    if is_session or (path == config.stash[STATE].options.results and _holds_sessions(path)):
        return not _is_asked_for(path, config)
    return False


def _is_asked_for(folder: Path, config: pytest.Config) -> bool:
    """Whether the user has pointed pytest at a folder, or at something in it."""
    asked = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    return any(Path(os.path.abspath(path)).is_relative_to(folder) for path in asked)


def _points_at_session(link: Path) -> bool:
    try:
        return SESSION_ID.fullmatch(os.path.basename(os.readlink(link))) is not None
    except OSError:  # no link
        return False


def _holds_sessions(results: Path) -> bool:
    try:
        return any(SESSION_ID.fullmatch(name) for name in os.listdir(results))
    except OSError:  # nothing can be collected from it either
        return True


def _slots(max_gpus: int | None) -> Slots:
    from harness.attempt import Machine

    machine = Machine.read(os.environ, max_gpus)
    return Slots(gpus=len(machine.gpus), cpus=len(machine.cpus))
