"""From a verdict to what pytest makes of it, and the words for an expectation that is not met."""

from collections.abc import Collection
from typing import Literal

XFAIL_KINDS = ("gpu_oom", "nccl")  # by default: the limits of a machine; a program can be at fault for the others


def outcome_of(
    verdict: str, expected: str | None, xfail_kinds: Collection[str]
) -> Literal["passed", "failed", "xfailed"]:
    """What a case counts as.  `expected` is the kind that its scenario expects on the GPUs it had, `none` to train.

    An expectation that is not met is a failure, also where the kind would xfail without one."""
    if verdict == (expected or "none"):
        return "passed"
    return "xfailed" if expected is None and verdict in xfail_kinds else "failed"


def unmet(verdict: str, expected: str | None, reason: str) -> str | None:
    """What to say of an expectation that was not met; None where it was, and where there is none."""
    if expected is None or verdict == expected:
        return None
    if verdict == "none":
        return f"[XPASS(strict)] expected {expected}, the job trained"
    return f"expected {'training' if expected == 'none' else expected}, got {verdict}: {reason}"
