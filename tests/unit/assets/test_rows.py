"""Synthetic rows: their lengths in tokens of the tokenizer that is shipped, and that they are the same every time."""

import hashlib
import json
import math
from collections import Counter
from typing import Any

import pytest

from harness.assets.making import TOKENIZER
from harness.assets.rows import SHORTEST, WORDS, least_bytes, lines, rows
from harness.probe.synthetic import document_lengths

LENGTHS = {"distribution": "lognormal", "mean": 20.0, "std": 12.0, "min": 2, "max": 48}


def data(kind: str, **fields: Any) -> dict[str, Any]:
    return {"format": kind, "samples": 200, "sequence_length": 48, "lengths": LENGTHS, "seed": 3, **fields}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return pytest.importorskip("tokenizers").Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))


def texts(kind: str, row: dict[str, Any]) -> list[str]:
    """The texts of a row whose tokens are to be as many as its length."""
    if kind == "text":
        return [row["text"]]
    if kind == "messages":
        return ["".join(f"<|{each['role']}|>{each['content']}</s>" for each in row["messages"])]
    if kind == "prompt_completion":
        return [row["prompt"] + row["completion"]]
    return [row["prompt"] + row["chosen"], row["prompt"] + row["rejected"]]


@pytest.mark.parametrize("kind", SHORTEST)
def test_a_row_has_as_many_tokens_as_its_length(tokenizer: Any, kind: str) -> None:
    spec = data(kind)
    wanted = [max(length, SHORTEST[kind]) for length in document_lengths(spec)]
    counted = [{len(tokenizer.encode(text).ids) for text in texts(kind, row)} for row in rows(spec)]
    assert counted == [{length} for length in wanted]
    assert len(set(wanted)) > 10


@pytest.mark.parametrize("kind", SHORTEST)
@pytest.mark.parametrize("lengths", ["fixed", LENGTHS])
def test_no_rows_take_less_than_the_least(kind: str, lengths: Any) -> None:
    spec = data(kind, lengths=lengths)
    assert least_bytes(spec) == 200 * 3 * (48 if lengths == "fixed" else 2)
    assert sum(map(len, lines(spec))) >= least_bytes(spec)


@pytest.mark.parametrize("kind", ["prompt_completion", "preference"])
def test_the_parts_have_as_many_tokens_apart_as_together(tokenizer: Any, kind: str) -> None:
    for row in rows(data(kind)):
        parts = [row["prompt"], row.get("completion", row.get("chosen"))]
        apart = [tokenizer.encode(part).ids for part in parts]
        assert apart[0] + apart[1] == tokenizer.encode("".join(parts)).ids


@pytest.mark.parametrize("word", WORDS)
def test_every_word_is_one_token_at_the_start_and_within(tokenizer: Any, word: str) -> None:
    first, within = tokenizer.encode(f"{word} {word}").tokens
    assert (first, within) == (word, f"Ġ{word}")


# Of the bytes: the cache and a comparison over months rest on them.
@pytest.mark.parametrize(
    "kind, digest",
    [
        ("text", "b2d76a5ca343b6bb"),
        ("messages", "530a64f7f8e29437"),
        ("prompt_completion", "672d32ab1fc6b18a"),
        ("preference", "2907a33d7d24766c"),
    ],
)
def test_the_same_seed_gives_the_same_bytes(kind: str, digest: str) -> None:
    made = hashlib.sha256("".join(lines(data(kind))).encode()).hexdigest()
    assert made[:16] == digest
    assert hashlib.sha256("".join(lines(data(kind, seed=4))).encode()).hexdigest() != made


def test_the_columns_are_those_that_trainers_read() -> None:
    made = {kind: json.loads(next(lines(data(kind)))) for kind in SHORTEST}
    assert {kind: sorted(row) for kind, row in made.items()} == {
        "text": ["text"],
        "messages": ["messages"],
        "prompt_completion": ["completion", "prompt"],
        "preference": ["chosen", "prompt", "rejected"],
    }
    assert [message["role"] for message in made["messages"]["messages"]] == ["user", "assistant"]
    assert all(message["content"] for message in made["messages"]["messages"])


def test_every_second_word_follows_from_the_one_before() -> None:
    words = [WORDS.index(word) for row in rows(data("text", lengths="fixed")) for word in row["text"].split()]
    assert all((first * 7 + 3) % len(WORDS) == second for first, second in zip(words[::2], words[1::2], strict=True))
    # Guessing the first words by their frequency alone leaves much to learn.
    counts = Counter(words[::2])
    entropy = -sum(n / counts.total() * math.log2(n / counts.total()) for n in counts.values())
    assert 3 < entropy < 6


def test_what_is_rejected_has_no_word_in_common_with_what_is_chosen() -> None:
    for row in rows(data("preference")):
        pairs = zip(row["chosen"].split(), row["rejected"].split(), strict=True)
        assert all(chosen != rejected for chosen, rejected in pairs)


def test_a_sequence_too_short_for_the_format_is_refused() -> None:
    assert len(list(rows(data("messages", samples=2, sequence_length=6, lengths="fixed")))) == 2
    with pytest.raises(ValueError, match=r"data\.sequence_length: a row of messages takes at least 6 tokens"):
        list(rows(data("messages", sequence_length=5, lengths="fixed")))
    with pytest.raises(ValueError, match="unknown format 'csv'; known: text, messages"):
        list(rows(data("csv")))
