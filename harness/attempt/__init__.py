"""One case, from scenario to Record: check, lease, prepare, launch, read, judge, retry.  No pytest here.

Each stage is a function that returns a value; `run_case` is their order."""

from harness.attempt.machine import Machine, missing
from harness.attempt.outstanding import Outstanding
from harness.attempt.result import step_times
from harness.attempt.run import run_case
from harness.attempt.settings import (
    GRACE_S,
    RETRY_WAIT_S,
    SAMPLE_INTERVAL_S,
    Settings,
    found_labels,
    parse_sample_interval,
)
from harness.attempt.stack import recipe, stack_there, verdict_of

__all__ = [
    "GRACE_S",
    "RETRY_WAIT_S",
    "SAMPLE_INTERVAL_S",
    "Machine",
    "Outstanding",
    "Settings",
    "found_labels",
    "missing",
    "parse_sample_interval",
    "recipe",
    "run_case",
    "stack_there",
    "step_times",
    "verdict_of",
]
