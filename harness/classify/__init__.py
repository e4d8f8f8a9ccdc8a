"""How a job ended, and why: pure functions from evidence to a verdict."""

from harness.classify.evidence import JobEvidence, collect
from harness.classify.verdict import judge

__all__ = ["JobEvidence", "collect", "judge"]
