"""Where the runs of a session go, and what its first lines say of it."""

import sys
from pathlib import Path

import pytest

from harness.forward.start import Aim
from harness.plugin.options import Options
from harness.probe.companions import aim_is_installed
from tests.unit.plugin.conftest import Bench

# A conftest that lets this interpreter have Aim, or not, whatever is installed.
INSTALLED = (
    "import importlib.util, types\nimportlib.util.find_spec = lambda name: types.SimpleNamespace(origin='there')\n"
)
ABSENT = "import sys\nsys.modules['aim'] = None\n"


def first_lines(bench: Bench, conftest: str, *arguments: str) -> str:
    bench.scenario("good")
    with (bench.path / "conftest.py").open("a") as file:
        file.write(conftest)
    result = bench.run(*arguments)
    assert result.ret == 0
    return result.stdout.str()


def test_runs_go_to_a_repo_beside_the_sessions(bench: Bench, workers: str) -> None:
    assert f"harness: runs go to the Aim repo {bench.path}/results\n" in first_lines(bench, INSTALLED, workers)


@pytest.mark.parametrize(
    "arguments, repo",
    [
        (["--results", "elsewhere"], "{root}/elsewhere"),
        (["--aim-repo", "runs"], "{root}/runs"),
        (["--aim-repo", "runs", "--aim-python", "/no/such/python"], "{root}/runs"),
        (["--aim-python", "/no/such/python"], "{root}/results"),
        (["--aim-repo", "aim://user:hunter22@host:1"], "aim://[redacted]@host:1"),
    ],
)
def test_the_repo_is_named(bench: Bench, arguments: list[str], repo: str) -> None:
    said = first_lines(bench, INSTALLED, *arguments)
    assert f"harness: runs go to the Aim repo {repo.format(root=bench.path)}\n" in said
    assert "hunter22" not in said


def test_without_aim_it_says_what_helps(bench: Bench, workers: str) -> None:
    said = first_lines(bench, ABSENT, workers)
    assert f"harness: nothing goes to Aim: it is not installed in {sys.executable}; pip install 'aim>=3.29,<4'" in said


@pytest.mark.parametrize("conftest", [INSTALLED, ABSENT], ids=["installed", "absent"])
def test_who_wants_no_aim_is_told_nothing(bench: Bench, conftest: str) -> None:
    assert "Aim" not in first_lines(bench, conftest, "--no-aim")


def test_an_interpreter_that_is_named_is_believed(bench: Bench) -> None:
    assert "runs go to the Aim repo" in first_lines(bench, ABSENT, "--aim-python", "/no/such/python")


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["--no-aim", "--aim-repo", "runs"], "--no-aim and --aim-repo contradict each other"),
        (["--no-aim", "--aim-python", "python"], "--no-aim and --aim-python contradict each other"),
        (["--no-aim", "--aim-timeout", "9"], "--no-aim and --aim-timeout contradict each other"),
        (["--aim-timeout", "0"], "give more time than none"),
        (["--aim-timeout", "soon"], "is no time"),
    ],
)
def test_options_that_make_no_sense_are_usage_errors(bench: Bench, arguments: list[str], text: str) -> None:
    bench.scenario("good")
    result = bench.run(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert text in result.stderr.str()
    assert not (bench.path / "results").exists()


@pytest.mark.parametrize("aim", [None, Aim("/repo", "/python", 7.0)])
def test_workers_get_the_same(aim: Aim | None) -> None:
    options = Options(session="s", results=Path("/r"), labels={}, gpus=None, time_limit_s=None, aim=aim)
    assert Options.from_wire(options.wire()) == options
    if aim is not None:
        assert options.wire()["aim"] == {"repo": "/repo", "python": "/python", "timeout_s": 7.0}


def test_a_folder_of_that_name_is_no_aim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--aim-repo aim` has made one, and `python -m pytest` looks for modules there."""
    (tmp_path / "aim").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "aim", raising=False)
    assert not aim_is_installed()
