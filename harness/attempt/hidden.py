"""A case as it may be written: its secrets hidden, by name and by value."""

import os
from typing import Any

from harness.probe.redact import redact_argv, redact_tree, secret_arguments, secret_values
from harness.scenario import Case, resolved


def shown(case: Case) -> dict[str, Any]:
    """The resolved scenario with secrets hidden, by name and by value."""
    scenario = resolved(case.scenario)
    shown: dict[str, Any] = redact_tree(scenario, secrets_of(case))
    shown["trainer"]["args"] = redact_argv(scenario["trainer"]["args"], secrets_of(case))
    return shown


def secrets_of(case: Case) -> set[str]:
    """Values that must not be written: of the environment, of the scenario's own variables, among its arguments."""
    scenario = case.scenario
    return secret_values(os.environ) | secret_values(scenario.env) | secret_arguments(scenario.trainer.args)
