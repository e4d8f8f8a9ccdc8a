"""Arguments asked for against those in effect."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.journal import RankJournal
from harness.metrics.arguments import differing_arguments, same
from harness.probe.arguments import parsed_arguments
from harness.probe.layout import JobPaths


def rank(number: int, *events: dict[str, Any]) -> RankJournal:
    told = [{"e": "arguments", "t": 0.0, "unknown": [], "opaque": [], "got": {}, **event} for event in events]
    return RankJournal(number, tuple(enumerate(told, 1)), None)


@pytest.mark.parametrize(
    "asked, got",
    [
        (1, 1.0),
        ("1e-4", 0.0001),
        (True, True),
        ("false", False),
        ("adamw_torch", "adamw_torch"),
        ("STEPS", "steps"),
        (None, None),
        ("none", []),
        ("", []),
        (None, []),
        ("all", ["tensorboard", "wandb"]),
        (["aim"], ["aim"]),
        ("full_shard auto_wrap", ["full_shard", "auto_wrap"]),
        (True, ["full_shard"]),
        ("full_shard auto_wrap", True),
        (["full_shard"], True),
        ("", False),
        ("none", False),
        ([], False),
        (True, "all"),
        (False, "no"),
        ({"use_reentrant": False}, {"use_reentrant": False, "more": 1}),
        ({}, {}),
    ],
)
def test_another_spelling_is_the_same(asked: Any, got: Any) -> None:
    assert same(asked, got)


@pytest.mark.parametrize(
    "asked, got",
    [
        (1, 2),
        (1e-4, 1e-5),
        (True, False),
        (False, True),
        (False, None),
        (True, []),
        ("false", True),
        ("0", True),
        (5, True),
        ("none", True),
        ([], True),
        ("full_shard", False),
        (True, "no"),
        (False, "all"),
        ("cosine", "linear"),
        ("none", ["aim"]),
        (["aim"], []),
        (["a", "b"], ["b", "a"]),
        ({"use_reentrant": False}, {"use_reentrant": True}),
        ({"use_reentrant": False}, {}),
        ({"use_reentrant": False}, None),
        (None, 0),
        (0, None),
    ],
)
def test_another_value_differs(asked: Any, got: Any) -> None:
    assert not same(asked, got)


def test_each_difference_is_told_once_with_both_values() -> None:
    scenario = {"training": {"learning_rate": 1e-3, "bf16": True, "max_steps": 3, "tf32": True}}
    got = {"learning_rate": 1e-5, "bf16": True, "max_steps": 3}
    event = {"got": got, "unknown": ["tf32"]}
    ranks = [rank(0, event, {"got": {**got, "max_steps": 9}}), rank(1, event)]
    assert differing_arguments(ranks, scenario) == (
        "learning_rate: 0.001 asked for, 1e-05 in effect; tf32: True asked for, the program has no such argument; "
        "max_steps: 3 asked for, 9 in effect"
    )


def test_nothing_is_said_where_nothing_differs_or_is_known() -> None:
    scenario = {"training": {"deepspeed": {"stage": 2}, "bf16": True}}
    assert differing_arguments([rank(0, {"opaque": ["deepspeed"], "got": {"bf16": True}})], scenario) is None
    assert differing_arguments([RankJournal(0, (), None)], scenario) is None
    assert differing_arguments([rank(0, {"got": {"bf16": False}})], {}) is None


def test_an_asked_null_asks_for_nothing() -> None:
    event = {"got": {"eval_steps": 500}, "unknown": ["tf32"]}
    assert differing_arguments([rank(0, event)], {"training": {"eval_steps": None, "tf32": None}}) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        {"fsdp": "full_shard auto_wrap", "fsdp_config": {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}},
        {"fsdp": ""},
        {"include_num_input_tokens_seen": True},
        {"include_num_input_tokens_seen": False},
        {"eval_strategy": "steps", "eval_steps": None},
        {"report_to": "all"},
        {"report_to": []},
        {"bf16": "true", "learning_rate": "2e-4", "logging_steps": 0.5},
        {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"num_cycles": 2}},
    ],
    ids=json.dumps,
)
def test_what_training_arguments_make_of_it_is_the_same_and_another_value_is_not(
    asked: dict[str, Any], tmp_path: Path
) -> None:
    """Of the transformers that is installed here."""
    transformers = pytest.importorskip("transformers")
    job = JobPaths(tmp_path)
    job.job.write_text(json.dumps({"scenario": {"training": asked}}))
    event = parsed_arguments(job, transformers.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, **asked))
    assert event is not None
    assert differing_arguments([rank(0, event)], {"training": asked}) is None
    told = {**event, "got": dict.fromkeys(event["got"], "of no kind")}
    differs = differing_arguments([rank(0, told)], {"training": asked}) or ""
    assert [name for name in asked if f"{name}: " in differs] == [
        name for name, value in asked.items() if value is not None
    ]
