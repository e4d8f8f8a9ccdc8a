"""Scenario files: read, expanded into cases, and checked against what is installed.  Pure: values in, values out."""

from typing import Any

from harness.scenario.arguments import check_training
from harness.scenario.catalogue import MODELS, parameter_count
from harness.scenario.expectation import expected_kind
from harness.scenario.load import BadScenario, Case, Source, load_scenarios
from harness.scenario.needs import absent, is_hub_id, reads, required_packages, unmet, unmet_gpus, unmet_packages
from harness.scenario.parts import (
    Data,
    Diagnostics,
    Expect,
    Lengths,
    Method,
    Model,
    Needs,
    StackFiles,
    Trainer,
    When,
)
from harness.scenario.schema import Scenario

__all__ = [
    "MODELS",
    "BadScenario",
    "Case",
    "Data",
    "Diagnostics",
    "Expect",
    "Lengths",
    "Method",
    "Model",
    "Needs",
    "Scenario",
    "Source",
    "StackFiles",
    "Trainer",
    "When",
    "absent",
    "check_training",
    "expected_kind",
    "is_hub_id",
    "load_scenarios",
    "parameter_count",
    "reads",
    "required_packages",
    "resolved",
    "unmet",
    "unmet_gpus",
    "unmet_packages",
]


def resolved(scenario: Scenario) -> dict[str, Any]:
    """The scenario with every default filled in, as JSON can hold it: what `job.json` and `record.json` keep."""
    return scenario.model_dump(mode="json")
