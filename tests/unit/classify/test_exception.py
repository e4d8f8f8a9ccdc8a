"""The verdict on one exception, without a job around it."""

from typing import Any

import pytest

from harness.classify import judge_exception
from harness.record import Kind


def link(name: str, message: str) -> dict[str, str]:
    return {"type": name, "message": message, "link": "cause"}


@pytest.mark.parametrize(
    "error, kind, transient, reason",
    [
        ({"type": "builtins.ValueError", "message": "a\n  b"}, Kind.USER_ERROR, False, "doing: ValueError: a b"),
        ({"type": "builtins.OSError", "message": "[Errno 28] No space left"}, Kind.DISK_FULL, False, "[Errno 28]"),
        ({"type": "builtins.MemoryError", "message": ""}, Kind.HOST_OOM, False, "doing: MemoryError"),
        ({"type": "httpx.ConnectError", "message": "refused"}, Kind.NETWORK, True, "httpx.ConnectError: refused"),
        (
            {"type": "builtins.OSError", "message": "x", "chain": [link("httpx.ConnectError", "refused")]},
            Kind.NETWORK,
            True,
            "httpx.ConnectError: refused",
        ),
        ({"type": "mine.Odd", "message": "x"}, Kind.UNKNOWN, None, "doing: mine.Odd: x"),
        ({"type": "builtins.KeyboardInterrupt", "message": ""}, Kind.UNKNOWN, None, "doing"),
    ],
)
def test_the_kind_follows_from_the_exception(
    error: dict[str, Any], kind: Kind, transient: bool | None, reason: str
) -> None:
    verdict = judge_exception(error, "doing")
    assert (verdict.kind, verdict.transient, verdict.rank, verdict.evidence) == (kind, transient, None, [])
    assert reason in verdict.reason


def test_a_long_message_is_cut() -> None:
    verdict = judge_exception({"type": "builtins.ValueError", "message": "x" * 9999}, "doing")
    assert len(verdict.reason) == 500
