import json
from pathlib import Path
from typing import Any

import pytest

from harness.scenario import BadScenario, Case, load_scenarios
from harness.scenario.placeholders import escape, fill, keys_of, names

VALUES = {
    "output_dir": "/out dir",
    "method": {},
    "training": {
        "bf16": False,
        "learning_rate": 1e-5,
        "fsdp": ["full_shard", "auto_wrap"],
        "eval_steps": None,
        "report_to": "none",
    },
    "options.training": {"a": None},
    "training.bf16": False,
    "training.learning_rate": 1e-5,
    "training.fsdp": ["full_shard", "auto_wrap"],
    "training.kwargs": {"use_reentrant": True},
}


@pytest.mark.parametrize(
    ("arguments", "filled"),
    [
        pytest.param(["--out={output_dir}/x"], ["--out=/out dir/x"], id="inside"),
        pytest.param(["--bf16", "{training.bf16}"], ["--bf16", "false"], id="false-is-written-out"),
        pytest.param(["{training.learning_rate}"], ["1e-05"], id="number"),
        pytest.param(["{training.fsdp}"], ["full_shard", "auto_wrap"], id="list-alone"),
        pytest.param(["--fsdp={training.fsdp}"], ['--fsdp=["full_shard", "auto_wrap"]'], id="list-inside"),
        pytest.param(["{training.kwargs}"], ['{"use_reentrant": true}'], id="mapping"),
        pytest.param(
            ["{training}"],
            ["--bf16", "false", "--learning_rate", "1e-05", "--fsdp", "full_shard", "auto_wrap", "--report_to", "none"],
            id="all-of-training",
        ),
        pytest.param(["{method}"], ["{}"], id="empty-mapping"),
        pytest.param(["{options.training}"], ['{"a": null}'], id="null-in-json"),
        pytest.param(['{"a": {"b": 1}}', "{ x }", "{}", "{0}"], ['{"a": {"b": 1}}', "{ x }", "{}", "{0}"], id="json"),
        pytest.param(["{{output_dir}}"], ["{output_dir}"], id="doubled-is-the-text"),
    ],
)
def test_arguments_are_filled(arguments: list[str], filled: list[str]) -> None:
    assert fill(arguments, VALUES) == filled


@pytest.mark.parametrize(
    ("training", "filled"),
    [
        pytest.param({"deepspeed": None, "bf16": True}, ["--bf16", "true"], id="null-is-not-given"),
        pytest.param({"run_name": "-x"}, ["--run_name=-x"], id="text-like-an-option"),
        pytest.param({"weight_decay": -1e-7}, ["--weight_decay=-1e-07"], id="number-like-an-option"),
        pytest.param({"names": ["-a", "b"]}, ["--names", "-a", "b"], id="list"),
        pytest.param({"names": []}, ["--names"], id="empty-list"),
    ],
)
def test_all_of_training_as_options(training: dict[str, Any], filled: list[str]) -> None:
    assert fill(["{training}"], {"training": training}) == filled


@pytest.mark.parametrize("text", ["{x}", "{{x}}", "{{{x}}}", 'a{"b": {c}}', "}{", "{a.b}{c}", "{{a}} {b}"])
def test_an_escaped_text_is_filled_to_itself(text: str) -> None:
    assert fill([escape(text)], {}) == [text]
    assert names(escape(text)) == []


def test_keys_without_a_value_and_variables_are_no_placeholders() -> None:
    scenario = {"name": "x", "env": {"HF_TOKEN": "s"}, "model": {"path": None, "dtype": "float32"}, "data": None}
    assert keys_of(scenario) == {
        "name": "x",
        "model": {"path": None, "dtype": "float32"},
        "model.dtype": "float32",
    }


SCRIPT = "name: x\nprocesses: 1\ntrainer: {target: a.py, args: [%s]}\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        pytest.param(SCRIPT % '"{modle_dir}"', "3: trainer.args.0: {modle_dir} names no key", id="unknown"),
        pytest.param(SCRIPT % '"{model_dir}"', "{model_dir} needs model: in the scenario", id="no-model"),
        pytest.param(SCRIPT % '"{data_file}"', "{data_file} needs data: in the scenario", id="no-data"),
        pytest.param(SCRIPT % "" + "data: {samples: 4}\n", "4: data: is not passed to the script", id="data-unused"),
        pytest.param(
            SCRIPT % '"{training.seed}"' + "training: {seed: 1, bf16: true}\n",
            "4: training.bf16: is not passed to the script",
            id="training-unused",
        ),
        pytest.param(
            SCRIPT % '"{training}"' + "training: {seed: 1, report_to: []}\n",
            "4: training.report_to: is an empty list, which no command line can hold",
            id="empty-list",
        ),
        pytest.param(
            SCRIPT % '--to, "{training.report_to}"' + "training: {report_to: []}\n",
            "3: trainer.args.1: {training.report_to} is an empty list",
            id="empty-list-alone",
        ),
        pytest.param(
            SCRIPT % '"{data_file}"' + "data: {workers: 2}\n", "data.workers: is for the built-in trainer", id="workers"
        ),
        pytest.param(
            SCRIPT % '"{data_file}"' + "data: {path: ./d, samples: 2}\n",
            "data.samples: describes synthetic data",
            id="path-and-samples",
        ),
        pytest.param(
            "name: x\nprocesses: 1\nmodel: tiny-llama\ndata: {format: text}\n",
            "data.format: is for programs of your own",
            id="built-in",
        ),
        pytest.param(
            "name: x\nprocesses: 1\nmodel: tiny-llama\ntrainer: {kind: hf, launcher: own}\n",
            "trainer.launcher: belongs to script, not to hf",
            id="launcher",
        ),
    ],
)
def test_what_a_script_would_not_see_is_an_error(text: str, error: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text)
    [found] = load_scenarios(tmp_path)
    assert isinstance(found, BadScenario)
    assert error in found.error


@pytest.mark.parametrize("argument", ["--json={training}", "--to={training.report_to}"])
def test_json_holds_an_empty_list_and_null_need_not_be_passed(argument: str, tmp_path: Path) -> None:
    training = "training: {report_to: [], eval_steps: null}\n"
    (tmp_path / "a.yaml").write_text(SCRIPT % f'"{argument}"' + training)
    [found] = load_scenarios(tmp_path)
    assert isinstance(found, Case), found


def test_a_script_with_everything_it_needs(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(
        json.dumps(
            {
                "name": "x",
                "gpus": 2,
                "model": "tiny-llama",
                "training": {"max_steps": 3},
                "data": {"samples": 8, "format": "messages"},
                "stack": "reqs.txt",
                "trainer": {
                    "program": "trl",
                    "launcher": "own",
                    "args": ["sft", "{model_dir}", "{data_file}", "{training}", "{processes}", "{case_id}"],
                },
            }
        )
    )
    [found] = load_scenarios(tmp_path)
    assert isinstance(found, Case), found
    trainer, stack = found.scenario.trainer, found.scenario.stack
    assert (trainer.target, trainer.form, trainer.launcher) == ("trl", "program", "own")
    assert stack is not None
    assert stack.requirements == [str(tmp_path / "reqs.txt")]
    assert found.scenario.data is not None
    assert (found.scenario.data.format, found.scenario.data.file) == ("messages", "jsonl")
