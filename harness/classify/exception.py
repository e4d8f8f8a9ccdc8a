"""The verdict on one exception that stopped a case before there was a job."""

from harness.classify.findings import find_in
from harness.journal import Event
from harness.record import Kind, Verdict

REASON_LIMIT = 500  # characters


def judge_exception(error: Event, doing: str) -> Verdict:
    """`error` is an exception as an `exception` event tells it; `doing` what it stopped, for the reason."""
    finding = find_in(error)
    if finding is None:
        return Verdict(kind=Kind.UNKNOWN, reason=doing)
    said = " ".join(f"{doing}: {finding.text}".split())
    return Verdict(kind=finding.kind, reason=said[:REASON_LIMIT], transient=finding.transient)
