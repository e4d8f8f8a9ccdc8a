"""`harness validate`: what a folder of scenarios expands to, before a night of benchmarks."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from harness.scenario import BadScenario, Case, Scenario


def validate(
    folder: Annotated[Path, typer.Argument(help="Folder of scenario files (*.yaml)", exists=True, file_okay=False)],
) -> None:
    """Print every case that a folder's scenario files expand to, and what it would start; nothing is started.

    A scenario is code: it names the program to run.  Exit codes: 0 all files can be used; 1 one cannot, or there is
    none; 2 wrong usage.
    """
    from harness.reports.properties import printable
    from harness.scenario import load_scenarios

    entries = load_scenarios(folder)
    bad = [text for entry in entries for text in [_error(entry)] if text is not None]
    for entry in entries:
        if not hasattr(entry, "error"):
            typer.echo(printable(_described(entry)))
    for text in bad:
        typer.echo(printable(f"error: {text}"), err=True)
    good = sum(not hasattr(entry, "error") for entry in entries)
    typer.echo(f"{good} case{'' if good == 1 else 's'}, {len(bad) or 'no'} error{'' if len(bad) == 1 else 's'}")
    raise typer.Exit(1 if bad or not entries else 0)


def _error(entry: "Case | BadScenario") -> str | None:
    """What is wrong with an entry; a good one's training arguments are looked up in the library it will run with."""
    from harness.attempt import stack_there
    from harness.environment import StackError
    from harness.scenario import BadScenario, check_training

    if isinstance(entry, BadScenario):
        return entry.error
    if entry.scenario.trainer.kind != "hf":
        return None
    try:
        stack = stack_there(entry)
    except StackError:
        return None  # an interpreter that is not here is a reason to skip, not an error
    # An environment that is yet to be made is looked at when it is.
    return check_training(entry, stack.training_arguments) if stack and stack.training_arguments else None


def _described(case: "Case") -> str:
    scenario = case.scenario
    lines = [
        case.id,
        f"  from    {case.source}",
        f"  starts  {_started(scenario)}",
        f"  model   {_model(scenario)}, {scenario.method.kind}",
        f"  needs   {_needs(scenario)}",
    ]
    if scenario.expect is not None:
        lines.append(f"  expects {scenario.expect.kind}{_when(scenario)}")
    if scenario.retries:
        said = (f"{kind} {number}" for kind, number in scenario.retries.items())
        lines.append(f"  retries {', '.join(said)}, transient verdicts only")
    if scenario.env:
        lines.append(f"  env     {', '.join(sorted(scenario.env))}")
    return "\n".join(lines)


def _when(scenario: "Scenario") -> str:
    from harness.units import format_bytes

    when = scenario.expect.when if scenario.expect is not None else None
    if when is None:
        return ""
    parts = []
    if when.gpu_memory_below_bytes is not None:
        parts.append(f"a GPU has less than {format_bytes(when.gpu_memory_below_bytes)}")
    if when.gpu_memory_at_least_bytes is not None:
        parts.append(f"each GPU has at least {format_bytes(when.gpu_memory_at_least_bytes)}")
    if when.gpu_name is not None:
        parts.append(f"each GPU is a {when.gpu_name}")
    if when.gpus_below is not None:
        parts.append(f"there are fewer than {when.gpus_below} GPUs")
    return f" where {' and '.join(parts)}"


def _started(scenario: "Scenario") -> str:
    """The command as a person would type it; the probe and torchrun come before it."""
    import shlex

    from harness.probe.redact import redact_argv

    python = scenario.python or "python"
    trainer = scenario.trainer
    if trainer.kind != "script":
        return f"{python}, {'the built-in trainer' if trainer.kind == 'hf' else 'tuning.sft_trainer of fms-hf-tuning'}"
    target = [*(["-m"] if trainer.form == "module" else []), trainer.target or ""]
    before = [] if trainer.form == "program" else [python]
    return shlex.join([*before, *redact_argv([*target, *trainer.args])])


def _model(scenario: "Scenario") -> str:
    if scenario.model is None:
        return "the program's own"
    shape = (scenario.model.shape or {}).get("model_type")
    return scenario.model.name or scenario.model.path or f"a {shape}"


def _needs(scenario: "Scenario") -> str:
    from harness.units import format_bytes, format_seconds

    parts = [f"{scenario.gpus} GPU(s)" if scenario.gpus else f"{scenario.processes} process(es) on CPU"]
    if scenario.needs.gpu_memory_bytes:
        parts.append(f"{format_bytes(scenario.needs.gpu_memory_bytes)} on each GPU")
    parts += scenario.needs.packages
    if scenario.stack is not None:
        files = (*scenario.stack.requirements, *scenario.stack.no_deps)
        parts.append(f"an environment of {' and '.join(Path(file).name for file in files)}")
    if scenario.time_limit_s:
        parts.append(f"at most {format_seconds(scenario.time_limit_s)}")
    if isinstance(scenario.hang_after_s, float):
        parts.append(f"a hang after {format_seconds(scenario.hang_after_s)} of silence")
    return ", ".join(parts)
