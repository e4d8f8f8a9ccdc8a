"""The summary of a session for people and for CI: Markdown, and an exit code that no empty night turns green."""

import re
from collections import Counter
from collections.abc import Collection, Sequence

from harness.record import Kind
from harness.reports.conditions import MARK, told
from harness.reports.properties import NOT_RUN, printable
from harness.reports.results import BAD, CaseResult, count_outcomes, measured_any
from harness.reports.tables import figure_cells

FINE, FAILED, NOTHING_MEASURED = 0, 1, 3  # 2 is a wrong command line
OUTCOMES = ("skipped", "xfailed")
MAX_ROWS = 1000  # GitHub refuses a summary of more than 1 MiB
MAX_REASON = 500
SPECIAL = re.compile(r"([\\`*_{}\[\]()#|~!])")


def fail_on_choices() -> tuple[str, ...]:
    """What a session can be told to fail on: kinds of verdicts, and outcomes that pytest counts as no failure."""
    return tuple(kind.value for kind in Kind if kind is not Kind.NONE) + OUTCOMES


def exit_code(results: Sequence[CaseResult], fail_on: Collection[str] = ()) -> int:
    """0 fine; 1 a case failed, did not finish, or is one that `fail_on` names; 3 nothing was measured."""
    if any(result.outcome in BAD or _is_named(result, fail_on) for result in results):
        return FAILED
    return FINE if measured_any(results) else NOTHING_MEASURED


def _is_named(result: CaseResult, fail_on: Collection[str]) -> bool:
    """Whether `fail_on` names how a case ended; a verdict that the scenario expects is none to fail on."""
    return result.outcome in fail_on or (result.verdict in fail_on and not result.met)


def to_markdown(results: Sequence[CaseResult], fail_on: Collection[str] = ()) -> str:
    """Counts by verdict, a table of the cases that were launched, failures and limits with their reasons."""
    counts = ", ".join(f"{number} {outcome}" for outcome, number in count_outcomes(results).items())
    parts = [f"## Fine-tuning benchmarks: {counts or 'no case'}", _judgement(results, fail_on)]
    verdicts = Counter(result.verdict or "-" for result in results)
    rows = [(_code(verdict), str(number)) for verdict, number in sorted(verdicts.items())]
    parts += [_table(("Verdict", "Cases"), rows, numeric={1})] if rows else []
    launched = [result for result in results if result.verdict != NOT_RUN]
    parts += [_cases(launched)] if launched else []
    parts += _list("Failures", [result for result in results if result.outcome in BAD])
    parts += _list("Limits of the machine (xfailed)", [result for result in results if result.outcome == "xfailed"])
    parts += _list("Ended badly, as expected (passed)", [result for result in results if result.met])
    marked = [(result, escape(why, MAX_REASON)) for result in launched if (why := told(result))]
    parts += _items(f"GPUs that were shared or held down (marked \\{MARK})", marked)
    parts += _retried([result for result in results if result.retried is not None])
    parts += _skipped(results)
    return "\n\n".join(parts) + "\n"


def _judgement(results: Sequence[CaseResult], fail_on: Collection[str]) -> str:
    code = exit_code(results, fail_on)
    if code == NOTHING_MEASURED:
        return "**Nothing was measured**: no case was launched and passed."
    if code == FINE:
        return "All cases that could be launched were measured."
    bad = sum(result.outcome in BAD for result in results)
    named = sum(_is_named(result, fail_on) for result in results if result.outcome not in BAD)
    words = [f"{bad} failed or did not finish"] if bad else []
    words += (
        [f"{named} ended in a way that counts as failure here ({', '.join(map(_code, sorted(fail_on)))})"]
        if named
        else []
    )
    return f"**{'; '.join(words)}.**"


def _cases(results: Sequence[CaseResult]) -> str:
    ordered = sorted(results, key=lambda result: (result.verdict != "none", result.verdict, result.case))
    rows = [
        (
            escape(result.case, 200) + (f"\\{MARK}" if told(result) else ""),
            result.outcome,
            _code(result.verdict),
            *figure_cells(result),
        )
        for result in ordered[:MAX_ROWS]
    ]
    table = _table(
        ("Case", "Outcome", "Verdict", "Tokens/s/device", "MFU", "Step median", "Peak memory"), rows, {3, 4, 5, 6}
    )
    left_out = len(results) - len(rows)
    return f"{table}\n\n{left_out} more cases are not shown." if left_out else table


def _list(heading: str, results: Sequence[CaseResult]) -> list[str]:
    return _items(heading, [(result, f"{_code(result.verdict)}: {_reason(result)}") for result in results])


def _retried(results: Sequence[CaseResult]) -> list[str]:
    return _items("Retried", [(result, escape(result.retried or "", MAX_REASON)) for result in results])


def _items(heading: str, told: Sequence[tuple[CaseResult, str]]) -> list[str]:
    if not told:
        return []
    lines = [f"- **{escape(result.case, 200)}** {text}" for result, text in told]
    if len(lines) > MAX_ROWS:
        lines = [*lines[:MAX_ROWS], f"- {len(lines) - MAX_ROWS} more"]
    return [f"### {heading}\n\n" + "\n".join(lines)]


def _reason(result: CaseResult) -> str:
    record = result.properties.get("record")
    return escape(result.reason, MAX_REASON) + (f" ({_code(record)})" if record else "")


def _skipped(results: Sequence[CaseResult]) -> list[str]:
    reasons = Counter(result.reason for result in results if result.outcome == "skipped")
    if not reasons:
        return []
    lines = [
        f"- {number} {'case' if number == 1 else 'cases'}: {escape(reason, MAX_REASON)}"
        for reason, number in reasons.most_common(MAX_ROWS)
    ]
    return ["### Skipped\n\n" + "\n".join(lines)]


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], numeric: Collection[int]) -> str:
    rules = ["--:" if column in numeric else "---" for column in range(len(headings))]
    return "\n".join("| " + " | ".join(row) + " |" for row in (headings, rules, *rows))


def _code(text: str | None) -> str:
    """The text in code type, where nothing but a backtick, a bar and a newline means anything."""
    flat = " ".join(printable(text or "-").split()).replace("`", "'").replace("|", "\\|")
    return f"`{flat}`"


def escape(text: str, width: int) -> str:
    """The text on one line, cut, with everything disarmed that Markdown, HTML or a mention would make of it."""
    flat = " ".join(printable(text).split())
    if len(flat) > width:
        flat = flat[: width - 3] + "..."
    html = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "&#64;")
    return SPECIAL.sub(r"\\\1", html).replace("&\\#64;", "&#64;")
