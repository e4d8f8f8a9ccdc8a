"""`harness exec` before it launches anything: the case it makes, and what it refuses."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from harness.attempt import GRACE_S
from harness.cli import app
from harness.cli.program import case_of, name_of
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
    assert [*(["-m"] if trainer.module else []), trainer.target, *trainer.args] == command


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
