"""Plain-text tables for the terminal: what was measured, by verdict."""

from collections import Counter
from collections.abc import Sequence

from harness.reports.conditions import MARK, told
from harness.reports.properties import NOT_RUN, printable
from harness.reports.results import CaseResult
from harness.units import format_bytes, format_seconds

HEADINGS = ("verdict", "case", "outcome", "tokens/s/device", "MFU", "step median", "peak memory", "reason")
NUMERIC = {3, 4, 5, 6}  # columns that are set flush right
UNSTEADY = {"drifting", "bimodal", "unsettled"}  # of a median that must not be taken at its word
REASON_WIDTH = 160
MOST_MARKED = 20  # cases whose mark is explained


def align(rows: Sequence[Sequence[str]], numeric: set[int] | None = None) -> list[str]:
    """Rows as lines of aligned columns, two spaces apart; the last column is left as it is."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(_cell(row, column, width, numeric or set()) for column, width in enumerate(widths)).rstrip()
        for row in rows
    ]


def _cell(row: Sequence[str], column: int, width: int, numeric: set[int]) -> str:
    if column == len(row) - 1:
        return row[column]
    return row[column].rjust(width) if column in numeric else row[column].ljust(width)


def result_table(results: Sequence[CaseResult]) -> list[str]:
    """A line a case, grouped by verdict, good ones first; one more for each that is marked, or was tried again.

    Cases that were never launched are counted by reason."""
    launched = [result for result in results if result.verdict != NOT_RUN]
    ordered = sorted(launched, key=lambda result: (result.verdict != "none", result.verdict, result.case))
    lines = align([HEADINGS, *map(_row, ordered)], NUMERIC) if ordered else []
    waiting = Counter((result.outcome, result.reason) for result in results if result.verdict == NOT_RUN)
    lines += _marked(ordered)
    lines += [
        f"retried: {one_line(result.case, 200)} {one_line(result.retried, REASON_WIDTH)}"
        for result in ordered
        if result.retried is not None
    ]
    return lines + [
        f"{NOT_RUN}: {count} {'case' if count == 1 else 'cases'} {outcome}: {one_line(reason, REASON_WIDTH)}"
        for (outcome, reason), count in waiting.items()
    ]


def _row(result: CaseResult) -> tuple[str, ...]:
    said = "" if result.verdict == "none" and result.outcome == "passed" else result.reason
    reason = one_line(f"as expected: {said}" if result.met else said, REASON_WIDTH)
    case = one_line(result.case, 200) + (MARK if told(result) else "")
    return (result.verdict or "-", case, result.outcome, *figure_cells(result), reason)


def _marked(results: Sequence[CaseResult]) -> list[str]:
    lines = [
        f"{MARK} {one_line(result.case, 200)}: {one_line(why, REASON_WIDTH)}"
        for result in results
        if (why := told(result))
    ]
    more = len(lines) - MOST_MARKED
    return [*lines[:MOST_MARKED], f"{MARK} {more} more, in their records"] if more > 0 else lines


def figure_cells(result: CaseResult) -> tuple[str, str, str, str]:
    """Tokens per second and device, MFU, median step time, peak memory: `-` for what is not known."""
    rate = result.figure("non_pad_tokens_per_s_per_device")
    mfu = result.figure("mfu")
    step = format_step(result.figure("step_time_median_s"))
    state = result.properties.get("steady_state", "")
    device = result.figure("peak_allocated_bytes")
    host = result.figure("host_peak_rss_bytes")
    memory = f"{format_bytes(device)} GPU" if device else f"{format_bytes(host)} host" if host else "-"
    return (
        f"{rate:,.0f}" if rate is not None else "-",
        f"{mfu:.1%}" if mfu is not None else "-",
        f"{step} ({state})" if state in UNSTEADY else step,
        memory,
    )


def format_step(seconds: float | None) -> str:
    """A step's time: milliseconds under a second."""
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.3g} ms" if seconds < 0.9995 else format_seconds(seconds)


def one_line(text: str, width: int) -> str:
    """The text on one line, cut to a width, without anything that a terminal would act upon."""
    flat = " ".join(printable(text).split())
    return flat if len(flat) <= width else flat[: width - 3] + "..."
