"""The check of arguments before fms-hf-tuning's trainer, with a parser as its own is made of argparse."""

import argparse
import enum
import json
from typing import Any

import pytest

from harness.probe.fms import check, same


class Optim(enum.Enum):
    ADAMW = "adamw_torch"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    made.add_argument("--max_steps", "--max-steps", type=int)
    made.add_argument("--trackers", nargs="+")
    made.add_argument("--bf16", type=lambda text: {"true": True, "false": False}[text], nargs="?", const=True)
    made.add_argument("--learning_rate", type=float)
    made.add_argument("--steps_or_ratio", type=lambda text: int(float(text)))
    return made


def test_arguments_as_they_are_meant() -> None:
    argv = ["--max_steps", "4", "--trackers", "aim", "mlflow", "--bf16", "false", "--learning_rate=1e-4"]
    check(argv, parser(), {})


@pytest.mark.parametrize(
    "argv, said",
    [
        (["--max_step", "4"], r"no option max_step; did you mean max_steps\?"),  # argparse would take it for the other
        (["--tracker", "aim"], r"no option tracker; did you mean trackers\?"),
        (["--quantum", "4"], "no option quantum; see python -m tuning.sft_trainer --help"),
        (["4"], "would ignore '4'"),
        (["--max_steps", "4", "5"], "would ignore '5'"),
        (["--steps_or_ratio", "0.5"], "takes steps_or_ratio for 0, and '0.5' was asked for"),
        (["--max_steps", "4", "--max-steps", "5"], "takes max_steps for 5, and '4' was asked for"),
    ],
)
def test_arguments_that_would_be_lost(argv: list[str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        check(argv, parser(), {})


def test_what_the_parser_refuses_ends_as_it_does(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        check(["--max_steps", "abc"], parser(), {})
    assert ended.value.code == 2
    assert "invalid int value: 'abc'" in capsys.readouterr().err


def test_a_configuration_in_the_environment_would_win() -> None:
    with pytest.raises(ValueError, match="SFT_TRAINER_CONFIG_JSON_PATH is set"):
        check(["--max_steps", "4"], parser(), {"SFT_TRAINER_CONFIG_JSON_PATH": "/etc/job.json"})


@pytest.mark.parametrize(
    "value, words, alike",
    [
        (True, ["true"], True),
        (True, ["false"], False),
        (4.0, ["4"], True),
        (4, ["4.0"], True),
        (4, ["four"], False),
        (None, ["none"], True),
        ("lora", ["LoRA"], True),
        ("a", ["b"], False),
        (Optim.ADAMW, ["adamw_torch"], True),
        (["a", "b"], ["a", "b"], True),
        (["a"], ["a", "b"], False),
        ("a", ["a", "b"], False),
        ({"a": False}, [json.dumps({"a": False})], True),
        ({"a": False}, ["{"], False),
    ],
)
def test_what_is_the_same(value: Any, words: list[str], alike: bool) -> None:
    assert same(value, words) is alike
