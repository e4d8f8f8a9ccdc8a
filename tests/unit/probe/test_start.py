"""A rank's own start: where its output goes, and that it does not outlive its parent."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.probe.layout import JobPaths
from harness.probe.staging import stage, start_command
from harness.probe.start import process_started
from tests.unit.probe.jobs import DEADLINE_S, run

STAYS = """
import os, sys, time
with open(sys.argv[1] + ".partial", "w") as file:
    file.write(str(os.getpid()))
os.rename(sys.argv[1] + ".partial", sys.argv[1])
time.sleep(600)
"""


def is_alive(pid: int) -> bool:
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def test_a_rank_dies_with_its_parent(tmp_path: Path) -> None:
    job = JobPaths(tmp_path / "job")
    stage(job)
    program, told = tmp_path / "program.py", tmp_path / "pid"
    program.write_text(STAYS)
    command = [sys.executable, "-u", *start_command(job, str(program), str(told))]
    parent = subprocess.Popen([sys.executable, "-c", f"import subprocess; subprocess.run({command!r})"])
    deadline = time.monotonic() + DEADLINE_S
    while not told.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    pid = int(told.read_text())
    assert is_alive(pid)
    parent.kill()
    parent.wait()
    while is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_output_of_children_and_c_code_goes_to_the_rank(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, subprocess\nos.write(2, b'raw ')\nsubprocess.run('echo child; echo oops >&2', shell=True)\n"
    )
    ended = run(tmp_path / "job", str(program), environ={"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"})
    assert (ended.launcher, ended.stdout(3), ended.stderr(3)) == ("", "child\n", "raw oops\n")
    start = ended.one("start", rank=3)
    assert (start["rank"], start["local_rank"], start["world_size"]) == (3, 1, 8)


def test_a_crash_leaves_a_traceback(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    ended = run(tmp_path / "job", str(program))
    assert ended.exit_code == -11
    assert "Fatal Python error: Segmentation fault" in ended.stderr()
    assert not ended.events("end")


IN_THE_PROBE = """
class Slow(Exception):
    def __str__(self):
        if not raised:
            os.kill(os.getpid(), signal.SIGCHLD)
        return "first"

raise Slow
"""
AFTER_A_PIPE = """
reader, writer = os.pipe()
if os.fork() == 0:
    os.close(writer)
    time.sleep(0.05)
    os._exit(3)
os.close(writer)
if not os.read(reader, 1):
    raise EOFError("first")
"""


@pytest.mark.parametrize("program", [IN_THE_PROBE, AFTER_A_PIPE], ids=["in-the-probe", "after-a-pipe"])
def test_what_a_handler_of_the_program_raises_while_its_end_is_noted(tmp_path: Path, program: str) -> None:
    """torch's handler of SIGCHLD tells so why a DataLoader's worker is gone."""
    handler = "def handler(*_):\n    raised.append(1)\n    raise RuntimeError('second')\n"
    start = f"import os, signal, time\nraised = []\n{handler}signal.signal(signal.SIGCHLD, handler)\n"
    (tmp_path / "program.py").write_text(start + program)
    ended = run(tmp_path / "job", str(tmp_path / "program.py"))
    error = ended.error()
    assert error is not None, ended.logs()
    assert (error["type"], error["message"]) == ("builtins.RuntimeError", "second")
    assert [(link["message"], link["link"]) for link in error["chain"]] == [("first", "context")]
    assert (ended.exit_code, ended.one("end")["exit_code"], ended.events("probe_error")) == (1, 1, [])


def test_usage(tmp_path: Path) -> None:
    job = JobPaths(tmp_path)
    stage(job)
    command = [sys.executable, str(job.probe / "__main__.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr[:6]) == (1, "usage:")


def test_when_this_process_started() -> None:
    started = process_started()
    assert started is not None
    assert os.stat(f"/proc/{os.getpid()}").st_mtime - 60 < started <= time.time()
