"""Writes a JSON document whole or not at all: a reader sees the one before or the new one."""

import contextlib
import json
import os
import secrets
from pathlib import Path
from typing import Any


def write_document(path: Path, document: dict[str, Any], *, durable: bool = False, mode: int = 0o600) -> None:
    """Write JSON beside `path` and rename it over; OSError when that is not possible."""
    partial = path.with_name(f".{secrets.token_hex(8)}.partial")  # two ranks may write at the same time
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        with open(os.open(partial, flags, mode), "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1, allow_nan=False)
            file.write("\n")
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise
