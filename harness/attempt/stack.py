"""The interpreter of a case and its packages; the environment that its `stack` names is made where it is not there."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import classify, environment, stacks
from harness.environment import Stack
from harness.record import Verdict
from harness.scenario import Case, StackFiles
from harness.stacks import Recipe, StackFailure

STACK_LOG = "stack.log"  # in a case's folder, when its environment could not be made: what pip said


def stack_there(case: Case) -> Stack | None:
    """The stack as it is; None where its environment is yet to be made.  Raises StackError."""
    recipe = recipe_of(case)
    if recipe is None:
        return environment.read_stack(_base(case), case.scenario.env)
    python = stacks.there(recipe, os.environ)
    return _read(case, recipe, python) if python is not None else None


def stack_of(case: Case, on_wait: Callable[[str], None] | None = None) -> Stack:
    """The stack, made first where it has to be.  Raises StackError, StackFailure, OSError."""
    recipe = recipe_of(case)
    if recipe is None:
        return environment.read_stack(_base(case), case.scenario.env)
    return _read(case, recipe, stacks.make(recipe, os.environ, on_wait))


def recipe_of(case: Case) -> Recipe | None:
    """What the case's environment is made of; None where it runs on an interpreter as it is.  Raises StackError."""
    return recipe(case.scenario.stack, _base(case)) if case.scenario.stack is not None else None


def recipe(files: StackFiles, python: str) -> Recipe:
    """Raises StackError when the interpreter is not there."""
    base = environment.read_stack(python, {})
    # An interpreter has many names (python, python3, those of its virtual environments), and makes the same by each.
    path = os.path.realpath(base.executable)
    requirements, no_deps = (tuple(map(Path, paths)) for paths in (files.requirements, files.no_deps))
    return Recipe(requirements, no_deps, path, base.version)


def verdict_of(failure: StackFailure) -> Verdict:
    return classify.judge_install(failure.what, failure.output, failure.ended, out_of_time=failure.out_of_time)


def _base(case: Case) -> str:
    return case.scenario.python or sys.executable


def _read(case: Case, recipe: Recipe, python: Path) -> Stack:
    stack = environment.read_stack(str(python), case.scenario.env)
    made_of: dict[str, Any] = {
        "sha256": recipe.sha256(os.environ),
        "requirements": [str(path) for path in recipe.requirements],
        "no_deps": [str(path) for path in recipe.no_deps],
        "python": recipe.python,
    }
    return replace(stack, made_of=made_of)
