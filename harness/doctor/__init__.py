"""Whether this machine is fit for benchmarks: facts that are read before a night of them, and what they mean.

`read` looks and `judge`, pure, says what is wrong and what helps.  The facts are also in every record."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.doctor.facts import Facts, file_system, read
from harness.doctor.judge import FREE_DISK_BYTES, Finding, Level, judge

__all__ = ["FREE_DISK_BYTES", "Examination", "Facts", "Finding", "Level", "examine", "file_system", "judge", "read"]


@dataclass(frozen=True)
class Examination:
    facts: Facts
    findings: tuple[Finding, ...]

    @property
    def fit(self) -> bool:
        """Nothing would break jobs."""
        return all(finding.level != "error" for finding in self.findings)

    def document(self) -> dict[str, Any]:
        return {"fit": self.fit, "findings": [asdict(found) for found in self.findings], "facts": asdict(self.facts)}


def examine(environ: Mapping[str, str], results: Path, python: str | None = None) -> Examination:
    """Look and judge.  `results`: where the sessions' folders go; `python`: what jobs run on, if not this one."""
    facts = read(environ, results, python)
    return Examination(facts, tuple(judge(facts)))
