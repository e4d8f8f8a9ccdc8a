"""The termination log: how a job ended, in a file that Kubernetes shows with the pod's state."""

import os
from collections.abc import Mapping
from pathlib import Path

from harness.reports.properties import printable

LIMIT_BYTES = 4096  # Kubernetes cuts what is longer
USUAL_PATH = Path("/dev/termination-log")
_MORE = "…"


def log_path(environ: Mapping[str, str], usual: Path = USUAL_PATH) -> Path | None:
    """Where the log goes: TERMINATION_LOG_FILE, else Kubernetes's usual file where it is and can be written."""
    if told := environ.get("TERMINATION_LOG_FILE"):
        return Path(told)
    return usual if usual.is_file() and os.access(usual, os.W_OK) else None


def log_text(
    *, kind: str, rank: int | None = None, step: int | None = None, reason: str = "", record: Path | None = None
) -> bytes:
    """`key: value` lines of what is known, in UTF-8; the reason is cut first, and never inside a character."""
    rows = {"kind": kind, "rank": rank, "step": step, "reason": reason or None, "record": record}
    lines = {key: _line(key, value) for key, value in rows.items() if value is not None}
    others = sum(len(line) + 1 for key, line in lines.items() if key != "reason")
    if "reason" in lines:
        lines["reason"] = _cut(lines["reason"], max(0, LIMIT_BYTES - others - 1))
    return _cut(b"".join(line + b"\n" for line in lines.values() if line), LIMIT_BYTES)


def write_log(text: bytes, path: Path) -> None:
    """Overwrite the log in place: Kubernetes has it mounted.  Raises OSError; does not wait for a pipe's reader."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK
    with open(os.open(path, flags, 0o644), "wb") as file:
        file.write(text)


def _line(key: str, value: object) -> bytes:
    return f"{key}: {' '.join(printable(str(value)).split())}".encode(errors="replace")


def _cut(text: bytes, size: int) -> bytes:
    if len(text) <= size:
        return text
    more = _MORE.encode()
    if size < len(more):
        return b""
    return text[: size - len(more)].decode(errors="ignore").encode() + more
