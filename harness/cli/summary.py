"""`harness summary`: what became of a session's cases, for a CI job's page."""

from pathlib import Path
from typing import Annotated

import typer

USAGE = 2


def summary(
    path: Annotated[
        Path,
        typer.Argument(
            help="junit.xml, a session's folder, or the results folder (its latest session)", readable=False
        ),
    ],
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            help="Verdicts (gpu_oom, nccl, ...) or outcomes (skipped, xfailed) that fail too; comma-separated."
        ),
    ] = None,
) -> None:
    """Print what became of a session's cases as Markdown, for a CI job's page.

    Exit codes: 0 fine; 1 a case failed or did not finish, or --fail-on names how one ended; 2 wrong usage, or
    nothing to read; 3 nothing was measured: no case was launched and passed.
    """
    from harness.reports.junit_file import ReportError
    from harness.reports.reading import read_results
    from harness.reports.summary import exit_code, to_markdown

    wanted = _fail_on(fail_on or [])
    try:
        results = read_results(path).results
    except ReportError as error:
        typer.echo(f"harness summary: {error}", err=True)
        raise typer.Exit(USAGE) from error
    typer.echo(to_markdown(results, wanted), nl=False)
    raise typer.Exit(exit_code(results, wanted))


def _fail_on(values: list[str]) -> list[str]:
    from harness.reports.summary import fail_on_choices

    wanted = [word.strip() for value in values for word in value.split(",") if word.strip()]
    unknown = sorted(set(wanted) - set(fail_on_choices()))
    if unknown:
        raise typer.BadParameter(
            f"{', '.join(unknown)}; choose from {', '.join(fail_on_choices())}", param_hint="--fail-on"
        )
    return wanted
