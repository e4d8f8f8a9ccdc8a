"""The plugin is loaded in every pytest of its environment: it must cost nothing and do nothing there."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.plugin.conftest import CONFIGURATION

HEAVY = {
    "pydantic",
    "typer",
    "rich",
    "psutil",
    "pynvml",
    "yaml",
    "torch",
    "transformers",
    "aim",
    "xdist",
    "harness.attempt",
}
PLAIN = """
import signal, threading
def test_nothing_is_installed():
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert not [thread for thread in threading.enumerate() if "harness" in thread.name]
def test_other():
    pass
"""


def test_importing_the_plugin_is_light() -> None:
    code = f"import sys; import harness.plugin; print(sorted({HEAVY!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_collecting_the_shipped_benchmarks_loads_nothing_of_the_measured_stack() -> None:
    code = (
        "import sys, pytest; code = pytest.main(['--collect-only', '-q', '-p', 'no:cacheprovider', 'benchmarks']); "
        "print(code, sorted({'torch', 'transformers', 'accelerate', 'peft', 'aim'} & set(sys.modules)))"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert "tiny-lora-bs2-seq64-1proc" in done.stdout
    assert done.stdout.splitlines()[-1] == "0 []"


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_a_session_without_cases_is_left_alone(pytester: pytest.Pytester, workers: str) -> None:
    pytester.makepyprojecttoml(CONFIGURATION)
    pytester.makepyfile(test_plain=PLAIN)
    (pytester.path / "junit.xml").write_text("somebody's")
    result = pytester.runpytest_subprocess(workers, "-p", "no:cacheprovider", timeout=60)
    result.assert_outcomes(passed=2)
    result.stdout.no_fnmatch_line("*harness:*")
    assert not (pytester.path / "results").exists()
    assert (pytester.path / "junit.xml").read_text() == "somebody's"


def test_it_starts_beside_other_plugins(pytester: pytest.Pytester) -> None:
    for name in ("pytest_timeout", "pytest_html", "pytest_metadata", "pytest_cov", "pytest_rerunfailures"):
        pytest.importorskip(name)
    pytester.makepyfile(test_plain="def test_plain(): pass")
    options = ["--timeout=60", "--html=report.html", "--metadata", "a", "b", "--cov=.", "--reruns=1"]
    result = pytester.runpytest_subprocess(*options, "--results=out", "--gpus=1", "--time-limit=1h", timeout=60)
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize("plugins", [["xdist"], ["benchmark"], ["terminal"], ["junitxml"]])
def test_it_starts_without_other_plugins(pytester: pytest.Pytester, plugins: list[str]) -> None:
    pytester.makepyfile(test_plain="def test_plain(): pass")
    switches = [word for name in plugins for word in ("-p", f"no:{name}")]
    assert pytester.runpytest_subprocess(*switches, timeout=60).ret == 0
