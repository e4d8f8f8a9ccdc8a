"""A folder of scenarios with a test beside it, and pytest run on it as a user would."""

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

TARGETS = Path(__file__).parent / "targets"


@dataclass(frozen=True)
class Bench:
    """A user's project: `scenarios/`, one test file, and where results go."""

    root: Path

    @property
    def environ(self) -> dict[str, str]:
        """The surroundings of the run: own locks, so that tests do not wait for a benchmark on the same machine."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_CORE"))}
        return clean | {"HARNESS_LOCK_DIR": str(self.root / "locks"), "HF_HUB_OFFLINE": "1"}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "test_bench.py", *arguments]

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


def properties(element: ET.Element) -> dict[str, str]:
    """The properties of a test case."""
    return {p.attrib["name"]: p.attrib["value"] for p in element.iter("property")}
