"""`harness exec`: one program measured and judged as pytest's cases are, without pytest: a pod's entry point."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from harness.cli.echo import Echo
from harness.cli.ending import (
    NOT_RUN,
    USAGE,
    Ending,
    not_launched,
    of_failure,
    of_kind,
    of_record,
    say,
    say_all,
    tell,
    write_termination_log,
)
from harness.cli.signals import Signals
from harness.forward.start import absent, choose
from harness.probe.redact import redact

if TYPE_CHECKING:
    from harness.attempt import Machine, Settings
    from harness.engines.local import LocalJob
    from harness.probe.layout import JobPaths
    from harness.record import Record
    from harness.scenario import Case


class Launcher(StrEnum):
    """Who starts the ranks, as in a scenario's `trainer`."""

    HARNESS = "harness"
    OWN = "own"


class Command(TyperCommand):
    """Wrong usage that the parser finds leaves a termination log, too."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        from harness.exits import USAGE as code

        try:
            return super().make_context(info_name, args, parent, **extra)
        except Exception as error:
            if getattr(error, "exit_code", None) == code:
                said = error.format_message() if hasattr(error, "format_message") else str(error)
                write_termination_log(_redacted(not_launched(USAGE, said), []))
            raise


def execute(
    command: Annotated[list[str], typer.Argument(metavar="TARGET", help="FILE or -m MODULE, and its arguments.")],
    job_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where record.json and the attempts go; one that has a record gets the next attempt "
            "(default: results/exec-TIME-ID).",
        ),
    ] = None,
    nproc: Annotated[
        int, typer.Option(min=1, max=4096, metavar="N", help="Ranks: one a GPU; processes where no GPU is visible.")
    ] = 1,
    launcher: Annotated[
        Launcher,
        typer.Option(
            help="Who starts the ranks: the harness, or TARGET itself, as `-m accelerate.commands.launch` does."
        ),
    ] = Launcher.HARNESS,
    python: Annotated[
        str | None, typer.Option(metavar="PYTHON", help="Interpreter that TARGET runs on (default: the harness's own).")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Label the job; may be given several times.")
    ] = None,
    labels_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML or JSON mapping of labels; --label wins over it.")
    ] = None,
    time_limit: Annotated[
        str | None, typer.Option(metavar="TIME", help="End the job after this time: seconds, or such as 90m, 1h30m.")
    ] = None,
    hang_after: Annotated[
        str | None,
        typer.Option(
            metavar="TIME|none",
            help="End the job after this time without any progress of a rank (default: 15m, more for slow steps).",
        ),
    ] = None,
    sampler_interval: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Time between two samples of the job's processes, host and GPUs, from 100ms (default: 1s).",
        ),
    ] = None,
    aim_repo: Annotated[
        str | None,
        typer.Option(
            metavar="REPO",
            help="Bring the job's series and labels into this Aim repo: a folder or an aim:// URL "
            "(default: the --job-dir, without one results/, where Aim is installed).",
        ),
    ] = None,
    aim_python: Annotated[
        str | None, typer.Option(metavar="PYTHON", help="Interpreter that has Aim installed (default: this one).")
    ] = None,
    aim_timeout: Annotated[
        str | None, typer.Option(metavar="TIME", help="Give up on Aim this long after the job's end (default: 30s).")
    ] = None,
    no_aim: Annotated[bool, typer.Option("--no-aim", help="Bring nothing into Aim.")] = False,
    aim_output_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write all that was tracked, the labels and the error to this JSON file."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not copy rank 0's output to this one's.")] = False,
) -> None:
    """Run a training program: measured, supervised, judged.  What stands behind TARGET is the program's.

    Exit codes: 0 trained; 1 the program's error; 2 nothing was launched; 3 no training step; 4 loss not a number;
    203 unknown, 204 GPU memory, 205 host memory, 206 NCCL, 207 rendezvous, 208 CUDA, 209 disk full, 210 network,
    211 time limit, 212 killed, 213 crash.
    """
    request = Request(
        command=command,
        job_dir=job_dir,
        nproc=nproc,
        launcher=launcher,
        python=python,
        labels=label or [],
        labels_file=labels_file,
        time_limit=time_limit,
        hang_after=hang_after,
        sampler_interval=sampler_interval,
        aim_repo=aim_repo,
        aim_python=aim_python,
        aim_timeout=aim_timeout,
        no_aim=no_aim,
        aim_output_file=aim_output_file,
        quiet=quiet,
    )
    with Signals() as signals:
        ending = _redacted(run(request, signals), command)
        tell(ending)  # the termination log first: a long job's dump takes its time
        if aim_output_file is not None:
            _write_output(ending, aim_output_file)
    raise typer.Exit(ending.code)


def _write_output(ending: Ending, path: Path) -> None:
    """Where nothing was launched there is no record, and nothing to write."""
    from harness.cli.output import write_output

    if ending.record is None or ending.path is None:
        return
    try:
        write_output(ending.record, ending.path.parent, path)
    except Exception as error:  # the job's end is no other for it
        say(f"warning: --aim-output-file {path} not written: {type(error).__name__}: {error}")


@dataclass(frozen=True)
class Request:
    """The command line, as it was typed."""

    command: Sequence[str]
    job_dir: Path | None
    nproc: int
    launcher: Launcher
    python: str | None
    labels: Sequence[str]
    labels_file: Path | None
    time_limit: str | None
    hang_after: str | None
    sampler_interval: str | None
    aim_repo: str | None
    aim_python: str | None
    aim_timeout: str | None
    no_aim: bool
    aim_output_file: Path | None
    quiet: bool


@dataclass(frozen=True)
class Plan:
    """What is to run, and where."""

    case: "Case"
    settings: "Settings"
    machine: "Machine"
    folder: Path

    @property
    def record(self) -> Path:
        return self.folder / "record.json"


class Refusal(Exception):
    """Nothing is launched; `kind` is USAGE or NOT_RUN."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


def run(request: Request, signals: Signals) -> Ending:
    """Run the program as a case.  Whatever happens is an ending; after it, signals change nothing any more."""
    plan: Plan | None = None
    try:
        plan = prepare(request)
        say(f"{plan.case.id} in {plan.folder}")
        if plan.settings.aim is not None:
            say(f"the run goes to the Aim repo {redact(plan.settings.aim.repo)}")
        elif not request.no_aim:
            say(absent())
        return of_record(_run(plan, signals, quiet=request.quiet), plan.record)
    except KeyboardInterrupt:
        return _interrupted(plan, signals)
    except Refusal as refusal:
        return not_launched(refusal.kind, str(refusal))
    except Exception as error:
        return _failed(error)
    finally:
        signals.job_ended()


def prepare(request: Request) -> Plan:
    """Check everything that can be wrong before launch, and make the folder.  Raises Refusal."""
    from harness.attempt import Machine, Settings, found_labels, missing
    from harness.cli.output import make_way
    from harness.cli.program import case_of
    from harness.labels import gather
    from harness.leases import lock_dir

    try:
        labels = gather(request.labels, request.labels_file)
        limit_s = _seconds(request.time_limit, "--time-limit")
        interval_s = _sample_interval(request.sampler_interval)
        aim = choose(
            request.aim_repo,
            request.aim_python,
            _seconds(request.aim_timeout, "--aim-timeout"),
            off=request.no_aim,
            default=request.job_dir or Path("results"),
            base=Path.cwd(),
        )
        output_file = make_way(request.aim_output_file) if request.aim_output_file else None
        machine = Machine.read(os.environ)
        case = case_of(
            request.command,
            processes=request.nproc,
            on_gpus=bool(machine.gpus),
            launcher=request.launcher.value,
            python=request.python,
            hang_after_s=_silence(request.hang_after),
        )
    except ValueError as error:
        raise Refusal(USAGE, str(error)) from error
    lacking = missing(case, machine)
    if lacking is not None:
        raise Refusal(NOT_RUN, lacking)
    session = f"exec-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"
    folder = Path(os.path.abspath(request.job_dir or Path("results", session)))
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise Refusal(USAGE, f"--job-dir {folder}: {error.strerror}") from error
    settings = Settings(
        session=session,
        session_dir=folder,
        base_dir=Path.cwd(),
        lock_dir=lock_dir(os.environ),
        labels=labels,
        found_labels=found_labels(Path.cwd()),
        time_limit_s=limit_s,
        sample_interval_s=interval_s,
        aim=aim,
        output_file=output_file,
    )
    return Plan(case, settings, machine, folder)


def _run(plan: Plan, signals: Signals, *, quiet: bool) -> "Record":
    from harness.attempt import run_case

    echoes: list[Echo] = []

    def started(paths: "JobPaths", job: "LocalJob") -> None:
        signals.job_started(job.supervisor_pid)
        if not quiet:
            own = [(paths.launcher_log(), 1)] if plan.case.scenario.trainer.launcher == "own" else []
            echoes.append(Echo((paths.stdout(0), 1), (paths.stderr(0), 2), *own))
            echoes[-1].start()

    try:
        return run_case(plan.case, plan.settings, plan.machine, case_dir=plan.folder, on_wait=say, on_start=started)
    finally:
        for echo in echoes:
            echo.finish()


def _interrupted(plan: Plan | None, signals: Signals) -> Ending:
    """The ending after a signal: what the record says, if the job had been launched."""
    from harness.record import Kind, read_record

    said = f"ended from outside by {signals.received.name if signals.received else 'Ctrl-C'}"
    try:
        record = read_record(plan.record) if plan is not None else None
    except FileNotFoundError:
        record = None
    except (OSError, ValueError) as error:
        return of_kind(Kind.KILLED, f"{said}; the record cannot be read: {error}")
    if plan is None or record is None or record.session != plan.settings.session:
        return of_kind(Kind.KILLED, f"{said} before the job was launched")
    if record.state != "finished":
        return of_kind(Kind.KILLED, f"{said}; the record could not be finished", plan.record)
    return of_record(record, plan.record)


def _failed(error: Exception) -> Ending:
    """The harness could not run the job, or not to its end."""
    import traceback

    from harness.environment import StackError
    from harness.leases import BusyError, LeaseError
    from harness.probe.redact import secret_values

    if isinstance(error, StackError) or (isinstance(error, LeaseError) and not isinstance(error, BusyError)):
        return not_launched(NOT_RUN, str(error))
    if not isinstance(error, OSError | BusyError):
        say_all(redact("".join(traceback.format_exception(error)), secret_values(os.environ)))
    return of_failure(error)


def _redacted(ending: Ending, command: Sequence[str]) -> Ending:
    from harness.probe.redact import secret_arguments, secret_values

    return replace(ending, reason=redact(ending.reason, secret_values(os.environ) | secret_arguments(command)))


def _silence(text: str | None) -> float | Literal["auto", "none"]:
    if text == "none":
        return "none"
    return _seconds(text, "--hang-after") or "auto"


def _sample_interval(text: str | None) -> float:
    from harness.attempt import SAMPLE_INTERVAL_S, parse_sample_interval

    try:
        return SAMPLE_INTERVAL_S if text is None else parse_sample_interval(text)
    except ValueError as error:
        raise ValueError(f"--sampler-interval: {error}") from error


def _seconds(text: str | None, option: str) -> float | None:
    from harness.units import parse_seconds

    if text is None:
        return None
    try:
        seconds = parse_seconds(text)
    except ValueError as error:
        raise ValueError(f"{option} {error}") from error
    if seconds <= 0:
        raise ValueError(f"{option} {text!r}: give more time than none")
    return seconds
