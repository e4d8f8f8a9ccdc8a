"""Folders that are made once, by one of several processes, whatever becomes of it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cache import LOCK, MADE, MAKING, Make, StillBeingMade, beside, cache_root, locked, made_in_place, made_once

Once = Callable[..., Path]

# Makes a folder in which every maker leaves a line; `stop` waits to be killed in the middle of it.
MAKER = """
import os, sys, time
from pathlib import Path
from harness.cache import made_in_place, made_once
how, folder, then = sys.argv[1:]
def make(folder, fd):
    (folder / "whole").write_text("no")
    with Path(sys.argv[2] + ".makers").open("a") as file:
        print(os.getpid(), file=file)
    print("making", flush=True)
    if then == "stop":
        time.sleep(300)
    time.sleep(0.2)
    (folder / "whole").write_text("yes")
{"once": made_once, "in_place": made_in_place}[how](Path(folder), make)
"""


def start(how: str, folder: Path, then: str = "") -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", MAKER, how, str(folder), then]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def filled(text: str) -> Make:
    def make(folder: Path, fd: int) -> None:
        (folder / "whole").write_text(text)

    return make


@pytest.mark.parametrize(
    "environ, root",
    [
        ({"HARNESS_CACHE": "/c", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/c"),
        ({"HARNESS_CACHE": "", "XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/tuning-harness"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/tuning-harness"),
        ({"HOME": "/h"}, "/h/.cache/tuning-harness"),
    ],
)
def test_where_the_cache_is(environ: dict[str, str], root: str) -> None:
    assert cache_root(environ) == Path(root)


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 5)
    with pytest.raises(FileNotFoundError, match="set HARNESS_CACHE"):
        cache_root({})


def test_who_waits_no_longer_than_until_the_deadline(tmp_path: Path) -> None:
    told: list[str] = []
    folder = tmp_path / "folder"
    with locked(folder), pytest.raises(StillBeingMade, match="still being made"):
        made_once(folder, filled("mine"), told.append, time.monotonic() + 0.3)
    assert (len(told), folder.exists()) == (1, False)
    made_once(folder, filled("mine"), told.append, 0.0)
    assert (folder / "whole").read_text() == "mine"


def test_a_folder_made_in_place_that_has_lost_what_it_needs_is_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for text in ("first", "second"):
        made_in_place(folder, filled(text), needed="whole")
        made_in_place(folder, filled("none"), needed="whole")
        assert (folder / "whole").read_text() == text
        (folder / "whole").unlink()


@pytest.mark.parametrize("once", [made_once, made_in_place])
def test_what_is_there_is_not_made_again(tmp_path: Path, once: Once) -> None:
    folder = tmp_path / "cache" / "kind" / "name"
    assert once(folder, filled("first")) == once(folder, filled("second")) == folder
    assert (folder / "whole").read_text() == "first"
    for path in (folder, folder.parent):
        assert path.stat().st_mode & 0o777 == 0o700
    assert beside(folder, LOCK).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("once", [made_once, made_in_place])
def test_a_maker_that_fails_leaves_nothing(tmp_path: Path, once: Once) -> None:
    def fail(folder: Path, fd: int) -> None:
        (folder / "half").touch()
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        once(tmp_path / "name", fail)
    assert [path.name for path in tmp_path.iterdir()] == [".name.lock"]
    assert once(tmp_path / "name", filled("yes")).is_dir()


@pytest.mark.parametrize("how", ["once", "in_place"])
def test_of_several_one_makes_it(tmp_path: Path, how: str) -> None:
    processes = [start(how, tmp_path / "name") for _ in range(3)]
    assert [process.communicate() and process.returncode for process in processes] == [0, 0, 0]
    assert (tmp_path / "name" / "whole").read_text() == "yes"
    assert len((tmp_path / "name.makers").read_text().splitlines()) == 1


@pytest.mark.parametrize("how, once", [("once", made_once), ("in_place", made_in_place)])
def test_what_a_killed_maker_left_is_made_anew(tmp_path: Path, how: str, once: Once) -> None:
    killed = start(how, tmp_path / "name", "stop")
    assert killed.stdout is not None
    killed.stdout.readline()
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not beside(tmp_path / "name", MADE).exists()
    assert (tmp_path / "name").exists() == (how == "in_place")
    once(tmp_path / "name", filled("anew"))
    assert (tmp_path / "name" / "whole").read_text() == "anew"
    assert list(tmp_path.glob(f"{MAKING}*")) == []


def test_leftovers_are_swept_by_whoever_makes_something_else(tmp_path: Path) -> None:
    living, killed = start("once", tmp_path / "living", "stop"), start("once", tmp_path / "killed", "stop")
    for process in (living, killed):
        assert process.stdout is not None
        process.stdout.readline()
    killed.kill()
    killed.communicate()
    made_once(tmp_path / "other", filled("yes"))
    left = [path.name for path in tmp_path.glob(f"{MAKING}*")]
    living.kill()
    living.communicate()
    assert [name.startswith(f"{MAKING}living-") for name in left] == [True]


def test_a_folder_without_its_mark_is_not_taken_for_whole(tmp_path: Path) -> None:
    made_in_place(tmp_path / "name", filled("first"))
    beside(tmp_path / "name", MADE).unlink()
    made_in_place(tmp_path / "name", filled("second"))
    assert (tmp_path / "name" / "whole").read_text() == "second"


def test_the_lock_lasts_as_long_as_a_program_that_inherited_it(tmp_path: Path) -> None:
    with locked(tmp_path / "name") as fd:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(fd,))
    told: list[str] = []

    def free(text: str) -> None:
        told.append(text)
        child.communicate()

    with locked(tmp_path / "name", free):
        assert child.returncode is not None
    assert told == [f"{tmp_path / 'name'} is being made by another process"]


@pytest.mark.parametrize("once", [made_once, made_in_place])
def test_it_is_waited_for_until_the_deadline(tmp_path: Path, once: Once) -> None:
    def make(folder: Path, fd: int) -> None:
        raise AssertionError("it is another's to make")

    with locked(tmp_path / "name"), pytest.raises(StillBeingMade, match="name is still being made by another process"):
        once(tmp_path / "name", make, None, time.monotonic() + 0.3)


def test_a_lock_that_is_let_go_before_the_deadline_is_had(tmp_path: Path) -> None:
    with locked(tmp_path / "name") as fd:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(fd,))

    def free(_: str) -> None:
        child.communicate()

    with locked(tmp_path / "name", free, time.monotonic() + 600):
        assert child.returncode is not None


def test_a_lock_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    os.symlink(tmp_path / "elsewhere", beside(tmp_path / "name", LOCK))
    with pytest.raises(OSError, match="symbolic links"):
        made_once(tmp_path / "name", filled("yes"))
    assert not (tmp_path / "elsewhere").exists()
