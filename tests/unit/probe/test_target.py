"""A program under the probe sees what it would see without: the same program is run both ways and compared."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.unit.probe.jobs import DEADLINE_S, OTHERS, TARGETS, run

DUMPER = (TARGETS / "dumper.py").read_text()
ENDINGS = ["", "0", "3", "256", "none", "string", "raise", "interrupt", "kill", "thread", "spawn", "fork"]


@pytest.fixture(autouse=True)
def same_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # what `run` sets


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with the program in every form that `python` can start."""
    here = tmp_path / "with space"
    (here / "pkg" / "inner").mkdir(parents=True)
    (here / "app").mkdir()
    for path in ("script.py", "pkg/module.py", "pkg/__main__.py", "app/__main__.py"):
        (here / path).write_text(DUMPER)
    (here / "pkg" / "__init__.py").write_text("import sys\nprint('argv0 while the package is imported', sys.argv)\n")
    (here / "link.py").symlink_to(here / "pkg" / "module.py")
    with zipfile.ZipFile(here / "app.zip", "w") as archive:
        archive.writestr("__main__.py", DUMPER)
    return here


def plain(
    folder: Path, *target: str, options: tuple[str, ...] = (), python: str = sys.executable
) -> tuple[int, str, str]:
    environ = dict(os.environ)  # not None: readline, which pytest loads, puts more into the process's own environment
    command = [python, *options, "-u", *target]
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    return done.returncode, done.stdout, done.stderr


def probed(
    root: Path, folder: Path, *target: str, options: tuple[str, ...] = (), python: str = sys.executable
) -> tuple[int, str, str]:
    ended = run(root, *target, cwd=folder, options=options, python=python)
    assert not ended.launcher
    assert not ended.events("probe_error")
    return ended.exit_code, ended.stdout(), ended.stderr()


@pytest.mark.parametrize(
    "target",
    [
        ("script.py", "", "--lr", "1e-4", "-m", "a b"),
        ("./script.py",),
        ("../with space/script.py",),
        ("link.py",),
        ("-m", "pkg.module", "", "--x", "-m"),
        ("-m", "pkg"),
        ("-m", "script"),
        ("app",),
        ("./app/",),
        ("app.zip", "", "x"),
    ],
    ids=" ".join,
)
def test_a_program_sees_the_same(tmp_path: Path, folder: Path, target: tuple[str, ...]) -> None:
    assert probed(tmp_path / "job", folder, *target) == plain(folder, *target)


@pytest.mark.parametrize("option", ["-P", "-I", "-E", "-O"])
@pytest.mark.parametrize("target", [("script.py",), ("app",), ("-m", "json.tool", "--help")], ids=" ".join)
def test_a_program_sees_the_same_under_options(
    tmp_path: Path, folder: Path, option: str, target: tuple[str, ...]
) -> None:
    assert probed(tmp_path / "job", folder, *target, options=(option,)) == plain(folder, *target, options=(option,))


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_program_ends_the_same(tmp_path: Path, folder: Path, ending: str) -> None:
    assert probed(tmp_path / "job", folder, "script.py", ending) == plain(folder, "script.py", ending)


@pytest.mark.parametrize(
    "target",
    [("missing.py",), ("-m", "missing_module"), ("-m", "pkg.missing"), ("-m", "..rel"), (".",), ("broken.py",)],
    ids=" ".join,
)
def test_a_program_that_is_not_there_fails_the_same(tmp_path: Path, folder: Path, target: tuple[str, ...]) -> None:
    (folder / "broken.py").write_text("def f(:\n")
    assert probed(tmp_path / "job", folder, *target) == plain(folder, *target)


@pytest.mark.parametrize("python", OTHERS)
@pytest.mark.parametrize(
    "target",
    [
        ("./script.py", "raise"),
        ("-m", "pkg", "string"),
        (".",),
        ("./app/", "raise"),
        ("script.py", "spawn"),
        ("missing.py",),
    ],
    ids=" ".join,
)
def test_under_other_interpreters(tmp_path: Path, folder: Path, python: str, target: tuple[str, ...]) -> None:
    with_probe = probed(tmp_path / "job", folder, *target, python=python)
    assert with_probe == plain(folder, *target, python=python)


def test_compiled_file(tmp_path: Path, folder: Path) -> None:
    compiled = "import py_compile; py_compile.compile('script.py', cfile='script.pyc')"
    subprocess.run([sys.executable, "-c", compiled], cwd=folder, check=True)
    assert probed(tmp_path / "job", folder, "script.pyc") == plain(folder, "script.pyc")


def test_users_pythonpath_and_sitecustomize_stay(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extra = tmp_path / "extra"
    extra.mkdir()
    (extra / "sitecustomize.py").write_text("print('sitecustomize of the user')\n")
    monkeypatch.setenv("PYTHONPATH", str(extra))
    code, out, _ = plain(folder, "script.py")
    assert "sitecustomize of the user" in out
    ended = run(tmp_path / "job", "script.py", cwd=folder)
    # It runs when the interpreter starts, before the output is redirected.
    assert ended.launcher + ended.stdout() == out
    assert ended.exit_code == code


def test_what_the_dumper_prints_is_about_the_program(tmp_path: Path, folder: Path) -> None:
    """Guards the comparison itself."""
    seen: dict[str, Any] = json.loads(probed(tmp_path / "job", folder, "script.py", "")[1].splitlines()[0])
    assert seen["file"] == str(folder / "script.py")
    assert seen["path"][0] == str(folder)
    assert seen["name"] == "__main__"
    assert seen["modules"] == []
