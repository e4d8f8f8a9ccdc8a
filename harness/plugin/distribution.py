"""How many xdist workers a session of cases gets, and which ways of distributing it would break it."""

import os
from pathlib import Path

import pytest

from harness.plugin.runner import Slots

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


def _slots(max_gpus: int | None) -> Slots:
    from harness.attempt import Machine

    machine = Machine.read(os.environ, max_gpus)
    return Slots(gpus=len(machine.gpus), cpus=len(machine.cpus))
