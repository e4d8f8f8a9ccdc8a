"""Stacks of real processes that answer, or do not."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.probe import start
from harness.probe.layout import JobPaths
from harness.watch import stacks
from tests.unit.jobs import eventually, processes_naming

# A rank that has registered for the signal as the probe does, and then waits: RANK_FOLDER [pipe]
RANK = """
import faulthandler, os, sys, threading, time
folder = sys.argv[1]
descriptor = os.open(folder + "/stacks.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
faulthandler.register(60, file=descriptor, all_threads=True, chain=False)

def recorder():
    path = folder + "/../node-0/flight-recorder-rank-0"
    os.mkfifo(path + ".pipe")
    pipe = os.open(path + ".pipe", os.O_RDONLY | os.O_NONBLOCK)  # as torch does
    open(folder + "/ready", "w").close()
    while not os.read(pipe, 128):
        time.sleep(0.05)
    with open(path, "w") as dump:
        dump.write("dumped")

def where_it_stands():
    if sys.argv[2:] != ["pipe"]:
        open(folder + "/ready", "w").close()
    time.sleep(3600)

if sys.argv[2:] == ["pipe"]:
    threading.Thread(target=recorder, daemon=True).start()
elif sys.argv[2:] == ["replaced"]:
    open(folder + "/ready", "w").close()
    os.execvp("sleep", ["sleep", "3600"])
where_it_stands()
"""

Start = Callable[..., int]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Start]:
    """Start rank 0 of the job in tmp_path, in a manner; its process id."""
    processes = []
    (tmp_path / "rank-0").mkdir()
    (tmp_path / "node-0").mkdir()

    def begin(*manner: str) -> int:
        processes.append(subprocess.Popen([sys.executable, "-S", "-c", RANK, str(tmp_path / "rank-0"), *manner]))
        eventually((tmp_path / "rank-0" / "ready").exists)
        return processes[-1].pid

    yield begin
    for process in processes:
        process.kill()
        process.wait()


def told(tmp_path: Path) -> str:
    return (tmp_path / "rank-0" / "stacks.txt").read_text()


def test_both_sides_mean_the_same(tmp_path: Path) -> None:
    job = JobPaths(tmp_path)
    assert start.STACKS_SIGNAL == stacks.STACKS_SIGNAL
    assert stacks._stacks(tmp_path, 3) == job.stacks(3)
    assert job.node() / stacks.FLIGHT_RECORDER == job.flight_recorder()


def test_a_rank_answers(tmp_path: Path, begin: Start) -> None:
    pid = begin()
    got = stacks.collect(tmp_path, {0: pid}, "hang", thorough=False)
    assert got[0] is not None
    assert "in where_it_stands" in got[0]
    assert f"hang: process {pid}, state S (sleeping)\n" in told(tmp_path)
    os.kill(pid, 0)
    again = stacks.collect(tmp_path, {0: pid}, "time_limit", thorough=False)
    assert again == got
    assert told(tmp_path).count("in where_it_stands") == 2


def test_a_stopped_rank_has_nothing_to_say(tmp_path: Path, begin: Start) -> None:
    pid = begin()
    os.kill(pid, signal.SIGSTOP)
    eventually(lambda: stacks._status(pid)[0].startswith("T"))
    assert stacks.collect(tmp_path, {0: pid}, "hang", thorough=False) == {0: None}
    assert "no stacks within" in told(tmp_path)


def test_a_program_that_has_replaced_itself_is_not_killed_by_the_question(tmp_path: Path, begin: Start) -> None:
    pid = begin("replaced")
    eventually(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
    assert stacks.collect(tmp_path, {0: pid}, "hang", thorough=False) == {0: None}
    assert "does not listen" in told(tmp_path)
    assert Path(f"/proc/{pid}/comm").read_text() == "sleep\n"


def test_a_process_that_has_gone(tmp_path: Path) -> None:
    (tmp_path / "rank-0").mkdir()
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert stacks.collect(tmp_path, {0: gone.pid}, "hang", thorough=False) == {0: None}
    assert "state gone" in told(tmp_path)


def test_a_link_in_the_place_of_the_stacks_is_not_followed(tmp_path: Path, begin: Start) -> None:
    pid = begin()
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "rank-0" / "stacks.txt").unlink()
    (tmp_path / "rank-0" / "stacks.txt").symlink_to(tmp_path / "victim")
    assert stacks.collect(tmp_path, {0: pid}, "hang", thorough=False) == {0: None}
    assert (tmp_path / "victim").read_text() == "mine"


def test_the_flight_recorder_is_asked_through_its_pipe(tmp_path: Path, begin: Start) -> None:
    pid = begin("pipe")
    got = stacks.collect(tmp_path, {0: pid}, "hang", thorough=True)
    assert got[0] is not None
    assert (tmp_path / "node-0" / "flight-recorder-rank-0").read_text() == "dumped"
    stacks.remove_pipes(tmp_path / "node-0")
    assert [path.name for path in (tmp_path / "node-0").iterdir()] == ["flight-recorder-rank-0"]


@pytest.fixture
def put_py_spy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts a script in the place of py-spy, which needs a right to trace that not every machine grants."""

    def put(script: str) -> None:
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "py-spy").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "bin" / "py-spy").chmod(0o700)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
        monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewhere" / "python"))

    return put


def test_py_spy_tells_beside_it(tmp_path: Path, begin: Start, put_py_spy: Callable[[str], None]) -> None:
    pid = begin()
    put_py_spy('echo "Process 7: python train.py --token"; echo "hf_secret"; echo "Python v3.12.1 (python)"; echo "$*"')
    stacks.collect(tmp_path, {0: pid}, "hang", thorough=True)
    assert (tmp_path / "rank-0" / "py-spy.txt").read_text() == f"Python v3.12.1 (python)\ndump --pid {pid}\n"


@pytest.mark.parametrize(
    "says, kept",
    [
        pytest.param('echo "Error: Permission Denied" >&2; exit 1', "Error: Permission Denied\n", id="refused"),
        pytest.param('echo "Process 7: python --token hf_secret"', None, id="head-alone"),
        pytest.param("true", None, id="nothing"),
    ],
)
def test_what_py_spy_says_instead(
    tmp_path: Path, begin: Start, put_py_spy: Callable[[str], None], says: str, kept: str | None
) -> None:
    pid = begin()
    put_py_spy(says)
    stacks.collect(tmp_path, {0: pid}, "hang", thorough=True)
    told = tmp_path / "rank-0" / "py-spy.txt"
    assert (told.read_text() if told.exists() else None) == kept


@pytest.mark.slow
def test_a_py_spy_that_hangs_is_ended(
    tmp_path: Path, begin: Start, put_py_spy: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = begin()
    put_py_spy(f"exec sleep 611.{os.getpid()}")
    monkeypatch.setattr(stacks, "_PY_SPY_S", 0.5)
    got = stacks.collect(tmp_path, {0: pid}, "hang", thorough=True)
    assert got[0] is not None
    eventually(lambda: not processes_naming(f"611.{os.getpid()}"))


def dump(*frames: str, others: str = "") -> str:
    main = "".join(f'  File "{frame.split(" ")[0]}", line 7 in {frame.split(" ")[1]}\n' for frame in frames)
    return f"{others}Current thread 0x00007f (most recent call first):\n{main}"


ELSEWHERE = 'Thread 0x00007e (most recent call first):\n  File "/x/torch/distributed/c10d.py", line 1 in wait\n\n'
SITE = "/venv/lib/python3.12/site-packages"


@pytest.mark.parametrize(
    "text, waits",
    [
        pytest.param(dump(f"{SITE}/torch/distributed/distributed_c10d.py all_reduce", "/x/t.py main"), True, id="c10d"),
        pytest.param(dump(f"{SITE}/torch/autograd/graph.py _engine_run_backward", "/x/t.py main"), True, id="backward"),
        pytest.param(dump(f"{SITE}/torch/nn/parallel/distributed.py _sync_buffers"), True, id="ddp"),
        pytest.param(dump("/x/t.py sleep", f"{SITE}/torch/distributed/fsdp/api.py forward"), False, id="inside-fsdp"),
        pytest.param(dump("/x/train.py <module>", others=ELSEWHERE), False, id="another-thread-waits"),
        pytest.param(dump(f"{SITE}/torch/autograd/graph.py register_hook"), False, id="not-backward"),
        pytest.param("", None, id="nothing"),
        pytest.param(None, None, id="no-answer"),
        pytest.param("<no Python frame>\n", None, id="no-frame"),
    ],
)
def test_who_waits_for_others(text: str | None, waits: bool | None) -> None:
    assert stacks.in_collective(text) is waits
    assert (stacks.place(text) is None) is (waits is None)


def test_where_a_rank_stands() -> None:
    text = dump(f"{SITE}/torch/distributed/distributed_c10d.py all_reduce", "/x/t.py main")
    assert re.fullmatch(r"distributed/distributed_c10d\.py:\d+ in all_reduce", stacks.place(text) or "")
