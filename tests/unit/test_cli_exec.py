"""`harness exec` before it launches anything: the case it makes, and what it refuses."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from harness.attempt import GRACE_S
from harness.cli import app, execute
from harness.cli.execute import Plan
from harness.cli.program import case_of, name_of
from harness.forward.start import Aim
from harness.scenario.yaml12 import read

DOCS = Path(__file__).parents[2] / "docs" / "kubernetes.md"


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own with a program in it; the termination log is `log` there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERMINATION_LOG_FILE", str(tmp_path / "log"))
    monkeypatch.setenv("HARNESS_LOCK_DIR", str(tmp_path / "locks"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "train.py").write_text("open('launched', 'w')\n")
    return tmp_path


@pytest.fixture
def prepared(outside: Path, monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """What would be run: nothing is."""
    plans: list[Plan] = []

    def note(plan: Plan, *_: Any, **__: Any) -> Any:
        plans.append(plan)
        raise KeyboardInterrupt

    monkeypatch.setattr(execute, "_run", note)
    monkeypatch.setattr(importlib.util, "find_spec", a_spec)
    return plans


def a_spec(name: str) -> Any:
    """As importlib's where Aim is installed, whatever is installed here."""
    return None if sys.modules.get(name, True) is None else SimpleNamespace(origin=f"{name}/__init__.py")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["exec", *arguments])


@pytest.mark.parametrize(
    "command, processes, on_gpus, case_id",
    [
        (["train.py"], 1, False, "train-1proc"),
        (["src/My train.v2.py", "--lr", "1"], 2, True, "My-train.v2-2gpu"),
        (["-m", "trl.scripts.sft", "-x"], 1, False, "trl.scripts.sft-1proc"),
        (["../__main__.py"], 1, False, "main__-1proc"),
        (["folder/"], 1, False, "folder-1proc"),
        (["语.py"], 1, False, "program-1proc"),
    ],
)
def test_a_program_becomes_a_case(command: list[str], processes: int, on_gpus: bool, case_id: str) -> None:
    case = case_of(command, processes=processes, on_gpus=on_gpus)
    assert case.id == case_id
    scenario = case.scenario
    assert (scenario.gpus, scenario.processes) == ((processes, None) if on_gpus else (None, processes))
    trainer = scenario.trainer
    assert [*(["-m"] if trainer.form == "module" else []), trainer.target, *trainer.args] == command


def test_a_long_name_is_cut() -> None:
    assert name_of("a" * 300 + ".py", module=False) == "a" * 80


@pytest.mark.parametrize(
    "arguments, text",
    [
        ([], "Missing argument"),
        (["--"], "Missing argument"),
        (["--", "-m"], "is no program"),
        (["--", "-c", "pass"], "is no program"),
        (["--", ""], "is no program"),
        (["--nproc", "0", "--", "train.py"], "--nproc"),
        (["--nproc", "two", "--", "train.py"], "--nproc"),
        (["--nope", "--", "train.py"], "--nope"),
        (["--time-limit", "soon", "--", "train.py"], "--time-limit"),
        (["--time-limit", "0", "--", "train.py"], "--time-limit"),
        (["--hang-after", "never", "--", "train.py"], "--hang-after"),
        (["--hang-after", "0", "--", "train.py"], "--hang-after"),
        (["--sampler-interval", "often", "--", "train.py"], "--sampler-interval"),
        (
            ["--sampler-interval", "99ms", "--", "train.py"],
            "--sampler-interval: 0.099 s is too short; the least is 0.1 s",
        ),
        (["--aim-timeout", "0", "--", "train.py"], "--aim-timeout '0'"),
        (["--aim-timeout", "soon", "--", "train.py"], "--aim-timeout"),
        (["--launcher", "mine", "--", "train.py"], "'mine' is not one of 'harness', 'own'"),
        (["--no-aim", "--aim-repo", "r", "--", "train.py"], "--no-aim and --aim-repo contradict"),
        (["--no-aim", "--aim-python", "p", "--", "train.py"], "--no-aim and --aim-python contradict"),
        (["--no-aim", "--aim-timeout", "9", "--", "train.py"], "--no-aim and --aim-timeout contradict"),
        (["--label", "nothing", "--", "train.py"], "--label 'nothing': expected a key and a value"),
        (["--label", "a b=c", "--", "train.py"], "label key 'a b'"),
        (["--labels-file", "absent.yaml", "--", "train.py"], "No such file"),
        (["--labels-file", "list.yaml", "--", "train.py"], "expected a mapping of labels, found a list"),
        (["--labels-file", "broken.yaml", "--", "train.py"], "broken.yaml:"),
        (["--job-dir", "train.py", "--", "train.py"], "train.py: File exists"),
        (["--job-dir", "train.py/below", "--", "train.py"], "Not a directory"),
    ],
)
def test_wrong_usage_launches_nothing(
    outside: Path, capfd: pytest.CaptureFixture[str], arguments: list[str], text: str
) -> None:
    (outside / "list.yaml").write_text("- a\n")
    (outside / "broken.yaml").write_text("a: [\n")
    assert run(*arguments).exit_code == 2
    kind, reason, *more = (outside / "log").read_text().splitlines()
    assert kind == "kind: usage"
    assert text in reason
    assert more == []
    assert not (outside / "launched").exists()
    assert not (outside / "results").exists()


@pytest.mark.parametrize(
    "options, repo, python, timeout_s",
    [
        ([], "results", sys.executable, 30.0),
        (["--job-dir", "job"], "job", sys.executable, 30.0),
        (["--job-dir", "job", "--aim-repo", "runs", "--aim-timeout", "1m30s"], "runs", sys.executable, 90.0),
        (["--aim-python", "/other/python"], "results", "/other/python", 30.0),
        (["--aim-python", "other/python"], "results", "{outside}/other/python", 30.0),
        (["--aim-python", "python3.11"], "results", "python3.11", 30.0),
    ],
)
def test_where_the_run_goes(
    outside: Path, prepared: list[Plan], options: list[str], repo: str, python: str, timeout_s: float
) -> None:
    run(*options, "--", "train.py")
    assert prepared[0].settings.aim == Aim(str(outside / repo), python.format(outside=outside), timeout_s)


@pytest.mark.parametrize("options, launcher", [([], "harness"), (["--launcher", "own"], "own")])
def test_who_starts_the_ranks(outside: Path, prepared: list[Plan], options: list[str], launcher: str) -> None:
    run(*options, "--", "train.py")
    assert prepared[0].case.scenario.trainer.launcher == launcher


def test_another_interpreter(
    outside: Path, prepared: list[Plan], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "snake"
    other.symlink_to(sys.executable)
    run("--python", str(other), "--", "train.py")
    assert prepared[0].case.scenario.python == str(other)
    assert run("--python", "/no/such/python", "--", "train.py").exit_code == 2
    assert "there is no interpreter /no/such/python" in capfd.readouterr().err


@pytest.mark.parametrize(
    "options, silence",
    [([], (900.0, True)), (["--hang-after", "90s"], (90.0, False)), (["--hang-after", "none"], (None, False))],
)
def test_what_counts_as_a_hang(
    outside: Path, prepared: list[Plan], options: list[str], silence: tuple[float | None, bool]
) -> None:
    run(*options, "--", "train.py")
    assert prepared[0].case.scenario.silence_allowed() == silence


@pytest.mark.parametrize("options, seconds", [([], 1.0), (["--sampler-interval", "100ms"], 0.1)])
def test_how_often_the_sampler_looks(outside: Path, prepared: list[Plan], options: list[str], seconds: float) -> None:
    run(*options, "--", "train.py")
    assert prepared[0].settings.sample_interval_s == seconds


@pytest.mark.parametrize("options, told", [([], True), (["--no-aim"], False)])
def test_no_aim_here(
    outside: Path,
    prepared: list[Plan],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    options: list[str],
    told: bool,
) -> None:
    monkeypatch.setitem(sys.modules, "aim", None)
    run(*options, "--", "train.py")
    assert prepared[0].settings.aim is None
    assert (f"harness: nothing goes to Aim: it is not installed in {sys.executable}" in capfd.readouterr().err) == told


def test_secrets_of_a_repo_are_not_told(outside: Path, prepared: list[Plan], capfd: pytest.CaptureFixture[str]) -> None:
    run("--aim-repo", "aim://user:hunter22@host:1", "--", "train.py")
    said = capfd.readouterr().err
    assert "harness: the run goes to the Aim repo aim://" in said
    assert "hunter22" not in said


def test_what_the_machine_lacks(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.attempt.missing", lambda case, machine: "needs torch; there is none")
    assert run("--nproc", "2", "--", "train.py").exit_code == 2
    assert (outside / "log").read_text() == "kind: not_run\nreason: needs torch; there is none\n"


def test_a_secret_of_the_command_line_is_not_told(outside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "not-a-real-one")
    assert run("--label", "not-a-real-one", "--", "train.py").exit_code == 2
    assert "not-a-real-one" not in (outside / "log").read_text()


def test_the_pod_of_the_docs() -> None:
    text = DOCS.read_text().partition("```yaml\n")[2].partition("```")[0]
    job = read(text.encode())["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"][:2] == ["harness", "exec"]
    assert pod["terminationGracePeriodSeconds"] > 3 * GRACE_S
    assert pod["restartPolicy"] == "Never"  # which a policy for exit codes needs
    command = container["command"][2:]
    assert run(*command[: command.index("--")], "--help").exit_code == 0  # these options are there
    (rule, *_) = job["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["containerName"] == container["name"]
