"""The built-in target `hf`: a plain HF Trainer program made from a scenario, run as `-m harness_probe.finetune`.

Random weights from a model's shape, made on the device they train on; synthetic tokens; full fine-tuning or LoRA.
What a hub id names has been fetched before: the job's scenario holds its folder."""

import atexit
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .layout import JobPaths
from .measure import job_folder, phase
from .synthetic import SyntheticTokens
from .until import stopping_callback

DTYPE_RENAMED = (4, 56)  # transformers calls it `dtype` from here on, `torch_dtype` before
DEFAULT_SEED = 42  # of the weights, dropout and order, where the scenario names none; TrainingArguments' own


def main(argv: Sequence[str]) -> None:
    """Run the scenario of the job directory given as the only argument, or of the probe that started this program."""
    folder = argv[0] if argv else job_folder()
    if folder is None:
        raise SystemExit("usage: python -m harness_probe.finetune JOB_DIR")
    job = JobPaths(Path(folder))
    _let_children_import()
    train(json.loads(job.job.read_text(encoding="utf-8"))["scenario"], job.outputs)
    leave()


def leave() -> None:
    """End a rank that has used gloo without taking the interpreter apart.

    Its threads outlive the Trainer: with torch 2.13 one of nine such ends was seen to abort ("terminate called without
    an active exception"), and destroy_process_group() to hang, both after training had ended well."""
    import torch

    if torch.distributed.is_initialized() and torch.distributed.get_backend() == "gloo":
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def train(scenario: dict[str, Any], outputs: Path) -> None:
    """Build model and data and train them.  Raises ValueError or RuntimeError when the scenario cannot run here."""
    import transformers
    from transformers import Trainer  # loads what takes long, in the import phase

    arguments = training_arguments(scenario, outputs)
    transformers.set_seed(arguments.seed)
    phase("model_load")
    model = build_model(scenario["model"], scenario["method"], arguments)
    phase("data")
    data = SyntheticTokens(scenario["data"], model.config.get_text_config().vocab_size)
    phase("setup")
    until = scenario.get("until")
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=data,
        data_collator=transformers.default_data_collator,
        callbacks=[stopping_callback(until, arguments)] if until else None,
    )
    trainer.train()
    if scenario.get("keep_outputs"):
        trainer.save_model()


def training_arguments(scenario: dict[str, Any], outputs: Path) -> Any:
    """The scenario's `training` over what a benchmark wants: nothing saved, nothing reported, no progress bar."""
    import torch
    import transformers

    data = scenario.get("data") or {}
    on_gpu = scenario.get("gpus") is not None
    if on_gpu and not torch.cuda.is_available():
        raise RuntimeError(
            f"the scenario asks for {scenario['gpus']} GPUs, and torch {torch.__version__} sees none here"
        )
    fields: dict[str, Any] = {
        "output_dir": str(outputs),
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": not on_gpu,
        "seed": data.get("seed") or DEFAULT_SEED,
        "dataloader_num_workers": data.get("workers") or 0,
        "remove_unused_columns": False,
    }
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        fields["ddp_find_unused_parameters"] = False  # every parameter takes part; looking for others costs each step
    if until := scenario.get("until"):
        fields["max_steps"] = until["max_steps"]
    return transformers.TrainingArguments(**{**fields, **scenario.get("training", {})})


def build_model(spec: dict[str, Any], method: dict[str, Any], arguments: Any) -> Any:
    """The model on the device it will train on, with adapters when the method is LoRA."""
    model = _from_shape(spec, arguments.device) if spec.get("shape") else _from_path(spec, arguments.device)
    model.config.use_cache = False  # of no use in training, and at odds with gradient checkpointing
    if method["kind"] == "lora":
        return _with_lora(model, method, checkpointing=arguments.gradient_checkpointing)
    return model


def _from_shape(spec: dict[str, Any], device: Any) -> Any:
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(**spec["shape"])
    with torch.device(device):  # no copy on the host: a 7B model would need 27 GB there for each rank
        return transformers.AutoModelForCausalLM.from_config(config, **_load_options(spec))


def _from_path(spec: dict[str, Any], device: Any) -> Any:
    import transformers

    options = _load_options(spec)
    if device.type != "cpu":
        options["device_map"] = {"": device}
    return transformers.AutoModelForCausalLM.from_pretrained(spec["path"], **options)


def _load_options(spec: dict[str, Any]) -> dict[str, Any]:
    import torch
    import transformers

    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    options = {"dtype" if version >= DTYPE_RENAMED else "torch_dtype": getattr(torch, spec.get("dtype") or "float32")}
    if spec.get("attention"):
        options["attn_implementation"] = spec["attention"]
    return options


def _with_lora(model: Any, method: dict[str, Any], *, checkpointing: bool) -> Any:
    import peft

    if checkpointing:
        model.enable_input_require_grads()  # else the frozen embedding cuts the checkpointed graph off
    adapters = peft.LoraConfig(
        r=method.get("rank") or 8,
        lora_alpha=method.get("alpha") or 16,
        lora_dropout=method.get("dropout") or 0.0,
        target_modules=method.get("targets") or "all-linear",
        task_type="CAUSAL_LM",
    )
    return peft.get_peft_model(model, adapters)


def _let_children_import() -> None:
    """Loader workers that are spawned unpickle the dataset by its module's name: let them find the staged package."""
    stage = str(Path(__file__).absolute().parents[1])
    if __package__ == "harness_probe" and stage not in sys.path:
        sys.path.append(stage)


if __name__ == "__main__":
    main(sys.argv[1:])
