"""What a case needs of the machine and of the stack, and whether it is there."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from harness.scenario import placeholders
from harness.scenario.schema import Scenario
from harness.units import format_bytes


def required_packages(scenario: Scenario) -> list[str]:
    """Requirement strings that the measured interpreter's packages must meet."""
    trainer = scenario.trainer
    required = ["torch"] if scenario.world_size > 1 and trainer.launcher == "harness" else []  # its launcher
    if trainer.kind == "hf":
        required = ["torch", "transformers", "accelerate"] + (["peft"] if scenario.method.kind == "lora" else [])
    elif trainer.kind == "fms":
        required += ["fms-hf-tuning"]
    required += _makers(scenario)
    return list(dict.fromkeys([*required, *scenario.needs.packages]))


def reads(scenario: Scenario) -> set[str]:
    """The placeholders among `model_dir` and `data_file` that the program is given: what must lie on disk for it."""
    kind, model = scenario.trainer.kind, scenario.model
    if kind == "hf":  # makes its own model and data, but all of its ranks would fetch from a hub
        return {"model_dir"} if model is not None and is_hub_id(model.path) else set()
    if kind == "fms":
        return {"model_dir", "data_file"}
    used = placeholders.used(scenario.trainer.args)
    return (used | {"data_file"} if "data_dir" in used else used) & {"model_dir", "data_file"}


def is_hub_id(path: str | None) -> bool:
    """Whether a `path` of a model or of data names a repository; what lies on this machine has an absolute path."""
    return path is not None and not path.startswith("/")


def _makers(scenario: Scenario) -> list[str]:
    """Packages that make or fetch what a program reads from disk; transformers brings them for the built-in trainer."""
    if scenario.trainer.kind == "hf":
        return []
    wanted = reads(scenario)
    model = scenario.model if "model_dir" in wanted else None
    data = scenario.data if "data_file" in wanted else None
    needed = ["torch", "transformers"] if model is not None and model.shape is not None else []
    if data is not None and data.path is None and data.file == "parquet":
        needed.append("pyarrow")
    if any(source is not None and is_hub_id(source.path) for source in (model, data)):
        needed.append("huggingface-hub")
    return needed


def absent(scenario: Scenario, base: Path) -> str | None:
    """A file or folder that the scenario names and that is not there; None when all are.

    Relative paths, which a scenario file has made absolute, are those of a command line, from `base`."""
    trainer, model = scenario.trainer, scenario.model
    if trainer.kind == "script" and trainer.target is not None and trainer.form == "file":
        target = base / (trainer.cwd or ".") / trainer.target
        if not target.exists():
            return f"trainer.target: there is no file {target}"
        if target.is_dir() and not (target / "__main__.py").is_file():
            return f"trainer.target: the folder {target} has no __main__.py"
    if trainer.cwd is not None and not (base / trainer.cwd).is_dir():
        return f"trainer.cwd: there is no folder {trainer.cwd}"
    if model is not None and model.path is not None and not is_hub_id(model.path) and not Path(model.path).is_dir():
        return f"model.path: there is no folder {model.path}"
    data = scenario.data
    if data is not None and data.path is not None and not is_hub_id(data.path) and not Path(data.path).exists():
        return f"data.path: there is no file or folder {data.path}"
    files = [*scenario.stack.requirements, *scenario.stack.no_deps] if scenario.stack else []
    missing = next((file for file in files if not Path(file).is_file()), None)
    return f"stack: there is no file {missing}" if missing else None


def unmet(
    scenario: Scenario,
    gpus: Sequence[tuple[str, int]],
    packages: Mapping[str, str] | None,
    python_reason: str | None = None,
    gpu_reason: str | None = None,
) -> str | None:
    """Why the case cannot run here: what it needs, and what is there; None when it can.

    `gpus` are the (name, memory in bytes) of the GPUs that may be used; `packages` the versions by name that the
    measured interpreter has, None when it is of no use, for `python_reason`; `gpu_reason` why no GPU was found."""
    reasons = [unmet_gpus(scenario, gpus, gpu_reason)]
    if packages is not None:
        reasons.append(unmet_packages(scenario, packages))
    else:
        reasons.append(
            f"needs the interpreter {scenario.python or 'of the harness'}; {python_reason or 'there is none'}"
        )
    found = [reason for reason in reasons if reason is not None]
    return ". ".join(found) or None


def unmet_packages(scenario: Scenario, packages: Mapping[str, str]) -> str | None:
    """The same of packages alone."""
    reasons = [_unmet_package(requirement, packages) for requirement in required_packages(scenario)]
    return ". ".join(reason for reason in reasons if reason is not None) or None


def unmet_gpus(scenario: Scenario, gpus: Sequence[tuple[str, int]], gpu_reason: str | None) -> str | None:
    """The same of GPUs alone."""
    if scenario.gpus is None:
        return None
    memory = scenario.needs.gpu_memory_bytes or 0
    fitting = sum(size >= memory for _, size in gpus)
    if fitting >= scenario.gpus:
        return None
    wanted = _count(scenario.gpus) + (f" of at least {format_bytes(memory, 1)}" if memory else "")
    there = f"there {'is' if len(gpus) == 1 else 'are'} {_count(len(gpus))}"
    if gpus:
        kinds = dict.fromkeys(f"{name}, {format_bytes(size, 1)}" for name, size in gpus)
        there += f" ({'; '.join(kinds)})"
    elif gpu_reason:
        there += f" ({gpu_reason})"
    return f"needs {wanted}; {there}"


def _count(gpus: int) -> str:
    return f"{gpus} GPU" if gpus == 1 else f"{gpus} GPUs"


def _unmet_package(text: str, packages: Mapping[str, str]) -> str | None:
    requirement = Requirement(text)
    versions = {canonicalize_name(name): version for name, version in packages.items()}
    version = versions.get(canonicalize_name(requirement.name))
    if version is None:
        return f"needs {text}; there is none"
    try:
        # A nightly build is a pre-release, and who has one wants it to count.
        met = requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        met = not requirement.specifier
    return None if met else f"needs {text}; there is {version}"
