"""How a job ended, and why: pure functions from evidence to a verdict."""

from harness.classify.case import BadCase, evidence_of, of_logs
from harness.classify.evidence import JobEvidence, collect
from harness.classify.exception import judge_exception
from harness.classify.install import judge_install
from harness.classify.log import scan
from harness.classify.verdict import judge

__all__ = [
    "BadCase",
    "JobEvidence",
    "collect",
    "evidence_of",
    "judge",
    "judge_exception",
    "judge_install",
    "of_logs",
    "scan",
]
