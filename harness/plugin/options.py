"""What the command line says about a harness session: where results go, labels, limits, what xfails."""

import argparse
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from harness.forward.start import Aim, choose
from harness.reports.policy import XFAIL_KINDS


@dataclass(frozen=True)
class Options:
    """The options of a session; chosen on the controller and handed to xdist's workers, so that all agree."""

    session: str  # id of the session: also the name of its folder
    results: Path  # absolute; holds one folder a session
    labels: Mapping[str, str]  # --labels-file and --label, the latter wins
    gpus: int | None  # use at most so many; None: all
    time_limit_s: float | None  # of every case; the smaller of this and its scenario's counts
    aim: Aim | None = None  # None: nothing is forwarded
    aim_absent: bool = False  # nothing is forwarded because nobody asked for it and this interpreter has no Aim
    xfail_kinds: tuple[str, ...] = XFAIL_KINDS  # verdicts that are no failures; none with --runxfail
    retry_wait_s: float | None = None  # before the first retry of a case; None: the usual time
    sample_interval_s: float | None = None  # of the sampler; None: the usual time

    @property
    def directory(self) -> Path:
        return self.results / self.session

    def wire(self) -> dict[str, Any]:
        """Builtin types only: execnet carries nothing else."""
        return asdict(self) | {"results": str(self.results), "labels": dict(self.labels)}

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> "Options":
        aim = Aim(**wire["aim"]) if wire["aim"] else None
        more = {"results": Path(wire["results"]), "aim": aim, "xfail_kinds": tuple(wire["xfail_kinds"])}
        return cls(**(wire | more))


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("harness", "benchmarks of fine-tuning")
    group.addoption(
        "--results",
        metavar="DIR",
        help="Folder for the sessions' results (default: results/ in the root directory, or in the current one where "
        "no configuration file fixes the root).",
    )
    group.addoption(
        "--label",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="Label every case of this session; may be given several times. "
        "`experiment` (default: the scenario's name) and `identifier` (default: the session's id) name it in trackers.",
    )
    group.addoption("--labels-file", metavar="FILE", help="YAML or JSON mapping of labels; --label wins over it.")
    group.addoption(
        "--gpus",
        type=_count,
        metavar="N",
        help="Use at most N of the GPUs that CUDA_VISIBLE_DEVICES leaves visible; 0 uses none.",
    )
    group.addoption(
        "--time-limit",
        type=_duration,
        metavar="TIME",
        help="End every job after this time (seconds, or such as 90m, 1h30m), also where its scenario allows more.",
    )
    group.addoption(
        "--xfail-kinds",
        metavar="KIND,KIND",
        help="Verdicts that become an xfail and no failure, or `none` (default: harness_xfail_kinds, without it "
        f"{','.join(XFAIL_KINDS)}).",
    )
    group.addoption(
        "--aim-repo",
        metavar="REPO",
        help="Bring every job's series and labels into this Aim repo: a folder or an aim:// URL (default: the folder "
        "for the sessions' results, where Aim is installed).",
    )
    group.addoption(
        "--aim-python", metavar="PYTHON", help="Interpreter that has Aim installed (default: the one pytest runs on)."
    )
    group.addoption(
        "--aim-timeout",
        type=_duration,
        metavar="TIME",
        help="Give up on Aim this long after a job's end (default: 30s).",
    )
    group.addoption("--no-aim", action="store_true", help="Bring nothing into Aim.")
    parser.addini(
        "harness_xfail_kinds",
        f"Verdicts that become an xfail and no failure, or `none` (default: {' '.join(XFAIL_KINDS)})",
        default=None,
        type="args",
    )
    parser.addini(
        "harness_retry_wait",
        "Time before the first retry of a case whose scenario has `retries`; twice as long before the next (default: "
        "10s)",
        default=None,
        type="string",
    )
    parser.addini(
        "harness_sampler_interval",
        "Time between two samples of a job's processes, host and GPUs, from 100ms (default: 1s)",
        default=None,
        type="string",
    )
    parser.addini(
        "harness_progress_interval",
        "Seconds between two progress lines of a running case; 0: none (default: 5 on a terminal, else 60)",
        default=None,
        type="float",
    )


def read_options(config: pytest.Config) -> Options:
    """Raises pytest.UsageError for an option, a labels file or a label that cannot be used."""
    results = config.getoption("results")
    folder = config.invocation_params.dir / results if results else home(config) / "results"
    folder = Path(os.path.abspath(folder))
    aim = _aim(config, folder)
    return Options(
        session=new_session_id(),
        results=folder,
        labels=_labels(config),
        gpus=config.getoption("gpus"),
        time_limit_s=config.getoption("time_limit"),
        aim=aim,
        aim_absent=aim is None and not config.getoption("no_aim"),
        xfail_kinds=() if config.getoption("runxfail", False) else _xfail_kinds(config),
        retry_wait_s=_seconds(config, "harness_retry_wait"),
        sample_interval_s=_sample_interval_s(config),
    )


def _xfail_kinds(config: pytest.Config) -> tuple[str, ...]:
    option, configured = config.getoption("xfail_kinds"), config.getini("harness_xfail_kinds")
    if option is None and configured is None:
        return XFAIL_KINDS
    from harness.record import Kind

    place, given = ("--xfail-kinds", [option]) if option is not None else ("harness_xfail_kinds", configured)
    words = [word for text in given for word in text.replace(",", " ").split()]
    if words == ["none"]:
        return ()
    known = [kind.value for kind in Kind if kind is not Kind.NONE]
    unknown = [word for word in words if word not in known]
    if unknown or not words:
        said = f"{', '.join(unknown)}: no kind of bad verdict" if unknown else "names no kind"
        raise pytest.UsageError(f"{place}: {said}; choose from {', '.join(known)}, or write none alone")
    return tuple(dict.fromkeys(words))


def _seconds(config: pytest.Config, name: str) -> float | None:
    from harness.units import parse_seconds

    text = config.getini(name)
    try:
        return None if text is None else parse_seconds(text)
    except ValueError as error:
        raise pytest.UsageError(f"{name}: {error}") from error


def _sample_interval_s(config: pytest.Config) -> float | None:
    name = "harness_sampler_interval"
    text = config.getini(name)
    if text is None:
        return None
    from harness.attempt import parse_sample_interval

    try:
        return parse_sample_interval(text)
    except ValueError as error:
        raise pytest.UsageError(f"{name}: {error}") from error


def _aim(config: pytest.Config, results: Path) -> Aim | None:
    try:
        return choose(
            config.getoption("aim_repo"),
            config.getoption("aim_python"),
            config.getoption("aim_timeout"),
            off=config.getoption("no_aim"),
            default=results,
            base=config.invocation_params.dir,
        )
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


def home(config: pytest.Config) -> Path:
    """The folder for what nobody has given a place: pytest's root directory, where something fixes it.

    Without, pytest guesses it from all its arguments, the values of `--results DIR` and the like included."""
    fixed = config.inipath is not None or config.getoption("rootdir", None) is not None
    return config.rootpath if fixed else config.invocation_params.dir


def new_session_id() -> str:
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(3).hex()}"


def _labels(config: pytest.Config) -> dict[str, str]:
    from harness.labels import gather

    file = config.getoption("labels_file")
    try:
        return gather(config.getoption("label"), config.invocation_params.dir / file if file else None)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of GPUs")
    return int(text)


def _duration(text: str) -> float:
    from harness.units import parse_seconds

    try:
        seconds = parse_seconds(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"{text!r}: give more time than none")
    return seconds
