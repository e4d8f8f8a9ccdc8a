"""What became of a session's cases, however it was learned: from pytest's reports, junit.xml or a results folder."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness.reports.properties import NOT_RUN

Outcome = Literal["passed", "failed", "error", "skipped", "xfailed", "unfinished"]
BAD: frozenset[Outcome] = frozenset({"failed", "error", "unfinished"})
XFAIL_KINDS = frozenset({"gpu_oom", "nccl"})  # the limits of a machine: a program can be at fault for the others
PARAMETERS = re.compile(r"\[(?P<id>.*)\]$", re.DOTALL)


def judged(outcome: Outcome, verdict: str) -> Outcome:
    """A case that pytest passed although its job ended badly, because its test did not look, has failed."""
    return "failed" if outcome == "passed" and verdict not in ("", "none", NOT_RUN) else outcome


@dataclass(frozen=True)
class CaseResult:
    """One case: how it counts for pytest, and what JUnit's properties say of it."""

    name: str  # the test's name with its parameters
    outcome: Outcome
    properties: Mapping[str, str] = field(default_factory=dict)
    message: str = ""  # of the failure or skip; the verdict's reason comes first
    where: str = ""  # the class or file, to tell equal names apart

    @property
    def case(self) -> str:
        """The case's id, where the test has one."""
        match = PARAMETERS.search(self.name)
        return self.properties.get("case") or (match["id"] if match else self.name)

    @property
    def verdict(self) -> str:
        return self.properties.get("verdict", "")

    @property
    def reason(self) -> str:
        return self.properties.get("verdict_reason") or self.message

    def figure(self, name: str) -> float | None:
        """A figure by its property's name; None where it is absent or no number."""
        try:
            return float(self.properties[name])
        except (KeyError, ValueError):
            return None


def measured_any(results: Sequence[CaseResult]) -> bool:
    """False where no case was launched and passed: a night of skips and xfails has measured nothing."""
    return any(result.outcome == "passed" and result.verdict not in ("", NOT_RUN) for result in results)


def count_outcomes(results: Sequence[CaseResult]) -> dict[str, int]:
    """How often each outcome occurs, in a fixed order, those that do not occur left out."""
    order: tuple[Outcome, ...] = ("passed", "failed", "error", "unfinished", "xfailed", "skipped")
    outcomes = [result.outcome for result in results]
    return {outcome: outcomes.count(outcome) for outcome in order if outcome in outcomes}
