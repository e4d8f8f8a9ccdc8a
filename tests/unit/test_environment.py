"""What a record says of its surroundings, read from this very machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness import environment
from harness.environment import StackError, read_stack

SECRET = "hf_abcdefghijklmnopqrstuvwxyz012345"


def test_the_stack_of_this_interpreter() -> None:
    stack = read_stack(sys.executable, {})
    assert stack.packages["pytest"] == pytest.__version__
    assert "nvidia-ml-py" in stack.packages  # normalised: as a requirement names it
    assert stack.version.split(".")[:2] == [str(sys.version_info.major), str(sys.version_info.minor)]


def test_asking_for_the_stack_imports_nothing_heavy() -> None:
    script = (
        "import sys; from harness.environment import read_stack; read_stack(sys.executable, {}); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "aim"} & set(done.stdout.split())


def test_packages_that_the_job_will_find(tmp_path: Path) -> None:
    (tmp_path / "special-1.5.dist-info").mkdir()
    (tmp_path / "special-1.5.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: special\nVersion: 1.5\n")
    assert read_stack(sys.executable, {"PYTHONPATH": str(tmp_path)}).packages["special"] == "1.5"
    assert "special" not in read_stack(sys.executable, {}).packages


def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="there is no interpreter /no/python"):
        read_stack("/no/python", {})
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho broken: no libpython >&2\nexit 3\n")
    fake.chmod(0o755)
    with pytest.raises(StackError, match="does not answer: broken: no libpython"):
        read_stack(str(fake), {})


def test_an_interpreter_by_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "python").chmod(0o700)
    monkeypatch.chdir(tmp_path)
    assert read_stack("./python", {}).executable == str(tmp_path / "python")


def test_git_state(tmp_path: Path) -> None:
    assert environment.git_state(tmp_path) is None

    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, "-C", str(tmp_path), *arguments], check=True, capture_output=True)

    git("init", "-q", "-b", "trunk")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "a")
    git("remote", "add", "origin", f"https://someone:{SECRET}@example.org/a.git")
    state = environment.git_state(tmp_path)
    assert state is not None
    assert (state["branch"], state["dirty"], len(state["commit"])) == ("trunk", False, 40)
    assert SECRET not in json.dumps(state)
    (tmp_path / "a").write_text("2")
    state = environment.git_state(tmp_path)
    assert state is not None
    assert state["dirty"] is True


def test_variables_that_tell_and_secrets_that_do_not() -> None:
    told = environment.describe_variables(
        {"NCCL_DEBUG": "WARN", "HF_TOKEN": SECRET, "HF_ENDPOINT": f"https://u:{SECRET}@example.org", "HOME": "/home/me"}
    )
    assert told["NCCL_DEBUG"] == "WARN"
    assert set(told) == {"NCCL_DEBUG", "HF_TOKEN", "HF_ENDPOINT"}
    assert SECRET not in json.dumps(told)


def test_the_machine() -> None:
    told = environment.describe_machine([], None, "no driver")
    assert told["memory_bytes"] > 2**20
    assert told["cpu_count"] >= 1
    assert told["gpus"] == []
    json.dumps(told)
