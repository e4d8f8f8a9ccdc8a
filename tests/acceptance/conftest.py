"""A folder of scenarios with a test beside it, and pytest run on it as a user would; likewise `harness exec`."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.journal import read_events
from harness.probe.layout import JobPaths
from harness.record import Record, read_record

TARGETS = Path(__file__).parent / "targets"
HARNESS = [sys.executable, "-c", "from harness.cli import main; main()"]


def without_aim(arguments: Sequence[str]) -> list[str]:
    """The option that keeps Aim out of a test whose arguments do not ask for it."""
    return [] if any(argument.startswith("--aim-") for argument in arguments) else ["--no-aim"]


@dataclass(frozen=True)
class Bench:
    """A user's project: `scenarios/`, one test file, and where results go; without Aim unless the arguments name it."""

    root: Path

    @property
    def environ(self) -> dict[str, str]:
        """The surroundings of the run: own locks, so that tests do not wait for a benchmark on the same machine, and an
        own cache."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_CORE"))}
        own = {"HARNESS_LOCK_DIR": str(self.root / "locks"), "HARNESS_CACHE": str(self.root / "cache")}
        return clean | own | {"HF_HUB_OFFLINE": "1"}

    def command(self, *arguments: str) -> list[str]:
        plain = ["-p", "no:cacheprovider", "test_bench.py", *without_aim(arguments)]
        return [sys.executable, "-m", "pytest", *plain, *arguments]

    def run(self, *arguments: str, environ: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.command(*arguments),
            cwd=self.root,
            env={**self.environ, **(environ or {})},
            capture_output=True,
            text=True,
            timeout=600,
        )

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        with (self.root / "output.txt").open("wb") as output:
            return subprocess.Popen(
                self.command(*arguments), cwd=self.root, env=self.environ, stdout=output, stderr=output
            )

    @property
    def session(self) -> Path:
        return (self.root / "results" / "latest").resolve()

    def case_elements(self) -> dict[str, ET.Element]:
        """The test cases of junit.xml by case id."""
        found = ET.parse(self.root / "junit.xml").getroot().iter("testcase")
        return {element.attrib["name"].partition("[")[2].rstrip("]"): element for element in found}


@pytest.fixture(scope="module")
def make_bench(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bench]:
    def make(scenarios: str) -> Bench:
        root = tmp_path_factory.mktemp("bench")
        (root / "scenarios").mkdir()
        (root / "scenarios" / "all.yaml").write_text(scenarios)
        (root / "test_bench.py").write_text("def test_bench(tuning):\n    tuning.check()\n")
        (root / "pytest.ini").write_text("[pytest]\n")
        for target in TARGETS.glob("*.py"):
            (root / target.name).write_bytes(target.read_bytes())
        return Bench(root)

    return make


@dataclass(frozen=True)
class Ended:
    """What an invocation left."""

    code: int
    stdout: str
    stderr: str
    log: dict[str, str]  # the termination log's lines
    record: Record | None


@dataclass
class Pod:
    """A folder with the targets in it, and `harness exec` there with a termination log; without Aim like `Bench`."""

    root: Path
    job_dir: Path = field(init=False)
    log: Path = field(init=False)
    before: Sequence[str] = ()  # of the command: what it is started by
    started: "list[subprocess.Popen[str]]" = field(default_factory=list)

    def __post_init__(self) -> None:
        self.job_dir, self.log = self.root / "job", self.root / "termination.log"

    @classmethod
    @contextmanager
    def open(cls, root: Path) -> "Iterator[Pod]":
        """A pod in `root`, of which nothing is left afterwards."""
        for target in TARGETS.glob("*.py"):
            (root / target.name).write_bytes(target.read_bytes())
        pod = cls(root)
        yield pod
        for process in pod.started:
            process.kill()
            process.communicate()
        for left in pod.living():
            left.kill()

    @property
    def job(self) -> JobPaths:
        """The job directory of the first attempt."""
        return JobPaths(self.job_dir / "attempt-1")

    def start(self, *arguments: str, **environ: str) -> "subprocess.Popen[str]":
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_CORE"))}
        told = {
            "HARNESS_LOCK_DIR": str(self.root / "locks"),
            "HARNESS_CACHE": str(self.root / "cache"),
            "HF_HUB_OFFLINE": "1",
            "TERMINATION_LOG_FILE": str(self.log),
            "CUDA_VISIBLE_DEVICES": "",
        }
        process = subprocess.Popen(
            [*self.before, *HARNESS, "exec", "--job-dir", str(self.job_dir), *without_aim(arguments), *arguments],
            cwd=self.root,
            env={**clean, **told, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self.started.append(process)
        return process

    def end(self, process: "subprocess.Popen[str]") -> Ended:
        stdout, stderr = process.communicate(timeout=120)
        record = self.job_dir / "record.json"
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return Ended(
            process.returncode,
            stdout,
            stderr,
            dict(line.split(": ", 1) for line in lines),
            read_record(record) if record.exists() else None,
        )

    def run(self, *arguments: str, **environ: str) -> Ended:
        return self.end(self.start(*arguments, **environ))

    def program(self, text: str) -> str:
        (self.root / "program.py").write_text(text)
        return "program.py"

    def living(self) -> list[psutil.Process]:
        """Processes of a job of this pod."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            if any(str(self.root) in word for word in process.info["cmdline"] or []):
                found.append(process)
        return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    with Pod.open(tmp_path) as pod:
        yield pod


def properties(element: ET.Element) -> dict[str, str]:
    """The properties of a test case."""
    return {p.attrib["name"]: p.attrib["value"] for p in element.iter("property")}


def probe_errors(session: Path) -> list[dict[str, Any]]:
    """What went wrong in the probe itself, in any rank of any case."""
    journals = list(session.glob("*/attempt-*/rank-*/events.jsonl"))
    assert journals
    return [event for path in journals for _, event in read_events(path) if event["e"] == "probe_error"]
