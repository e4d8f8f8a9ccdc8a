"""The command line of fms-hf-tuning that a scenario stands for, and what is refused before launch."""

from pathlib import Path
from typing import Any

import pytest

from harness.scenario import BadScenario, Case, Scenario, load_scenarios
from harness.scenario.fms import OWNED, arguments

PREPARED = {"model_dir": "/m", "data_file": "/d.jsonl", "output_dir": "/o", "case_id": "c", "processes": "1"}
BASE: dict[str, Any] = {"name": "s", "model": {"path": "/m"}, "processes": 1, "trainer": {"kind": "fms"}}


def scenario(**fields: Any) -> Scenario:
    return Scenario.model_validate({**BASE, **fields})


def options(**fields: Any) -> dict[str, list[str]]:
    """Option -> words, each option once, in order."""
    found: dict[str, list[str]] = {}
    for word in arguments(scenario(**fields), PREPARED):
        if word.startswith("--"):
            key, assigned, value = word.partition("=")
            assert key not in found
            found[key] = [value] if assigned else []
        else:
            found[list(found)[-1]].append(word)
    return found


def test_the_defaults() -> None:
    assert options() == {
        "--model_name_or_path": ["/m"],
        "--training_data_path": ["/d.jsonl"],
        "--output_dir": ["/o"],
        "--torch_dtype": ["float32"],
        "--use_flash_attn": ["false"],
        "--use_cpu": ["true"],
        "--report_to": ["none"],
        "--peft_method": ["none"],
        "--max_seq_length": ["512"],
        "--save_strategy": ["no"],
        "--disable_tqdm": ["true"],
        "--seed": ["42"],
        "--response_template": ["\\n### Response:"],
        "--data_formatter_template": ["\\n### Response: {{text}}"],
        "--per_device_train_batch_size": ["8"],
    }


@pytest.mark.parametrize(
    "fields, told",
    [
        pytest.param(
            {"method": {"kind": "lora", "rank": 4, "alpha": 8.0, "targets": ["q_proj", "v_proj"]}},
            {
                "--peft_method": ["lora"],
                "--r": ["4"],
                "--lora_alpha": ["8"],
                "--lora_dropout": ["0.0"],
                "--target_modules": ["q_proj", "v_proj"],
            },
            id="lora",
        ),
        pytest.param({"method": {"kind": "lora"}}, {"--target_modules": ["all-linear"]}, id="all-linear"),
        pytest.param({"gpus": 2, "processes": None}, {"--use_cpu": ["false"]}, id="gpus"),
        pytest.param(
            {"model": {"path": "/m", "dtype": "bfloat16", "attention": "flash_attention_2"}},
            {"--torch_dtype": ["bfloat16"], "--use_flash_attn": ["true"], "--flash_attn_implementation": None},
            id="flash",
        ),
        pytest.param(
            {"model": {"path": "/m", "attention": "eager"}},
            {"--use_flash_attn": ["true"], "--flash_attn_implementation": ["eager"]},
            id="eager",
        ),
        pytest.param(
            {"data": {"sequence_length": 64, "seed": 3}}, {"--max_seq_length": ["64"], "--seed": ["3"]}, id="data"
        ),
        pytest.param(
            {"training": {"seed": 7, "bf16": False, "max_steps": 2, "learning_rate": 1e-4}},
            {"--seed": ["7"], "--bf16": ["false"], "--max_steps": ["2"], "--learning_rate": ["0.0001"]},
            id="training",
        ),
        pytest.param(
            {"data": {"path": "/x"}},
            {"--max_seq_length": None, "--response_template": None, "--data_formatter_template": None},
            id="data-of-the-users",
        ),
        pytest.param({"keep_outputs": True}, {"--save_model_dir": ["/o/model"]}, id="kept"),
    ],
)
def test_what_a_scenario_says(fields: dict[str, Any], told: dict[str, list[str] | None]) -> None:
    found = options(**fields)
    assert {key: found.get(key) for key in told} == told


@pytest.mark.parametrize(
    "given, told",
    [
        pytest.param(
            {"packing": True},
            {"--packing": ["true"], "--dataset_text_field": ["text"], "--response_template": None},
            id="packing",
        ),
        pytest.param(
            {"dataset_text_field": "text", "response_template": "-A:"},
            {"--response_template": ["-A:"], "--data_formatter_template": None},
            id="own-reading",
        ),
        pytest.param({"save_strategy": None, "trackers": ["aim", "mlflow"]}, {"--save_strategy": None}, id="null"),
        pytest.param({"trackers": ["aim", "mlflow"]}, {"--trackers": ["aim", "mlflow"]}, id="list"),
    ],
)
def test_options_come_last(given: dict[str, Any], told: dict[str, list[str] | None]) -> None:
    found = options(trainer={"kind": "fms", "options": given})
    assert {key: found.get(key) for key in told} == told


def refused(folder: Path, text: str) -> str:
    (folder / "a.yaml").write_text(f"name: s\nmodel: {{path: /m}}\nprocesses: 1\n{text}\n")
    (found,) = load_scenarios(folder)
    assert isinstance(found, BadScenario)
    return found.error


@pytest.mark.parametrize("key", OWNED)
def test_what_other_keys_say_is_refused_with_the_remedy(tmp_path: Path, key: str) -> None:
    error = refused(tmp_path, f"trainer: {{fms: {{options: {{{key}: 1}}}}}}")
    assert f"a.yaml:4: trainer.options.{key}: is not for options; {OWNED[key]}" in error


@pytest.mark.parametrize(
    "text, error",
    [
        ("trainer: fms\ntraining: {output_dir: x}", "a.yaml:5: training.output_dir: is not for training"),
        ("trainer: {fms: {options: {lora-alpha: 1}}}", "a.yaml:4: trainer.options.lora-alpha: is no name of an option"),
        (
            "trainer: {fms: {options: {max_steps: 1}}}\ntraining: {max_steps: 2}",
            "a.yaml:4: trainer.options.max_steps: stands in training, too",
        ),
        ("trainer: {fms: {options: {trackers: []}}}", "a.yaml:4: trainer.options.trackers: is an empty list"),
        ("trainer: fms\ntraining: {fsdp: []}", "a.yaml:5: training.fsdp: is an empty list"),
        ("trainer: fms\ndata: {format: messages}", "a.yaml:5: data.format: fms-hf-tuning must be told how to read"),
        ("trainer: {hf: {options: {a: 1}}}", "a.yaml:4: trainer.options: belongs to fms, not to hf"),
        ("trainer: fms\ndata: {packing: packed}", "a.yaml:5: data.packing: is for the built-in trainer"),
    ],
)
def test_what_is_refused(tmp_path: Path, text: str, error: str) -> None:
    assert error in refused(tmp_path, text)


def test_labels_take_the_place_of_exp_metadata(tmp_path: Path) -> None:
    error = refused(tmp_path, "trainer: {fms: {options: {exp_metadata: '{}'}}}")
    assert "write labels: {KEY: VALUE}, which reach the record, JUnit and Aim" in error


def test_a_length_for_data_of_the_users_own_is_an_option(tmp_path: Path) -> None:
    text = "name: s\nmodel: {path: /m}\nprocesses: 1\ndata: {path: /d}\ntrainer: {fms: {options: {max_seq_length: 8}}}"
    (tmp_path / "a.yaml").write_text(text)
    (found,) = load_scenarios(tmp_path)
    assert isinstance(found, Case)
    assert found.id == "s-full-bs8-1proc"  # the length of data that is there is not the scenario's
    assert "--max_seq_length 8" in " ".join(arguments(found.scenario, PREPARED))
