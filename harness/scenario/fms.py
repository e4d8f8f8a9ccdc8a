"""The arguments of fms-hf-tuning's `tuning.sft_trainer` that a scenario with `trainer: fms` stands for; pure."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from harness.scenario.placeholders import EMPTY, options

if TYPE_CHECKING:
    from harness.scenario.schema import Scenario

DEFAULT_SEED = 42  # where neither data nor training names one; TrainingArguments' own
# What separates a prompt from what is trained.  Put in front of each row, it lets all of the row be trained, unpacked:
# without one, sft_trainer insists on packing, which without flash attention flattens a batch to one long sequence.
RESPONSE_TEMPLATE = r"\n### Response:"  # sft_trainer makes a newline of it

# Options that say how rows are read.
READING = (
    *("dataset_text_field", "data_formatter_template", "response_template", "instruction_template"),
    *("dataset_conversation_field", "data_config_path", "chat_template"),
)
# Arguments that other keys of a scenario make, or that cannot work, and the remedy.
OWNED = {
    "model_name_or_path": "write model: {path: ...} or model: NAME",
    "torch_dtype": "write model: {dtype: ...}",
    "use_flash_attn": "write model: {attention: flash_attention_2}",
    "flash_attn_implementation": "write model: {attention: ...}",
    "training_data_path": "write data: {path: ...}",
    "max_seq_length": "write data: {sequence_length: N}",
    "peft_method": "write method: lora or method: full",
    "r": "write method: {lora: {rank: N}}",
    "lora_alpha": "write method: {lora: {alpha: N}}",
    "lora_dropout": "write method: {lora: {dropout: P}}",
    "target_modules": "write method: {lora: {targets: [...]}}",
    "output_dir": "the harness sets it to the job's folder; use keep_outputs: true to keep what is written",
    "save_model_dir": "write keep_outputs: true, and the model is saved beside the outputs",
    "report_to": "the harness sets it to none, since it measures itself",
    "use_cpu": "write processes: N for CPU, gpus: N for GPUs",
    "no_cuda": "write processes: N for CPU, gpus: N for GPUs",
    "local_rank": "torchrun sets it",
    # fms-hf-tuning 3.0 to 3.2 ends with exit code 1 where one of these is given.
    "exp_metadata": "write labels: {KEY: VALUE}, which reach the record, JUnit and Aim; fms-hf-tuning fails on it",
    "aim_remote_server_ip": "use --aim-repo aim://HOST:PORT, or aim_url: aim://HOST:PORT/; fms-hf-tuning fails on it",
    "aim_remote_server_port": "use --aim-repo aim://HOST:PORT, or aim_url: aim://HOST:PORT/; fms-hf-tuning fails on it",
}


def arguments(scenario: "Scenario", prepared: Mapping[str, str]) -> list[str]:
    """The command line behind `-m tuning.sft_trainer`.

    `prepared`: `model_dir`, `data_file` and `output_dir`.  What the scenario's options name comes last; null takes a
    default away."""
    given = {**scenario.training, **scenario.trainer.options}
    settings = {**_made(scenario, prepared), **_defaults(scenario, given), **given}
    return options(settings)


def refusal(scenario: "Scenario") -> tuple[str, tuple[str, ...]] | None:
    """(what is wrong with the options, the key's path); None when nothing is that can be known before launch."""
    for section, settings, path in (
        ("training", scenario.training, ("training",)),
        ("options", scenario.trainer.options, ("trainer", "options")),
    ):
        for key, value in settings.items():
            plain = key.lstrip("-").replace("-", "_")
            if key != plain:
                return f"is no name of an option; write {plain}", (*path, key)
            if plain in OWNED and not (plain == "max_seq_length" and scenario.data and scenario.data.path):
                return f"is not for {section}; {OWNED[plain]}", (*path, key)
            if section == "options" and key in scenario.training:
                return "stands in training, too; remove one of the two", (*path, key)
            if value == []:
                return EMPTY, (*path, key)
    data = scenario.data
    given = {**scenario.training, **scenario.trainer.options}
    if data and data.format not in (None, "text") and not any(key in given for key in READING):
        named = "data_formatter_template and response_template"
        problem = f"fms-hf-tuning must be told how to read {data.format}; add trainer: {{fms: {{options: ...}}}} with"
        return f"{problem} {named}, or write format: text", ("data", "format")
    return None


def _made(scenario: "Scenario", prepared: Mapping[str, str]) -> dict[str, Any]:
    """What no option may change."""
    model, data, method = scenario.model, scenario.data, scenario.method
    assert model is not None  # the scenario's own check
    made: dict[str, Any] = {
        "model_name_or_path": prepared["model_dir"],
        "training_data_path": prepared["data_file"],
        "output_dir": prepared["output_dir"],
        "torch_dtype": model.dtype,
        "use_flash_attn": model.attention is not None,
        "use_cpu": not scenario.on_gpu,
        "report_to": "none",
        "peft_method": "none",
    }
    if model.attention not in (None, "flash_attention_2"):
        made["flash_attn_implementation"] = model.attention  # it passes on whatever stands there
    if data is not None and data.path is None:
        made["max_seq_length"] = data.sequence_length
    if method.kind == "lora":
        alpha = method.alpha
        made |= {
            "peft_method": "lora",
            "r": method.rank,
            "lora_alpha": int(alpha) if alpha is not None and alpha.is_integer() else alpha,
            "lora_dropout": method.dropout,
            "target_modules": method.targets,
        }
    if scenario.keep_outputs:
        made["save_model_dir"] = f"{prepared['output_dir']}/model"
    return made


def _defaults(scenario: "Scenario", given: Mapping[str, Any]) -> dict[str, Any]:
    """What a benchmark wants unless it is told otherwise: nothing saved, no progress bar, all of a text trained."""
    data = scenario.data
    seed = (data.seed if data else 0) or DEFAULT_SEED
    defaults: dict[str, Any] = {"save_strategy": "no", "disable_tqdm": True, "seed": seed}
    if data is None or data.format != "text" or any(key in given for key in READING):
        return defaults
    if given.get("packing"):
        return defaults | {"dataset_text_field": "text"}
    template = {"response_template": RESPONSE_TEMPLATE, "data_formatter_template": RESPONSE_TEMPLATE + " {{text}}"}
    return defaults | template
