"""Tokens and samples: counted by all ranks that see data of their own, over the time of the slowest.

A rate is the work of the window over its wall time: no mean of ratios, no step's volume over a mean step."""

from collections.abc import Iterable, Mapping, Sequence

from harness.journal import Event, RankJournal
from harness.metrics.parts import Part
from harness.metrics.window import Window, common_steps, describe_segment, have_common_segment

COUNTERS = ("padded", "non_pad", "trainable", "samples")
SQUARES = ("padded_squares", "non_pad_squares")
RATES = {
    "padded": "padded_tokens_per_s",
    "non_pad": "non_pad_tokens_per_s",
    "trainable": "trainable_tokens_per_s",
    "samples": "samples_per_s",
}


NO_COMMON_SEGMENT = "the ranks stepped in no common segment"


class Counts:
    """Sums of the ranks' counters: over the whole last segment, and over the window; None with a reason."""

    def __init__(self, ranks: Sequence[RankJournal], window: Window | None) -> None:
        steps = common_steps(ranks)
        segment = next((step.get("segment") for of_rank in steps.values() for step in of_rank), None)
        self.leaders, self.shares = data_ranks(ranks, segment)
        self.whole: dict[str, int | None] = {}
        self.measured: dict[str, int | None] = {}
        self.reasons: dict[str, str] = {}
        missing = _missing(ranks) or _stepless(self.leaders)
        if not any(rank.of("tokens") for rank in ranks):
            missing = "no batch was seen on its way to a step"
        elif not have_common_segment(ranks):
            missing = NO_COMMON_SEGMENT
        for name in (*COUNTERS, *SQUARES):
            if missing:
                self.whole[name] = self.measured[name] = None
                self.reasons[name] = missing
            else:
                self._add_up(name, steps, window)

    def _add_up(self, name: str, steps_of: Mapping[int, list[Event]], window: Window | None) -> None:
        whole: int | None = 0
        measured: int | None = 0
        for rank in self.leaders:
            steps = steps_of[rank.rank]
            segment = steps[-1].get("segment")
            events = {event["step"]: event for event in rank.of("tokens") if event.get("segment") == segment}
            all_steps, reason = _sum(events, [step["step"] for step in steps], name)
            some, why = _sum(events, window.steps if window else (), name)
            whole = None if whole is None or all_steps is None else whole + all_steps
            measured = None if measured is None or some is None else measured + some
            if reason or why:
                self.reasons[name] = f"rank {rank.rank}: {reason or why}"
        self.whole[name], self.measured[name] = whole, measured


def data_ranks(ranks: Sequence[RankJournal], segment: int | None) -> tuple[list[RankJournal], int | None]:
    """(a rank for each share of the segment's data, how many shares there are; None where the journals do not tell).

    Ranks of a tensor- or context-parallel group see the same batches: theirs count once."""
    told = [describe_segment(rank, segment).get("data_rank") for rank in ranks]
    shares = [share for share in told if isinstance(share, int)]
    if len(shares) < len(ranks):
        return list(ranks), None
    first = dict(zip(reversed(shares), reversed(ranks), strict=True))
    return [first[share] for share in sorted(first)], len(first)


def _missing(ranks: Sequence[RankJournal]) -> str | None:
    """Ranks without a journal make any sum too small."""
    sizes = [size for rank in ranks if isinstance(size := (rank.last("start") or {}).get("world_size"), int)]
    lacking = max(sizes, default=0) - len(ranks)
    return f"{lacking} of {max(sizes)} ranks left no journal" if lacking > 0 else None


def _stepless(leaders: Sequence[RankJournal]) -> str | None:
    """So does one that was never seen to step: its share of the data was trained on all the same."""
    rank = next((rank.rank for rank in leaders if not rank.of("step")), None)
    return None if rank is None else f"rank {rank} saw no step"


def _sum(events: dict[int, Event], steps: Iterable[int], name: str) -> tuple[int | None, str | None]:
    total = 0
    for step in steps:
        event = events.get(step, {})
        count = event.get(name)
        if not isinstance(count, int):
            return None, event.get("reason") or f"step {step} has no count"
        total += count
    return total, None


def describe_rates(counts: Counts, window: Window | None, devices: int) -> Part:
    """Counts of the whole last segment, and rates of the window in all and per device."""
    part = Part()
    part.values["tokens"] = {name: counts.whole[name] for name in COUNTERS}
    part.reasons |= {f"tokens.{name}": counts.reasons[name] for name in COUNTERS if counts.whole[name] is None}
    part.put("data_ranks", counts.shares, "the program does not tell which ranks share their data")
    seconds = window.seconds if window else 0.0
    for counter, name in RATES.items():
        count = counts.measured[counter]
        rate = count / seconds if count is not None and seconds > 0 else None
        if window is None:
            why = "no step was measured"
        else:
            why = counts.reasons.get(counter, "the measured steps took no time")
        part.put(name, rate, why)
        part.put(f"{name}_per_device", None if rate is None else rate / devices, why)
    return part
