"""The stacks of a job's ranks, as they stand: asked for by a signal, with py-spy, and of NCCL's flight recorder.

The probe has registered faulthandler for the signal, so a rank answers whatever it does, unless the kernel holds it."""

import contextlib
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

# One that programs leave alone: SIGUSR1 and SIGUSR2 are schedulers' and torch's own (c10/util/signal_handler.cpp).  A
# number, as SIGRTMIN differs between C libraries; 60 is a real-time signal in all.  The probe registers the same.
STACKS_SIGNAL = 60

FLIGHT_RECORDER = "flight-recorder-rank-"  # in node-0: begin of the names of dumps, and of the pipes that ask for them

_ANSWER_S = 1.5  # faulthandler takes milliseconds; the machine may be busy
_DUMP_S = 3.0  # torch looks into the pipe once a second (TORCH_NCCL_COORD_CHECK_MILSEC)
_PY_SPY_S = 5.0
_POLL_S = 0.05
_TEXT_BYTES = 1 << 20

_THREAD = re.compile(r"^(?:Current thread|Thread) .*\(most recent call first\):\s*$", re.MULTILINE)
_FRAME = re.compile(r'^\s+File "([^"]*)", line (\S+) in (.+?)\s*$', re.MULTILINE)
# (part of the file name, functions) of the innermost frame of a thread that waits for other ranks.  In a backward pass
# the waiting is in C++ (DistributedDataParallel's reducer), below autograd's own frame.
_COLLECTIVE = (
    ("/torch/distributed/", None),
    ("/torch/nn/parallel/distributed.py", None),
    ("/torch/autograd/graph.py", {"_engine_run_backward"}),  # torch 2.3 on
    ("/torch/autograd/__init__.py", {"backward", "grad"}),  # before
)


def collect(folder: Path, ranks: Mapping[int, int], why: str, *, thorough: bool) -> dict[int, str | None]:
    """Append the stacks of `ranks` (rank -> process id) to their stacks.txt; what each answered, None for nothing.

    `thorough`: py-spy, too, where it is installed, and the flight recorder's dumps are waited for; takes up to 5 s
    instead of 1.5 s.  Raises nothing for what a rank or the disk does."""
    asked = {rank: _ask(folder, rank, pid, why) for rank, pid in ranks.items()}
    answers = {_stacks(folder, rank): start for rank, start in asked.items() if start is not None}
    dumps = dict.fromkeys(_ask_flight_recorders(folder / "node-0"), 0)
    spies = _start_py_spy(ranks) if thorough else []
    begun, sizes = time.monotonic(), dict[Path, int]()
    while True:
        passed = time.monotonic() - begun
        before, sizes = sizes, {path: _size(path) for path in (*answers, *dumps)}
        # A file that has grown, and no longer grows, is whole.
        growing = {path for path, size in sizes.items() if not before.get(path) == size > (answers | dumps)[path]}
        waits = passed < _ANSWER_S and not growing.isdisjoint(answers)
        if thorough:
            waits = waits or (passed < _DUMP_S and not growing.isdisjoint(dumps))
            waits = waits or (passed < _PY_SPY_S and any(spy.process.poll() is None for spy in spies))
        if not waits:
            break
        time.sleep(_POLL_S)
    for spy in spies:
        _end_py_spy(folder, spy)
    return {rank: _answer(folder, rank, start) for rank, start in asked.items()}


def in_collective(text: str | None) -> bool | None:
    """Whether the main thread of a dump waits for other ranks, by its innermost Python frame; None: no dump."""
    frame = _innermost(text)
    if frame is None:
        return None
    return any(part in frame[1] and (names is None or frame[3] in names) for part, names in _COLLECTIVE)


def place(text: str | None) -> str | None:
    """Where the main thread of a dump stands: `FILE:LINE in FUNCTION`, the file by its last two parts."""
    frame = _innermost(text)
    return None if frame is None else f"{'/'.join(frame[1].rsplit('/', 2)[-2:])}:{frame[2]} in {frame[3]}"


def _innermost(text: str | None) -> "re.Match[str] | None":
    threads = _THREAD.split(text or "")[1:]
    return _FRAME.search(threads[-1]) if threads else None  # the main thread is the oldest, and told last


def remove_pipes(folder: Path) -> None:
    """Take away the pipes of the flight recorders: who copies the folder later would wait at them."""
    for pipe in folder.glob(f"{FLIGHT_RECORDER}*.pipe"):
        with contextlib.suppress(OSError):
            if stat.S_ISFIFO(pipe.lstat().st_mode):
                pipe.unlink()


def _stacks(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}" / "stacks.txt"


def _ask(folder: Path, rank: int, pid: int, why: str) -> int | None:
    """Send the signal; from which byte of the file on the answer stands.  None: the process does not listen."""
    state, listens = _status(pid)
    path = _stacks(folder, rank)
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    _append(path, f"=== {at} {why}: process {pid}, state {state}\n")
    start = _size(path)
    if listens:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            os.kill(pid, STACKS_SIGNAL)
            return start
    _append(path, "=== no stacks: the process does not listen to the signal (the program has replaced itself)\n")
    return None


def _answer(folder: Path, rank: int, start: int | None) -> str | None:
    path = _stacks(folder, rank)
    if start is None:
        return None
    text = _read(path, start)
    if not text:
        _append(path, f"=== no stacks within {_ANSWER_S:g} s: the process is stopped, or the kernel holds it\n")
    return text or None


def _status(pid: int) -> tuple[str, bool]:
    """The state of a process, and whether it listens to the signal: one that does not would die of it."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        return fields["State"], bool(int(fields["SigCgt"], 16) >> (STACKS_SIGNAL - 1) & 1)
    return "gone", False


def _ask_flight_recorders(node: Path) -> list[Path]:
    """Write to the pipes that torch listens at (TORCH_NCCL_DEBUG_INFO_PIPE_FILE); the dumps that are to appear."""
    dumps = []
    for pipe in node.glob(f"{FLIGHT_RECORDER}*.pipe"):
        with contextlib.suppress(OSError):  # nobody listens any more
            if stat.S_ISFIFO(pipe.lstat().st_mode):
                descriptor = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
                try:
                    os.write(descriptor, b"1\n")
                finally:
                    os.close(descriptor)
                dumps.append(pipe.with_suffix(""))
    return dumps


@dataclass(frozen=True)
class Spy:
    """A py-spy that looks at a rank; what it says comes into a file in memory."""

    rank: int
    process: "subprocess.Popen[bytes]"
    output: int


def _start_py_spy(ranks: Mapping[int, int]) -> list[Spy]:
    """The py-spy of the harness's environment, or of PATH; it may lack the right to trace."""
    places = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    program = shutil.which("py-spy", path=places)
    started = []
    for rank, pid in ranks.items() if program is not None else ():
        command = [str(program), "dump", "--pid", str(pid)]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            output = os.memfd_create("py-spy")
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={})
            started.append(Spy(rank, process, output))
    return started


def _end_py_spy(folder: Path, spy: Spy) -> None:
    """Write what it said to py-spy.txt, without its head: the command line, which may hold secrets."""
    if spy.process.poll() is None:
        spy.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            spy.process.wait(1.0)
    said = os.pread(spy.output, _TEXT_BYTES, 0).decode(errors="replace")
    os.close(spy.output)
    found = re.search(r"^Python v", said, re.MULTILINE)
    if found is not None:
        said = said[found.start() :]
    elif said.startswith("Process "):
        return
    if said:
        _append(_stacks(folder, spy.rank).with_name("py-spy.txt"), said)


def _open(path: Path) -> int:
    """For appending; not through a link, and not waiting for the other end of a pipe."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    return os.open(path, flags, 0o600)


def _append(path: Path, text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk: what is known stands in the supervisor's journal, too
        descriptor = _open(path)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _read(path: Path, start: int) -> str:
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, _TEXT_BYTES, start).decode(errors="replace")
        finally:
            os.close(descriptor)
    return ""
