"""What a case needs, and the words that say it is not there."""

from pathlib import Path
from typing import Any

import pytest

from harness.scenario import (
    Data,
    Method,
    Model,
    Needs,
    Scenario,
    Trainer,
    absent,
    reads,
    required_packages,
    unmet,
)

GIB = 2**30
STACK = {"torch": "2.13.0+cpu", "Transformers": "5.24.0", "accelerate": "1.15.0", "PEFT": "0.21.2"}
LORA = Scenario(name="s", model=Model(path="a/b"), method=Method(kind="lora"), processes=1)


def on_gpus(gpus: int, memory: int | None = None) -> Scenario:
    return Scenario(name="s", model=Model(path="a/b"), gpus=gpus, needs=Needs(gpu_memory_bytes=memory))


def needing(*packages: str) -> Scenario:
    return Scenario(
        name="s", trainer=Trainer(kind="script", target="/x.py"), processes=1, needs=Needs(packages=list(packages))
    )


def test_packages_of_the_built_in_trainer_and_of_the_scenario() -> None:
    assert required_packages(on_gpus(1)) == ["torch", "transformers", "accelerate"]
    assert required_packages(LORA) == ["torch", "transformers", "accelerate", "peft"]
    assert required_packages(needing("trl>=1", "trl>=1")) == ["trl>=1"]
    assert required_packages(needing("trl>=1").model_copy(update={"processes": 2})) == ["torch", "trl>=1"]


MODEL, FILE = "model_dir", "data_file"
SHAPE = Model(shape={"model_type": "llama"})
HF, FMS, HUB = {"kind": "hf"}, {"kind": "fms"}, "huggingface-hub"
TRAINERS = ["torch", "transformers", "accelerate"]


def passing(*args: str) -> dict[str, Any]:
    return {"kind": "script", "target": "/x.py", "args": list(args)}


@pytest.mark.parametrize(
    "trainer, model, data, read, packages",
    [
        pytest.param(HF, SHAPE, None, set(), TRAINERS, id="hf-shape"),
        pytest.param(HF, Model(path="/models/llama"), None, set(), TRAINERS, id="hf-folder"),
        pytest.param(HF, Model(path="org/llama"), None, {MODEL}, TRAINERS, id="hf-hub"),
        pytest.param(FMS, SHAPE, Data(), {MODEL, FILE}, ["fms-hf-tuning", "torch", "transformers"], id="fms"),
        pytest.param(passing(), Model(path="org/llama"), None, set(), [], id="described-alone"),
        pytest.param(passing("--m={model_dir}"), SHAPE, None, {MODEL}, ["torch", "transformers"], id="shape"),
        pytest.param(passing("{model_dir}"), Model(path="/models/llama"), None, {MODEL}, [], id="folder"),
        pytest.param(passing("{model_dir}"), Model(path="org/llama"), None, {MODEL}, [HUB], id="hub"),
        pytest.param(passing("{data_file}"), SHAPE, Data(file="jsonl"), {FILE}, [], id="jsonl"),
        pytest.param(passing("{data_file}"), None, Data(file="parquet"), {FILE}, ["pyarrow"], id="parquet"),
        pytest.param(passing("{data_file}"), None, Data(path="org/rows"), {FILE}, [HUB], id="data-of-a-hub"),
        pytest.param(passing("{{model_dir}}"), SHAPE, None, set(), [], id="escaped"),
    ],
)
def test_what_a_program_reads_from_disk_and_what_makes_it(
    trainer: dict[str, Any], model: Model | None, data: Data | None, read: set[str], packages: list[str]
) -> None:
    scenario = Scenario(name="s", trainer=Trainer(**trainer), processes=1, model=model, data=data)
    assert reads(scenario) == read
    assert required_packages(scenario) == packages


@pytest.mark.parametrize(
    "scenario, gpus, reason",
    [
        (on_gpus(1), [("H200", 141 * GIB)], None),
        (on_gpus(2, 40 * GIB), [("A", 40 * GIB), ("A", 80 * GIB)], None),
        (on_gpus(2, 40 * GIB), [], "needs 2 GPUs of at least 40.0 GiB; there are 0 GPUs (no NVIDIA driver)"),
        (on_gpus(1), [], "needs 1 GPU; there are 0 GPUs (no NVIDIA driver)"),
        (on_gpus(4), [("A10", 24 * GIB)] * 2, "needs 4 GPUs; there are 2 GPUs (A10, 24.0 GiB)"),
        (on_gpus(1, 40 * GIB), [("A10", 24 * GIB)], "needs 1 GPU of at least 40.0 GiB; there is 1 GPU (A10, 24.0 GiB)"),
        (
            on_gpus(2, 40 * GIB),
            [("A10", 24 * GIB), ("A100", 80 * GIB)],
            "needs 2 GPUs of at least 40.0 GiB; there are 2 GPUs (A10, 24.0 GiB; A100, 80.0 GiB)",
        ),
        (LORA, [], None),
    ],
    ids=str,
)
def test_gpus(scenario: Scenario, gpus: list[tuple[str, int]], reason: str | None) -> None:
    assert unmet(scenario, gpus, STACK, None, "no NVIDIA driver") == reason


@pytest.mark.parametrize(
    "needs, packages, reason",
    [
        ("peft", {"peft": "0.1"}, None),
        ("peft>=0.13", {}, "needs peft>=0.13; there is none"),
        ("peft>=0.13", {"peft": "0.12.1"}, "needs peft>=0.13; there is 0.12.1"),
        ("torch>=2.4", {"torch": "2.13.0+cpu"}, None),
        ("torch>=2.4", {"torch": "2.14.0.dev20261101"}, None),
        ("Flash_Attn==2.*", {"flash-attn": "2.8.0"}, None),
        ("x", {"x": "not a version"}, None),
        ("x>1", {"x": "not a version"}, "needs x>1; there is not a version"),
    ],
)
def test_packages(needs: str, packages: dict[str, str], reason: str | None) -> None:
    assert unmet(needing(needs), [], packages) == reason


def test_every_reason_is_told() -> None:
    assert unmet(on_gpus(1), [], {"torch": "2", "transformers": "5"}) == (
        "needs 1 GPU; there are 0 GPUs. needs accelerate; there is none"
    )


def test_no_interpreter_is_told_alone_of_the_packages() -> None:
    scenario = needing("peft").model_copy(update={"python": "/opt/x/python"})
    assert unmet(scenario, [], None, "it does not answer") == "needs the interpreter /opt/x/python; it does not answer"


def test_files_that_are_not_there(tmp_path: Path) -> None:
    def script(**trainer: Any) -> Scenario:
        return Scenario(name="x", processes=1, trainer=Trainer(kind="script", **trainer))

    (tmp_path / "train.py").touch()
    assert absent(script(target="train.py"), tmp_path) is None
    assert absent(script(target="pkg.train", form="module"), tmp_path) is None
    assert absent(script(target="nosuch.py"), tmp_path) == f"trainer.target: there is no file {tmp_path}/nosuch.py"
    assert "no __main__.py" in str(absent(script(target=str(tmp_path)), tmp_path))
    assert "trainer.cwd" in str(absent(script(target=f"{tmp_path}/train.py", cwd="/no/such"), tmp_path))
