"""Scenario files: read, expanded into cases, and checked against what is installed.  Pure: values in, values out."""

from typing import Any

from harness.scenario.arguments import check_training
from harness.scenario.catalogue import MODELS, parameter_count
from harness.scenario.load import BadScenario, Case, Source, load_scenarios
from harness.scenario.needs import absent, required_packages, unmet
from harness.scenario.schema import Data, Diagnostics, Lengths, Method, Model, Needs, Scenario, Trainer

__all__ = [
    "MODELS",
    "BadScenario",
    "Case",
    "Data",
    "Diagnostics",
    "Lengths",
    "Method",
    "Model",
    "Needs",
    "Scenario",
    "Source",
    "Trainer",
    "absent",
    "check_training",
    "load_scenarios",
    "parameter_count",
    "required_packages",
    "resolved",
    "unmet",
]


def resolved(scenario: Scenario) -> dict[str, Any]:
    """The scenario with every default filled in, as JSON can hold it: what `job.json` and `record.json` keep."""
    return scenario.model_dump(mode="json")
