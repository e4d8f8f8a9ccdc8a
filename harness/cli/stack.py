"""`harness stack`: the environment of a scenario's `stack`, made ahead of a night of benchmarks."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from harness.cli.ending import say


def stack(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Requirement files.", exists=True)],
    no_deps: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Installed last, without what it depends on.", exists=True),
    ] = None,
    python: Annotated[
        str | None, typer.Option(metavar="PYTHON", help="Interpreter that makes it (default: this one).")
    ] = None,
) -> None:
    """Make the virtual environment of requirement files, once, and print its interpreter's path.

    A scenario whose `stack` names files of the same contents, and the same `python`, runs on it.  Exit codes: 0 it is
    there; 1 it could not be made; 2 wrong usage.
    """
    from harness.attempt import recipe, verdict_of
    from harness.environment import StackError
    from harness.reports.properties import printable
    from harness.scenario import StackFiles
    from harness.stacks import StackFailure, make

    wanted = StackFiles(
        requirements=[os.path.abspath(path) for path in files],
        no_deps=[os.path.abspath(path) for path in no_deps or []],
    )
    try:
        made = make(recipe(wanted, python or sys.executable), os.environ, say)
    except StackFailure as failure:
        verdict = verdict_of(failure)
        typer.echo(printable(f"error: {verdict.kind}: {verdict.reason}"), err=True)
    except (StackError, OSError) as error:
        typer.echo(printable(f"error: {error}"), err=True)
    else:
        typer.echo(str(made))
        return
    raise typer.Exit(1)
