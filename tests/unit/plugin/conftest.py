"""An inner pytest with the plugin, a fake runner (fake_runner.py) and scenario files made by the test."""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

CONFIGURATION = '[tool.pytest]\nstrict = true\nfilterwarnings = ["error"]\n'
TEST = "def test_finetune(tuning):\n    tuning.check()\n"


class Bench:
    """A folder with benchmarks/, whose cases the fake runner ends as their tag says."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.path = pytester.path
        self.folder = self.path / "benchmarks"
        (self.folder / "scenarios").mkdir(parents=True)
        (self.folder / "test_finetune.py").write_text(TEST)
        (self.path / "pyproject.toml").write_text(CONFIGURATION)
        (self.path / "conftest.py").write_text(Path(__file__).with_name("fake_runner.py").read_text())

    def scenario(self, name: str, tag: str = "none", **keys: Any) -> None:
        """One file, one scenario, one case: `NAME-1proc` unless the keys say else."""
        needs = {} if "gpus" in keys else {"processes": 1}
        document = {"name": name, "tags": [tag], "trainer": {"kind": "script", "target": "train.py"}, **needs, **keys}
        self.file(f"{name}.yaml", json.dumps(document))

    def file(self, name: str, text: str) -> None:
        (self.folder / "scenarios" / name).write_text(text)

    def run(self, *arguments: str) -> pytest.RunResult:
        arguments = arguments if any(argument.startswith("-n") for argument in arguments) else ("-n0", *arguments)
        return self.pytester.runpytest_subprocess("benchmarks", "-p", "no:cacheprovider", *arguments, timeout=120)

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "pytest", "benchmarks", "-p", "no:cacheprovider", *arguments]
        return subprocess.Popen(
            command, cwd=self.path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    @property
    def session(self) -> Path:
        return (self.path / "results" / "latest").resolve()

    def junit(self, path: Path | None = None) -> "Junit":
        return Junit(path or self.path / "junit.xml")


class Junit:
    """A junit.xml, checked on every use: each case once, and the counts of the suite equal the elements."""

    def __init__(self, path: Path) -> None:
        self.suite = next(ET.parse(path).getroot().iter("testsuite"))
        elements = self.suite.findall("testcase")
        self.cases = {element.get("name", "")[len("test_finetune[") : -1]: element for element in elements}
        assert len(self.cases) == len(elements)
        assert "" not in self.cases
        for attribute, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(self.suite.get(attribute, "-1")) == sum(e.find(tag) is not None for e in elements)
        assert int(self.suite.get("tests", "-1")) == len(elements)

    def outcome(self, case: str) -> str:
        for tag in ("failure", "error", "skipped"):
            child = self.cases[case].find(tag)
            if child is not None:
                return str(child.get("type", tag))
        return "passed"

    def message(self, case: str) -> str:
        return next((child.get("message", "") for child in self.cases[case] if child.get("message")), "")

    def properties(self, case: str) -> dict[str, str]:
        rows = [(row.get("name", ""), row.get("value", "")) for row in self.cases[case].iterfind("properties/property")]
        assert len(dict(rows)) == len(rows), "a property stands twice"
        return dict(rows)

    def verdict(self, case: str) -> str:
        return self.properties(case)["verdict"]

    def system_out(self, case: str) -> str:
        return self.cases[case].findtext("system-out", "")


@pytest.fixture
def bench(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Bench:
    for name in [name for name in os.environ if name.startswith(("PYTEST_XDIST", "COV_"))]:
        monkeypatch.delenv(name)
    return Bench(pytester)


@pytest.fixture(params=["-n0", pytest.param("-n2", marks=pytest.mark.slow)])
def workers(request: pytest.FixtureRequest) -> str:
    """Once in one process, once with xdist."""
    option: str = request.param
    return option
