"""What can go wrong around an Aim repo, made real: small disks, servers to lose, an interpreter without Aim."""

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.jobs import eventually

needs_aim = pytest.mark.skipif(importlib.util.find_spec("aim") is None, reason="needs aim")


def bare_python(folder: Path) -> Path:
    """An interpreter with nothing but the standard library; its venv is made in `folder`."""
    venv.create(folder, with_pip=False)
    return folder / "bin" / "python"


@contextmanager
def tmpfs(folder: Path, size: str) -> Iterator[Path]:
    """A disk of its own; skips the test where that may not be mounted."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True)
    if done.returncode != 0:
        pytest.skip("may not mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def make_read_only(disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)


def fill(path: Path) -> None:
    """Write to `path` until its disk is full."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def make_old(repo: Path, version: str) -> None:
    """A repo that another version of Aim has made."""
    (repo / ".aim").mkdir(parents=True)
    (repo / ".aim" / "VERSION").write_text(version)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


@contextmanager
def server(repo: Path) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    """(URL, process) of an Aim server over a new repo; signals are for its process group."""
    aim_cli = [sys.executable, "-c", "import sys; from aim.cli.cli import cli_entry_point as go; go()"]
    repo.mkdir()
    subprocess.run([*aim_cli, "init", "--repo", str(repo)], check=True, capture_output=True, timeout=60)
    port = free_port()
    argv = [*aim_cli, "server", "--repo", str(repo), "--host", "127.0.0.1", "--port", str(port)]
    log = (repo / "server.log").open("wb")
    with log, subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True) as process:
        try:
            eventually(lambda: answers(port))
            yield f"aim://127.0.0.1:{port}", process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def answers(port: int) -> bool:
    with socket.socket() as probing:
        return probing.connect_ex(("127.0.0.1", port)) == 0
