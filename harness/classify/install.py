"""Why pip, or venv, has failed: judged by what it wrote, pure."""

import re
import signal
from collections.abc import Sequence

from harness.probe.signatures import match
from harness.record import Evidence, Kind, Verdict

_ERROR = re.compile(r"^\s*(?:ERROR|error|Error): (.+)")
_RETRY = re.compile(r"Retrying \(Retry\(.*\)\) after connection broken by '(\w+)\((.*)\)'")
_RAISED = re.compile(r"^(?:pip\._vendor\.)?((?:\w+\.)*\w+(?:Error|Exception)): (.*)")
_NOT_OF_INSTALLS = ("user_error", "unknown", "timeout", "nan_loss", "nccl", "rendezvous")
REASON_LENGTH = 500


def judge_install(what: str, output: str, ended: int | None, *, out_of_time: bool = False) -> Verdict:
    """The verdict on a program that was to install packages and ended badly.

    `what` says how it ended in words, `ended` its exit code, negative for a signal; None: ended here, or never ran."""
    lines = output.splitlines()
    errors = [(number, found[1]) for number, line in enumerate(lines, 1) if (found := _ERROR.match(line))]
    raised = [(found[1], found[2]) for line in lines if (found := _RAISED.match(line))]
    number, text = errors[0] if errors else (None, _without_ensurepip(output) or _last_line(lines) or what)
    if text == "Exception:" and raised:  # pip's word for an error that it does not know; it says which at the end
        text = f"{raised[-1][0].rpartition('.')[2]}: {raised[-1][1]}"
    reason = text.strip()[:REASON_LENGTH]
    evidence = [Evidence(file="stack.log", line=number, text=reason)] if output.strip() else []

    def verdict(kind: Kind, transient: bool | None, said: str = reason) -> Verdict:
        return Verdict(kind=kind, reason=f"stack: {said}", transient=transient, evidence=evidence)

    if ended is not None and ended < 0:
        return verdict(Kind.KILLED, None, f"{what} ({signal.Signals(-ended).name})")
    if out_of_time:
        return verdict(Kind.TIMEOUT, None, what)
    told = [*raised, *(("", error) for _, error in errors), *([] if errors else [("", text), ("", what)])]
    for name, message in told:
        row = match(name, [], message)
        if row is not None and row.kind not in _NOT_OF_INSTALLS:
            return verdict(Kind(row.kind), row.transient, message.strip()[:REASON_LENGTH] or reason)
    # pip goes on without the index that it has given up on, and then knows of no version at all.
    lost = [found for line in lines if (found := _RETRY.search(line))]
    if lost and "(from versions: none)" in output:
        return verdict(Kind.NETWORK, True, f"{reason}; {lost[-1][1]}: {lost[-1][2]}"[:REASON_LENGTH])
    return verdict(Kind.USER_ERROR, False)


def _without_ensurepip(output: str) -> str | None:
    """What Debian says over nine lines where its package python3-venv is missing; the last says nothing of it."""
    said = re.search(r"ensurepip\s+is\s+not\s+available", output)
    package = re.search(r"\bapt(?:-get)? install (\S+)", output)
    return f"ensurepip is not available; install {package[1]}" if said and package else None


def _last_line(lines: Sequence[str]) -> str:
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
