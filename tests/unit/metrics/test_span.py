"""The measured window on the sampler's clock, and the tokens in it."""

from typing import Any

import pytest

from harness.journal import Event, RankJournal
from harness.metrics.span import Span, find_span
from harness.metrics.window import find_window
from tests.unit import journals


def span_of(*ranks: RankJournal) -> Span | None:
    return find_span(ranks, find_window(ranks))


def stepped(number: int, data_ranks: int | None = None, tokens: int | None = 100, **fields: Any) -> RankJournal:
    """40 steps of 0.5 s that end at 100.5 s, 101 s and so on, each of so many tokens."""
    events: list[Event] = [journals.event("segment", segment=0, data_ranks=data_ranks)]
    for step in range(1, 41):
        events.append(journals.step(step, 0.5, ended_m=100 + step / 2, **fields))
        events.append(journals.tokens(step, tokens, reason=None if tokens else "unknown"))
    return journals.rank(number, *events)


def test_the_span_of_the_window() -> None:
    ranks = [stepped(0), stepped(1)]
    window, span = find_window(ranks), span_of(*ranks)
    assert window is not None
    assert span is not None
    first, last = window.steps[0], window.steps[-1]
    assert (span.begin_m, span.end_m) == (100 + (first - 1) / 2, 100 + last / 2)
    assert span.non_pad_tokens == 2 * 100 * (last - first + 1)


@pytest.mark.parametrize(
    "ranks",
    [
        pytest.param([stepped(0, data_ranks=1), stepped(1, data_ranks=1)], id="ranks that share their data"),
        pytest.param([stepped(0), stepped(1, tokens=None)], id="a rank without counts"),
    ],
)
def test_tokens_that_are_not_known(ranks: list[RankJournal]) -> None:
    span = span_of(*ranks)
    assert span is not None
    assert span.non_pad_tokens is None


def test_no_steps() -> None:
    assert span_of() is None
    assert span_of(journals.rank(0, journals.event("start"))) is None
    assert span_of(journals.rank(0, *(journals.step(n, ended_m=None) for n in (1, 2)))) is None


def test_a_segment_that_the_other_ranks_lack_is_outside() -> None:
    later = [journals.step(n, 0.5, segment=1, ended_m=500 + n / 2) for n in range(1, 41)]
    first = stepped(0)
    longer = journals.rank(0, *(e for _, e in first.events), journals.event("segment", segment=1, data_ranks=1), *later)
    assert span_of(longer, stepped(1)) == span_of(first, stepped(1))
