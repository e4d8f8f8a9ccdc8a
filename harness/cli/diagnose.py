"""`harness diagnose`: why a job failed, from its job directory, its logs, or evidence noted down as YAML."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from harness.classify import JobEvidence
    from harness.record import Verdict

USAGE = 2
STDIN = "-"
# Whose log a file is: rank-3/stderr.log of a job directory, node-0.rank3.log, torchelastic's attempt_0/3/stderr.log.
RANK_OF_FILE = re.compile(r"(?:^|[/_.-])rank[-_]?(\d+)(?=\D|$)|/attempt_\d+/(\d+)/(?:stdout|stderr)\.log$")
TRANSIENT = {True: "a retry may pass", False: "it would fail again", None: "whether a retry helps is not known"}


class Unreadable(Exception):
    """A path that holds no evidence; its text says why."""


def diagnose(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...",
            help="A job directory, a case's folder (its latest attempt), a log (several are one job's), - for standard "
            "input, or evidence as YAML.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as one JSON object.")] = False,
    exit_code: Annotated[
        int | None, typer.Option(help="How the command ended, where only logs are given: 137, -9, 124, ...")
    ] = None,
) -> None:
    """Say why a job failed: the first cause over all ranks, the lines it rests on, and what was set aside.

    Works on the logs of any launcher.  Exit codes: 0 a verdict was reached; 1 nothing decides (unknown); 2 wrong usage,
    or nothing to read.
    """
    from harness.classify import judge
    from harness.record import Kind

    try:
        verdict = judge(_evidence(paths, exit_code))
    except Unreadable as error:
        typer.echo(f"harness diagnose: {error}", err=True)
        raise typer.Exit(USAGE) from None
    typer.echo(_json(verdict) if as_json else _text(verdict))
    raise typer.Exit(1 if verdict.kind is Kind.UNKNOWN else 0)


def _evidence(paths: Sequence[str], exit_code: int | None) -> "JobEvidence":
    from harness.classify import of_logs, scan

    if len(paths) == 1 and paths[0] != STDIN:
        path = Path(paths[0])
        if path.is_dir():
            return _of_folder(path, exit_code)
        if path.suffix in (".yaml", ".yml"):
            return _of_yaml(path)
    logs = []
    for name in paths:
        try:
            if name == STDIN:
                logs.append(scan(typer.get_binary_stream("stdin"), "stdin"))
            elif Path(name).is_dir():
                raise Unreadable(f"{name} is a folder; give one folder alone, or log files")
            else:
                with open(name, "rb") as file:
                    logs.append(scan(file, name, rank_of(name)))
        except OSError as error:
            raise Unreadable(f"{name}: {error.strerror or error}") from None
    return of_logs(logs, exit_code=exit_code)


def rank_of(name: str) -> int | None:
    """The rank that a log's path names; torchelastic's folders name the local one."""
    found = RANK_OF_FILE.search(name)
    return int(found[1] or found[2]) if found else None


def _of_folder(folder: Path, exit_code: int | None) -> "JobEvidence":
    from harness.classify import collect, of_logs, scan
    from harness.probe.layout import JobPaths, attempt, attempts
    from harness.probe.reading import read_document

    numbers = attempts(folder)
    job = attempt(folder, numbers[-1]) if numbers else JobPaths(folder)
    if job.job.exists() or job.end.exists() or job.ranks():
        told = read_document(job.job) or {}
        ranks = told.get("world_size")
        limit = told.get("time_limit_s")
        return collect(
            job,
            world_size=ranks if isinstance(ranks, int) else max(len(job.ranks()), 1),
            expects_steps=_expects_steps(told),
            time_limit_s=limit if isinstance(limit, int | float) else None,
        )
    logs = []
    for path in _torchelastic(folder):
        try:
            with open(path, "rb") as file:
                logs.append(scan(file, str(path), rank_of(str(path))))
        except OSError as error:
            raise Unreadable(f"{path}: {error.strerror or error}") from None
    if not logs:
        raise Unreadable(f"{folder} holds no job (job.json, end.json, rank-N/) and no logs of torchrun (attempt_N/R/)")
    return of_logs(logs, exit_code=exit_code)


def _torchelastic(folder: Path) -> list[Path]:
    """The ranks' logs below torchrun's --log-dir: of the last attempt, for the ones before it ended nothing."""
    found: dict[tuple[Path, int], list[Path]] = {}
    for path in sorted(folder.rglob("attempt_*/*/std*.log")):
        number = path.parents[1].name.removeprefix("attempt_")
        if number.isdecimal() and path.parent.name.isdecimal():
            found.setdefault((path.parents[2], int(number)), []).append(path)
    last = {run: max(number for other, number in found if other == run) for run, _ in found}
    return [path for (run, number), paths in found.items() if number == last[run] for path in paths]


def _expects_steps(told: dict[str, Any]) -> bool:
    scenario = told.get("scenario")
    return not (isinstance(scenario, dict) and scenario.get("measure_steps") is False)


def _of_yaml(path: Path) -> "JobEvidence":
    from harness.classify import BadCase, evidence_of
    from harness.scenario.located import ScenarioError
    from harness.scenario.yaml12 import read

    try:
        return evidence_of(read(path.read_bytes()))
    except OSError as error:
        raise Unreadable(f"{path}: {error.strerror or error}") from None
    except (ScenarioError, BadCase) as error:
        raise Unreadable(f"{path}: {error}") from None


def _text(verdict: "Verdict") -> str:
    lines = [f"{verdict.kind}: {verdict.reason}" if verdict.reason else str(verdict.kind)]
    if verdict.kind != "none":
        lines.append(f"transient: {_word(verdict.transient)} ({TRANSIENT[verdict.transient]})")
    if verdict.rank is not None:
        lines.append(f"root rank: {verdict.rank}")
    if verdict.hint:
        lines.append(f"hint: {verdict.hint}")
    if verdict.evidence:
        lines += ["evidence:", *(f"  {_where(fact.file, fact.line)}: {fact.text}" for fact in verdict.evidence)]
    if verdict.secondary:
        lines.append("set aside:")
        for other in verdict.secondary:
            who = "" if other.rank is None else f"rank {other.rank}, "
            lines.append(f"  {who}{other.kind}, {_where(other.file, other.line)}: {other.text}")
    return _shown("\n".join(lines))


def _json(verdict: "Verdict") -> str:
    import json
    import os

    from harness.probe.redact import redact_tree, secret_values
    from harness.reports.properties import printable

    told = verdict.model_dump(mode="json")
    document = {"kind": told.pop("kind"), "transient": told.pop("transient"), "root_rank": told.pop("rank"), **told}
    return printable(json.dumps(redact_tree(document, secret_values(os.environ)), ensure_ascii=False))


def _shown(text: str) -> str:
    """Text of logs for a terminal: nothing that moves the cursor, no secrets."""
    import os

    from harness.probe.redact import redact, secret_values
    from harness.reports.properties import printable

    return printable(redact(text, secret_values(os.environ)))


def _where(file: str, line: int | None) -> str:
    return file if line is None else f"{file}:{line}"


def _word(value: bool | None) -> str:
    return "unknown" if value is None else "yes" if value else "no"
