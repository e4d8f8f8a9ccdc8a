"""Evidence from a document: a labelled case of the corpus, or what somebody noted down of a job; and from bare logs."""

import base64
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from harness.classify.evidence import JobEvidence, KernelLine, exits_of, tails_of
from harness.classify.findings import WRAPPERS
from harness.classify.log import Log, Raised, scan

FIELDS = frozenset(
    ["exception_type", "message", "stderr", "stderr_b64", "stderr_repeat", "exit_code", "signal", "error_file"]
    + ["cgroup_oom_kill", "kernel_log"]
)
_LONGEST = 256 * 1024 * 1024  # bytes that `stderr_repeat` may make


class BadCase(ValueError):
    """A document that is no evidence; its text says what is wrong."""


def evidence_of(document: object) -> JobEvidence:
    """The evidence of a case: the mapping under `evidence`, or the document itself.  Raises BadCase."""
    given = document.get("evidence", document) if isinstance(document, Mapping) else None
    if not isinstance(given, Mapping):
        raise BadCase("holds no mapping named evidence")
    unknown = sorted(str(key) for key in given if key not in FIELDS)
    if unknown:
        raise BadCase(f"has an unknown field {unknown[0]}; known are {', '.join(sorted(FIELDS))}")
    logs = [scan(io.BytesIO(_log_bytes(given)), "stderr"), *_of_launcher(given)]
    kernel = [
        KernelLine(text, "kernel_log", number) for number, text in enumerate(_text(given, "kernel_log").splitlines(), 1)
    ]
    return of_logs(
        logs,
        exit_code=_exit_code(given),
        oom_kill=_int(given, "cgroup_oom_kill"),
        kernel=kernel,
        raised=[*_error_file(_text(given, "error_file")), *_at_hand(given, logs[0])],
    )


def of_logs(
    logs: Sequence[Log],
    *,
    exit_code: int | None = None,
    oom_kill: int | None = None,
    kernel: Sequence[KernelLine] = (),
    raised: Sequence[Raised] = (),
) -> JobEvidence:
    """The evidence of a job that no supervisor of ours watched."""
    end = {"why": "exit", "exit_code": exit_code, "oom_kill": oom_kill}
    return JobEvidence(
        end=end if exit_code is not None or oom_kill else None,
        ranks=(),
        world_size=None,
        expects_steps=False,
        tails=tails_of(logs),
        rank_exits=exits_of(logs),
        logs=logs,
        kernel=kernel,
        raised=raised,
        supervised=False,
    )


def _log_bytes(given: Mapping[str, Any]) -> bytes:
    if "stderr_b64" in given:
        try:
            return base64.b64decode(_text(given, "stderr_b64"), validate=False)
        except ValueError as error:
            raise BadCase(f"stderr_b64: {error}") from None
    if "stderr_repeat" in given:
        return b"".join(_repeated(given["stderr_repeat"]))
    return _text(given, "stderr").encode("utf-8", errors="surrogateescape")


def _repeated(parts: object) -> list[bytes]:
    if not isinstance(parts, Sequence) or not all(
        isinstance(part, Mapping) and isinstance(part.get("text"), str) and isinstance(part.get("count"), int)
        for part in parts
    ):
        raise BadCase("stderr_repeat is no list of {text, count}")
    made, length = [], 0
    for part in parts:
        text, count = part["text"], part["count"]
        length += len(text) * count
        if length > _LONGEST:
            raise BadCase(f"stderr_repeat makes more than {_LONGEST:,} characters")
        try:
            made.append("".join(text.format(i=i) for i in range(count)).encode())
        except (LookupError, ValueError):
            raise BadCase("stderr_repeat: a text may hold {i} and no other braces") from None
    return made


def _error_file(text: str) -> list[Raised]:
    """torchelastic's error.json (1.9-2.13): the class has no module there, and has it in the call stack."""
    if not text:
        return []
    try:
        message = json.loads(text)["message"]
        if isinstance(message, str):
            told, stack, time = message, "", None
        else:
            extra = message.get("extraInfo") or {}
            told, stack, time = str(message["message"]), str(extra.get("py_callstack", "")), extra.get("timestamp")
    except (ValueError, LookupError, TypeError, AttributeError):
        return []
    name, _, said = told.partition(": ")
    last = next((line for line in reversed(stack.splitlines()) if line.strip() and line[:1] != " "), "")
    qualified = last.partition(":")[0]
    if qualified.rpartition(".")[2] == name:
        name = qualified
    t = float(str(time)) if str(time).replace(".", "", 1).isdigit() else None
    return [Raised(name, said, None, "error_file", 1, source="error_file", t=t)]


def _of_launcher(given: Mapping[str, Any]) -> list[Log]:
    """What a launcher raised in the process that called it: its text names a process' end, or quotes its traceback."""
    name, message = _text(given, "exception_type"), _text(given, "message")
    if not message or not WRAPPERS.match(name):
        return []
    return [scan(io.BytesIO(f"{name}: {message}".encode("utf-8", errors="surrogateescape")), "message")]


def _at_hand(given: Mapping[str, Any], log: Log) -> list[Raised]:
    """An exception that was caught in the process; one without a text says nothing that the log does not."""
    name, message = _text(given, "exception_type"), _text(given, "message")
    if not name and not message:
        return []
    if not message and log.raised:
        return []
    return [Raised(name.removeprefix("builtins.") or "Exception", message, None, "message", 1, source="at_hand")]


def _exit_code(given: Mapping[str, Any]) -> int | None:
    code = _int(given, "exit_code")
    if code is None and given.get("signal"):
        import signal

        name = str(given["signal"])
        number = getattr(signal, name if name.startswith("SIG") else f"SIG{name}", None)
        return None if number is None else -int(number)
    return code


def _text(given: Mapping[str, Any], key: str) -> str:
    value = given.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadCase(f"{key} is no text")
    return value


def _int(given: Mapping[str, Any], key: str) -> int | None:
    value = given.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise BadCase(f"{key} is no whole number")
    return value
