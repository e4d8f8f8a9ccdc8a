"""Synthetic data for programs that read text: rows with something to learn, made from (seed, index) alone.

A text is words that are one token each of the tokenizer beside this module, at its start and after a space; every
second word follows from the one before, as in the tokens of the built-in target."""

import json
import random
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from harness.probe.synthetic import each_length

# 15 consonants and 5 vowels: 75 words of two letters, which scripts/train_tokenizer.py makes tokens of.
WORDS = tuple("".join(pair) for pair in product("bdfghklmnprstvw", "aeiou"))
# Tokens that the tokenizer's chat template puts around a message: its role and its end.
AROUND_A_MESSAGE = 2
# Format -> tokens of the shortest row.
SHORTEST = {"text": 2, "messages": 2 * (AROUND_A_MESSAGE + 1), "prompt_completion": 2, "preference": 2}


def least_bytes(data: Mapping[str, Any]) -> int:
    """What the texts of all rows take at least: each token is two letters and a space."""
    lengths = data["lengths"]
    shortest = int(data["sequence_length"] if lengths == "fixed" else lengths["min"])
    return int(data["samples"]) * shortest * 3


def lines(data: Mapping[str, Any]) -> Iterator[str]:
    """The rows of a scenario's `data` as lines of JSON, each with its end of line.

    Raises ValueError where the sequence length is too short for the format."""
    for row in rows(data):
        yield json.dumps(row) + "\n"


def rows(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows; a row of n tokens has n in `text`; in `messages` as the chat template writes them; in `prompt` and
    `completion` together; in `prompt` and `chosen`, and in `prompt` and `rejected`, together."""
    kind, seed = str(data["format"]), int(data.get("seed") or 0)
    if kind not in SHORTEST:
        raise ValueError(f"data.format: unknown format {kind!r}; known: {', '.join(SHORTEST)}")
    if int(data["sequence_length"]) < SHORTEST[kind]:
        raise ValueError(f"data.sequence_length: a row of {kind} takes at least {SHORTEST[kind]} tokens")
    for index, length in enumerate(each_length(data)):
        yield _row(kind, random.Random(f"row-{seed}-{index}"), max(length, SHORTEST[kind]))


def _row(kind: str, source: random.Random, length: int) -> dict[str, Any]:
    if kind == "text":
        return {"text": _text(_sentence(source, length))}
    if kind == "messages":
        words = _sentence(source, length - 2 * AROUND_A_MESSAGE)
        half = len(words) // 2
        asked, answered = _text(words[:half]), _text(words[half:])
        return {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]}
    words = _sentence(source, length)
    prompt, completion = words[: length // 2], words[length // 2 :]
    if kind == "prompt_completion":
        return {"prompt": _text(prompt), "completion": _continued(completion)}
    # What is rejected follows from nothing: every word is another one than in what is chosen.
    rejected = [(word + 1 + int(source.random() * (len(WORDS) - 1))) % len(WORDS) for word in completion]
    return {"prompt": _text(prompt), "chosen": _continued(completion), "rejected": _continued(rejected)}


def _sentence(source: random.Random, length: int) -> list[int]:
    """Numbers of words: a few are frequent and most are rare, and every second one follows from the one before."""
    words: list[int] = []
    while len(words) < length:
        word = int(len(WORDS) ** (source.random() ** 2)) - 1
        words += [word, (word * 7 + 3) % len(WORDS)]
    return words[:length]


def _text(words: list[int]) -> str:
    return " ".join(WORDS[word] for word in words)


def _continued(words: list[int]) -> str:
    """With the space before it that makes prompt and completion one text of as many tokens as both."""
    return " " + _text(words)
