"""The program on a command line as a case, so that it runs exactly as a scenario's does."""

import re
from collections.abc import Sequence
from typing import Literal

from harness.scenario import Case, Scenario, Source, Trainer
from harness.scenario.ids import case_id, safe
from harness.scenario.placeholders import escape
from harness.scenario.schema import MAX_NAME

SOURCE = Source("harness exec", 1)


def case_of(
    command: Sequence[str],
    *,
    processes: int,
    on_gpus: bool,
    launcher: Literal["harness", "own"] = "harness",
    python: str | None = None,
    hang_after_s: float | Literal["auto", "none"] = "auto",
) -> Case:
    """The case of `FILE ARGS...` or `-m MODULE ARGS...`.  Raises ValueError for anything else."""
    module = list(command[:1]) == ["-m"]
    target, *arguments = (command[1:] if module else command) or [""]
    if not target or target.startswith("-"):
        raise ValueError(f"{target!r} is no program; write FILE or -m MODULE, and its arguments after it")
    scenario = Scenario(
        name=name_of(target, module=module),
        trainer=Trainer(
            kind="script",
            target=target,
            form="module" if module else "file",
            args=[*map(escape, arguments)],
            launcher=launcher,
        ),
        gpus=processes if on_gpus else None,
        processes=None if on_gpus else processes,
        python=python,
        hang_after_s=hang_after_s,
    )
    return Case(case_id(scenario, {}), scenario, SOURCE, keywords=(), marks=())


def name_of(target: str, *, module: bool) -> str:
    """A scenario's name for a program: `train` for src/train.py, `trl.sft` for the module, in safe characters."""
    plain = target if module else re.sub(r"\.pyc?$", "", target.rstrip("/").rpartition("/")[2])
    name = safe(re.sub(r"^[^A-Za-z0-9]+", "", plain))[:MAX_NAME].rstrip("-.")
    return name if re.match("[A-Za-z0-9]", name) else "program"
