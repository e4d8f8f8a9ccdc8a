"""Reads what a job left: never through a link, never waiting for the other end of a pipe, never trusting a line."""

import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

Event = dict[str, Any]


def _refuse(constant: str) -> None:
    """NaN and Infinity are no JSON, and none of ours: what is read here is written again."""
    raise ValueError(constant)


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading.  Raises OSError for anything but a regular file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is no regular file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_document(path: Path) -> dict[str, Any] | None:
    """A file that is one JSON object; None when it is absent, cut or something else."""
    try:
        with open_regular(path) as file:
            document = json.loads(file.read(), parse_constant=_refuse)
    except (OSError, ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def decode_event(line: bytes) -> Event | None:
    """A journal's line; None for one that is no event: torn by a crash, or by a full disk."""
    try:
        event = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and isinstance(event.get("e"), str) else None
