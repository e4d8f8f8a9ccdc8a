"""Environments of requirement files: what makes two the same, how one is made, and what is left when it cannot be."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from harness import stacks
from harness.cache import MADE, beside, locked
from harness.classify import judge_install
from harness.probe.redact import redact
from harness.record import Kind
from harness.stacks import Recipe, StackFailure
from tests.unit.jobs import DEADLINE_S, eventually
from tests.unit.wheels import make_wheel

VERSION = "3.11.0"
ENVIRON = {"KEPT": "house", "LOST": ""}  # pip's


def recipe(*requirements: Path, no_deps: tuple[Path, ...] = (), python: str = sys.executable) -> Recipe:
    return Recipe(requirements, no_deps, python, VERSION)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """No index is asked, and a lost one is not waited for."""
    return {**os.environ, "HARNESS_CACHE": str(tmp_path / "cache"), "PIP_RETRIES": "0", "PIP_TIMEOUT": "5"}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """base.txt with an included file, a constraint and a wheel."""
    folder = tmp_path / "files"
    folder.mkdir()
    make_wheel(folder, "alpha")
    (folder / "base.txt").write_text("--no-index\n-r more.txt\n-cpins.txt  # bound\n./alpha-1.0-py3-none-any.whl\n")
    (folder / "house").mkdir()
    for name in ("beta", "gamma"):
        make_wheel(folder / "house", name)
    (folder / "more.txt").write_text("# nothing\n")
    (folder / "pins.txt").write_text("alpha==1.0\n")
    return folder


CHANGES: dict[str, Callable[[Path], object]] = {
    "the file": lambda folder: (folder / "base.txt").write_text("alpha==1.0\n"),
    "an included file": lambda folder: (folder / "more.txt").write_text("beta\n"),
    "a constraint": lambda folder: (folder / "pins.txt").write_text("alpha<2\n"),
    "a wheel": lambda folder: make_wheel(folder, "alpha", requires=("beta",)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_all_that_is_installed_makes_the_hash(files: Path, change: Callable[[Path], object]) -> None:
    before = recipe(files / "base.txt").sha256(ENVIRON)
    assert recipe(files / "base.txt").sha256(ENVIRON) == before
    change(files)
    assert recipe(files / "base.txt").sha256(ENVIRON) != before


BETA = "house/beta-1.0-py3-none-any.whl"
NAMED = {
    "with extras": f"./{BETA}[fast,more] ; python_version > '3'\n",
    "by an address": f"beta @ file:./{BETA}#sha256=0\n",
    "by a whole address": f"beta[fast]@file://localhost{{folder}}/{BETA}\n",
    "by an address in code": f"beta @ file:{BETA.replace('-', '%2D')}\n",
    "with a hash": f"./{BETA} --hash=sha256:0\n",
    "found": "--find-links house\nbeta\n",
    "found, after another option": "--no-index --find-links=house\nbeta\n",
    "found, short": "-fhouse\nbeta\n",
    "found by an address": "-f file://{folder}/house\nbeta\n",
    "under a variable": f"./${{KEPT}}/{BETA.removeprefix('house/')}\n",
    "found under a variable": "--find-links ${KEPT}\nbeta\n",
    "in a file of another name": "--no-index --requirement 'wheels of the house.txt'\n",
}


@pytest.mark.parametrize("text", NAMED.values(), ids=NAMED)
def test_a_wheel_makes_the_hash_however_it_is_named(files: Path, text: str) -> None:
    (files / "wheels of the house.txt").write_text(f"./{BETA}")
    (files / "named.txt").write_text(text.replace("{folder}", str(files)))
    before = recipe(files / "named.txt").sha256(ENVIRON)
    make_wheel(files, "gamma", requires=("alpha",))  # another file beside it
    assert recipe(files / "named.txt").sha256(ENVIRON) == before
    make_wheel(files / "house", "beta", requires=("alpha",))
    changed = recipe(files / "named.txt").sha256(ENVIRON)
    assert changed != before
    old = time.time() - 3600
    os.utime(files / BETA, (old, old))  # what has not changed for long may be remembered
    assert recipe(files / "named.txt").sha256(ENVIRON) == changed


def test_a_wheel_that_is_renamed_or_joins_is_another_stack(files: Path) -> None:
    (files / "named.txt").write_text("-f house\nbeta\n")
    before = recipe(files / "named.txt").sha256({})
    (files / "house" / "notes.txt").write_text("no archive")
    assert recipe(files / "named.txt").sha256({}) == before
    (files / "house" / "gamma-1.0-py3-none-any.whl").rename(files / "house" / "gamma-2.0-py3-none-any.whl")
    assert recipe(files / "named.txt").sha256({}) != before


def test_what_a_variable_stands_for_makes_the_hash_unless_it_is_an_address(files: Path) -> None:
    def told(text: str, value: str) -> str:
        (files / "named.txt").write_text(text)
        return recipe(files / "named.txt").sha256({"V": value})

    assert told("alpha==${V}\n", "1.0") != told("alpha==${V}\n", "2.0")
    address = "--index-url https://${V}@host/simple\nalpha @ https://${V}@host/alpha.whl\n"
    assert told(address, "secret") == told(address, "another")


@pytest.mark.parametrize("name", ["PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT", "PIP_REQUIREMENT", "PIP_FIND_LINKS"])
def test_files_that_pips_variables_name_make_the_hash(files: Path, name: str) -> None:
    environ = {name: "http://host/pins.txt house" if name == "PIP_FIND_LINKS" else "pins.txt"}
    before = recipe(files / "more.txt").sha256(environ)
    assert before != recipe(files / "more.txt").sha256({name: "http://host/pins.txt"})
    assert before != recipe(files / "more.txt").sha256({})
    (files / "pins.txt").write_text("alpha==3.0\n")
    make_wheel(files / "house", "beta", requires=("alpha",))
    assert recipe(files / "more.txt").sha256(environ) != before


def test_interpreter_order_and_part_make_the_hash_and_the_place_does_not(files: Path) -> None:
    one, two = files / "more.txt", files / "pins.txt"
    same = {
        recipe(one, two).sha256(ENVIRON),
        recipe(two, one).sha256(ENVIRON),
        recipe(one, no_deps=(two,)).sha256(ENVIRON),
        recipe(one, two, python="/usr/bin/other").sha256(ENVIRON),
        Recipe((one, two), (), sys.executable, "3.12.0").sha256(ENVIRON),
    }
    assert len(same) == 5
    moved = files.rename(files.with_name("elsewhere"))
    assert recipe(moved / "more.txt", moved / "pins.txt").sha256(ENVIRON) in same


def test_a_file_that_includes_itself(files: Path) -> None:
    (files / "more.txt").write_text("-r base.txt\n")
    assert len(recipe(files / "base.txt").sha256(ENVIRON)) == 64


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_an_included_file_counts_whatever_wrote_the_first_one(files: Path, encoding: str) -> None:
    (files / "base.txt").write_bytes("--no-index\r\n-r more.txt\r\n".encode(encoding))
    before = recipe(files / "base.txt").sha256(os.environ)
    CHANGES["an included file"](files)
    assert recipe(files / "base.txt").sha256(os.environ) != before


def test_a_variable_in_the_name_of_an_included_file(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (files / "base.txt").write_text("-r ${PINS_DIR}/pins.txt\n")
    monkeypatch.setenv("PINS_DIR", str(files))
    before = recipe(files / "base.txt").sha256(os.environ)
    CHANGES["a constraint"](files)
    assert recipe(files / "base.txt").sha256(os.environ) != before
    monkeypatch.delenv("PINS_DIR")
    with pytest.raises(FileNotFoundError, match="PINS_DIR"):
        recipe(files / "base.txt").sha256(os.environ)


def test_a_cache_that_cannot_be_used_is_told(files: Path, environ: dict[str, str]) -> None:
    cache = files / "cache"
    cache.write_text("a file")
    with pytest.raises(StackFailure, match=f"the cache cannot be used: .*{cache}") as failed:
        stacks.make(recipe(files / "base.txt"), {**environ, "HARNESS_CACHE": str(cache)})
    verdict = judge_install(failed.value.what, failed.value.output, failed.value.ended)
    assert verdict.kind is Kind.USER_ERROR


@pytest.mark.slow
def test_an_environment_that_has_lost_its_interpreter_is_made_anew(files: Path, environ: dict[str, str]) -> None:
    wanted = recipe(files / "base.txt")
    python = stacks.make(wanted, environ)
    python.unlink()
    assert stacks.there(wanted, environ) is None
    assert stacks.make(wanted, environ) == python
    assert python.exists()


@pytest.mark.slow
def test_an_environment_is_made_once_and_again_for_other_contents(files: Path, environ: dict[str, str]) -> None:
    make_wheel(files, "beta", requires=("nothing-of-this-name",))
    (files / "last.txt").write_text("--no-index\n./beta-1.0-py3-none-any.whl\n")
    wanted = recipe(files / "base.txt", no_deps=(files / "last.txt",))
    told: list[str] = []
    assert stacks.there(wanted, environ) is None
    python = stacks.make(wanted, {**environ, "PIP_USER": "1", "PYTHONPATH": "/nowhere"}, told.append)
    assert stacks.there(wanted, environ) == python
    assert python.is_relative_to(environ["HARNESS_CACHE"])
    code = "import alpha, beta, sys; print(alpha.VERSION, beta.VERSION, sys.prefix)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1.0", "1.0", str(python.parents[1])]
    assert "the environment of base.txt, last.txt is made, once" in told[0]
    assert stacks.make(wanted, environ, told.append) == python
    assert len(told) == 1
    (files / "more.txt").write_text("# other contents\n")
    assert stacks.there(wanted, environ) is None
    assert stacks.make(wanted, environ) != python


@pytest.mark.slow
def test_what_a_killed_maker_left_is_made_anew(files: Path, environ: dict[str, str]) -> None:
    wanted = recipe(files / "base.txt")
    folder = stacks.where(wanted, environ)
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_text("half")
    assert stacks.there(wanted, environ) is None
    python = stacks.make(wanted, environ)
    assert python.is_relative_to(folder)
    assert subprocess.run([python, "-c", "import alpha"], check=False).returncode == 0


@pytest.mark.slow
def test_two_at_once_make_one(files: Path, environ: dict[str, str]) -> None:
    made: list[Path] = []
    told: list[str] = []
    threads = [
        threading.Thread(target=lambda: made.append(stacks.make(recipe(files / "base.txt"), environ, told.append)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 2
    assert made[0] == made[1]
    assert sum("is made, once" in text for text in told) == 1


def failure(path: Path, text: str, environ: dict[str, str]) -> StackFailure:
    path.write_text(text)
    with pytest.raises(StackFailure) as failed:
        stacks.make(recipe(path), environ)
    folder = stacks.where(recipe(path), environ)
    assert (folder.exists(), beside(folder, MADE).exists()) == (False, False)
    return failed.value


@pytest.mark.slow
def test_a_package_that_is_not_there_is_the_users_error(tmp_path: Path, environ: dict[str, str]) -> None:
    failed = failure(tmp_path / "bad.txt", "--no-index\nnothing-of-this-name==1.0\n", environ)
    verdict = judge_install(failed.what, failed.output, failed.ended)
    assert (verdict.kind, verdict.transient) == (Kind.USER_ERROR, False)
    assert "Could not find a version that satisfies the requirement nothing-of-this-name==1.0" in verdict.reason


@pytest.mark.slow
def test_an_index_that_does_not_answer_is_the_networks_and_its_password_is_hidden(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    retries = {**environ, "PIP_RETRIES": "1"}
    index = "http://user:hunter22hunter@127.0.0.1:9/simple"
    failed = failure(tmp_path / "net.txt", f"--index-url {index}\nnothing-of-this-name\n", retries)
    verdict = judge_install(failed.what, failed.output, failed.ended)
    assert (verdict.kind, verdict.transient) == (Kind.NETWORK, True)
    assert "Connection refused" in verdict.reason
    assert "hunter22hunter" not in failed.output
    logs = list((tmp_path / "cache" / "stacks").glob(".*.log"))
    assert [path.stat().st_mode & 0o777 for path in logs] == [0o600]
    assert "hunter22hunter" not in logs[0].read_text()
    assert "127.0.0.1:9" in logs[0].read_text()


def test_a_file_that_is_not_there(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "a.txt").write_text("-r gone.txt\n")
    assert stacks.there(recipe(tmp_path / "a.txt"), environ) is None
    with pytest.raises(StackFailure, match=r"gone\.txt: No such file"):
        stacks.make(recipe(tmp_path / "a.txt"), environ)


def test_an_interpreter_that_cannot_make_one(
    tmp_path: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden: list[str] = []

    def hide(text: str, secrets: list[str]) -> str:
        hidden.append(text)
        return redact(text, secrets)

    monkeypatch.setattr(stacks, "redact", hide)
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho 'Error: ensurepip is not available' >&2\nexit 1\n")
    fake.chmod(0o755)
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(StackFailure) as failed:
        stacks.make(recipe(tmp_path / "a.txt", python=str(fake)), environ)
    verdict = judge_install(failed.value.what, failed.value.output, failed.value.ended)
    assert (verdict.kind, verdict.reason) == (Kind.USER_ERROR, "stack: ensurepip is not available")
    assert hidden == ["Error: ensurepip is not available\n"]  # once


def test_whoever_waits_for_another_maker_gives_up_in_the_end(
    files: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = recipe(files / "base.txt")
    monkeypatch.setattr(stacks, "LIMIT_S", 0.0)
    with locked(stacks.where(wanted, environ)), pytest.raises(StackFailure) as failed:
        stacks.make(wanted, environ)
    verdict = judge_install(failed.value.what, failed.value.output, failed.value.ended, out_of_time=True)
    assert failed.value.out_of_time
    assert (verdict.kind, "is still being made by another process" in verdict.reason) == (Kind.TIMEOUT, True)


# A venv whose interpreter, asked for pip, never ends.
HANGS = """#!/bin/sh
mkdir -p "$4/bin"
printf '#!/bin/sh\necho $$ > %s/pid\nexec sleep 600\n' "$PWD" > "$4/bin/python"
chmod +x "$4/bin/python"
"""
MAKE = """
import os, sys
from pathlib import Path
from harness import stacks
stacks.make(stacks.Recipe((Path(sys.argv[1]),), (), sys.argv[2], sys.argv[3]), os.environ)
"""


def test_pip_dies_with_its_maker_and_lets_the_lock_go(files: Path, environ: dict[str, str]) -> None:
    hangs = files / "hangs"
    hangs.write_text(HANGS)
    hangs.chmod(0o755)
    wanted = recipe(files / "base.txt", python=str(hangs))
    command = [sys.executable, "-c", MAKE, str(wanted.requirements[0]), str(hangs), VERSION]
    with subprocess.Popen(command, env=environ) as maker:
        eventually(lambda: (files / "pid").exists() and (files / "pid").read_text().endswith("\n"))
        maker.kill()
    pid = int((files / "pid").read_text())
    with locked(stacks.where(wanted, environ), deadline=time.monotonic() + DEADLINE_S):
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_an_interrupted_maker_leaves_neither_a_folder_nor_a_process(
    files: Path, environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = files.parent / "slow-python"
    slow.write_text(f"#!/bin/sh\necho $$ > {files}/pid\nsleep 600\n")
    slow.chmod(0o755)

    def interrupt(text: str) -> None:
        if "still makes" in text and (files / "pid").exists():
            raise KeyboardInterrupt

    wanted = recipe(files / "base.txt", python=str(slow))
    monkeypatch.setattr(stacks, "_TOLD_EVERY_S", 0.2)
    with pytest.raises(KeyboardInterrupt):
        stacks.make(wanted, environ, interrupt)
    pid = int((files / "pid").read_text())
    wait_for(lambda: not running(pid))
    assert not stacks.where(wanted, environ).exists()


MAKER = """
import os, sys
from pathlib import Path
from harness import stacks
stacks.make(stacks.Recipe((Path(sys.argv[1]),), (), sys.argv[2], "3"), os.environ)
"""


def test_a_killed_maker_leaves_no_process_and_no_lock(files: Path, environ: dict[str, str]) -> None:
    slow = files.parent / "slow-python"
    slow.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {files}/half && mv {files}/half {files}/pid\nwait\n")
    slow.chmod(0o755)
    maker = subprocess.Popen([sys.executable, "-c", MAKER, files / "more.txt", slow], env=environ)
    wait_for((files / "pid").exists)
    pid = int((files / "pid").read_text())
    assert running(pid)
    maker.kill()
    maker.wait()
    wait_for(lambda: not running(pid))
    folder = stacks.where(Recipe((files / "more.txt",), (), str(slow), "3"), environ)
    with locked(folder, deadline=time.monotonic() + 30):
        pass


def running(pid: int) -> bool:
    """Whether it is there and has not ended: nobody may wait for an orphan in a container."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
