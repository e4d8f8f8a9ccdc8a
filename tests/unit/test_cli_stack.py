"""`harness stack`: what it prints and how it ends."""

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli import app
from tests.unit.wheels import make_wheel

pytestmark = pytest.mark.slow


def test_the_interpreter_alone_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    make_wheel(tmp_path, "alpha")
    make_wheel(tmp_path, "beta", requires=("nothing-of-this-name",))
    (tmp_path / "a.txt").write_text("--no-index\n./alpha-1.0-py3-none-any.whl\n")
    (tmp_path / "b.txt").write_text("--no-index\n./beta-1.0-py3-none-any.whl\n")
    made = CliRunner().invoke(app, ["stack", "a.txt", "--no-deps", "b.txt"])
    assert made.exit_code == 0, made.output
    assert "harness: the environment of a.txt, b.txt is made, once" in capfd.readouterr().err
    python = made.stdout.removesuffix("\n")
    assert subprocess.run([python, "-c", "import alpha, beta"], check=False).returncode == 0
    again = CliRunner().invoke(app, ["stack", "a.txt", "--no-deps", "b.txt"])
    assert (again.stdout, capfd.readouterr().err) == (made.stdout, "")


def test_what_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_text("--no-index\nnothing-of-this-name\n")
    failed = CliRunner().invoke(app, ["stack", str(tmp_path / "a.txt")])
    assert (failed.exit_code, failed.stdout) == (1, "")
    assert "error: user_error: stack: Could not find a version that satisfies the requirement" in failed.stderr
    nowhere = CliRunner().invoke(app, ["stack", str(tmp_path / "a.txt"), "--python", "/no/python"])
    assert (nowhere.exit_code, "there is no interpreter /no/python" in nowhere.stderr) == (1, True)
    assert CliRunner().invoke(app, ["stack", str(tmp_path / "gone.txt")]).exit_code == 2
