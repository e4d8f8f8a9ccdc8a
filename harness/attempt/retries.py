"""Whether a case whose attempt has ended badly is tried again, and how long it waits before."""

import zlib
from collections.abc import Mapping, Sequence

from harness.record import Record, Verdict
from harness.scenario.schema import ANY

RETRY_WAIT_MAX_S = 300.0


def is_retried(record: Record, retries: Mapping[str, int], earlier: Sequence[Verdict]) -> bool:
    """Whether the case is tried again: its verdict is transient and not the expected one, and its kind has tries left.

    `retries` is the scenario's; `earlier` are the verdicts that were retried before.  A kind that `retries` does not
    name shares the number of ANY with all others that it does not name."""
    verdict = record.verdict
    if verdict is None or verdict.transient is not True or verdict.kind == record.expected:
        return False
    share = _share(verdict, retries)
    return sum(_share(each, retries) == share for each in earlier) < retries.get(share, 0)


def _share(verdict: Verdict, retries: Mapping[str, int]) -> str:
    return verdict.kind.value if verdict.kind in retries else ANY


def retry_wait_s(number: int, first_s: float, case_id: str) -> float:
    """Seconds to wait before retry `number`, from 1: half to all of `first_s`, doubled each time up to the limit.

    How much of it follows from the case: cases that one fault has ended do not come back together, and a case waits
    the same every night."""
    share = zlib.crc32(f"{case_id} {number}".encode()) / 2**32
    return min(RETRY_WAIT_MAX_S, first_s * 2.0 ** (number - 1)) * (0.5 + share / 2)
