"""What became of a session's cases, however it was learned: from pytest's reports, junit.xml or a results folder."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness.reports.policy import outcome_of, unmet
from harness.reports.properties import NOT_RUN

Outcome = Literal["passed", "failed", "error", "skipped", "xfailed", "unfinished"]
BAD: frozenset[Outcome] = frozenset({"failed", "error", "unfinished"})
PARAMETERS = re.compile(r"\[(?P<id>.*)\]$", re.DOTALL)


def judged(outcome: Outcome, properties: Mapping[str, str]) -> Outcome:
    """A case that pytest passed although its job ended as it should not, because its test did not look, has failed."""
    verdict = properties.get("verdict", "")
    if outcome != "passed" or verdict in ("", NOT_RUN):
        return outcome
    return outcome_of(verdict, properties.get("expected"), xfail_kinds=())


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
    def expected(self) -> str | None:
        """The kind of verdict that the scenario expects on the GPUs of the case; None where it expects none."""
        return self.properties.get("expected")

    @property
    def met(self) -> bool:
        """Whether it passed because it ended badly, as expected."""
        return self.outcome == "passed" and self.expected not in (None, "none")

    @property
    def reason(self) -> str:
        said = self.properties.get("verdict_reason") or self.message
        return (unmet(self.verdict, self.expected, said) if self.outcome == "failed" else None) or said

    @property
    def retried(self) -> str | None:
        """Which attempt made the result, and how those before it ended; None where there was one."""
        if "retried" not in self.properties:
            return None
        return f"{self.outcome} on attempt {self.properties.get('attempts')}; {self.properties['retried']}"

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
