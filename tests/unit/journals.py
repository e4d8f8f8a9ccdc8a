"""Hand-made journals of ranks, for tests of the pure rooms."""

from typing import Any

from harness.journal import Event, RankJournal

T0 = 1_000_000.0


def step(number: int, seconds: float = 0.1, **fields: Any) -> Event:
    return {
        "t": T0 + number,
        "m": float(number),
        "e": "step",
        "step": number,
        "segment": 0,
        "ended_m": float(number),
        "seconds": seconds,
        "device_seconds": None,
        "overhead_seconds": 0.0,
        "overhead": [],
        "loss": 5.0 - number / 10,
        "grad_norm": 1.0,
        "learning_rate": 1e-3,
    } | fields


def tokens(number: int, padded: int | None = 128, **fields: Any) -> Event:
    return {
        "t": T0 + number,
        "m": float(number),
        "e": "tokens",
        "step": number,
        "segment": 0,
        "padded": padded,
        "non_pad": padded,
        "trainable": padded,
        "samples": 2,
        "micro_batches": 1,
        "reason": None,
    } | fields


def event(kind: str, t: float = 0.0, **fields: Any) -> Event:
    return {"t": T0 + t, "m": t, "e": kind} | fields


def error(type_name: str, message: str, t: float = 50.0, **fields: Any) -> Event:
    return {
        "t": T0 + t,
        "e": "exception",
        "type": type_name,
        "bases": ["Exception"],
        "message": message,
        "traceback": "",
        "chain": [],
        "step": 3,
        "phase": "steady",
        "part": None,
        "where": "train",
        "exit_code": None,
    } | fields


def rank(number: int, *events: Event, error: Event | None = None) -> RankJournal:
    return RankJournal(number, tuple(enumerate(events, 1)), error)
