"""`harness doctor`: whether this machine is fit, before a night of benchmarks."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from harness.doctor import Examination

_MARKS = {"ok": "    ok", "warning": "  WARN", "error": " ERROR"}


def doctor(
    results: Annotated[Path, typer.Option(help="Folder that the sessions' results go to", metavar="DIR")] = Path(
        "results"
    ),
    python: Annotated[
        str | None, typer.Option(help="Interpreter that jobs run on (default: the harness's own)", metavar="PYTHON")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print facts and findings as JSON")] = False,
) -> None:
    """Print what this machine has and what may go wrong on it, each with what helps; nothing is changed.

    Exit codes: 0 fit, perhaps with warnings; 1 something would break jobs; 2 wrong usage.
    """
    import json
    import os

    from harness.doctor import examine
    from harness.reports.properties import printable

    found = examine(os.environ, results.absolute(), python)
    typer.echo(json.dumps(found.document(), indent=1) if as_json else printable(_screen(found)))
    raise typer.Exit(0 if found.fit else 1)


def _screen(found: "Examination") -> str:
    lines = []
    for finding in found.findings:
        lines.append(f"{_MARKS[finding.level]}  {finding.subject:<14}{finding.text}")
        if finding.remedy is not None:
            lines.append(f"        {'':<14}-> {finding.remedy}")
    counts = {level: sum(finding.level == level for finding in found.findings) for level in ("error", "warning")}
    told = ", ".join(f"{number} {level}{'' if number == 1 else 's'}" for level, number in counts.items())
    lines.append(f"{'fit' if found.fit else 'not fit'}: {told}")
    return "\n".join(lines)
