"""Inside a real control group with limits, as in a container, those are what sampler and doctor tell."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from harness.sampling import sampler
from harness.watch.cgroups import cgroup_chain
from tests.unit.jobs import DEADLINE_S, eventually

LIMIT = 3 * 2**30
BURN = "import time\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass"


@pytest.fixture
def limited() -> Iterator[list[Path]]:
    """Groups below this process's own, with 3 GiB of memory and half a CPU; skips where they cannot be made."""
    made: list[Path] = []
    try:
        make_groups(made)
        yield made
    except OSError as error:
        pytest.skip(f"control groups with limits cannot be made here: {error}")
    finally:
        for folder in made:
            eventually(partial(is_empty, folder))
            folder.rmdir()


def make_groups(made: list[Path]) -> None:
    for controller in ("memory", "cpu"):
        version, folders = cgroup_chain(controller)
        if not folders:
            raise OSError(f"none rules {controller}")
        folder = folders[0] / f"harness-test-{os.getpid()}"
        if folder not in made:
            folder.mkdir()
            made.append(folder)
        if controller == "memory":
            write(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes"), str(LIMIT))
        elif version == 2:
            write(folder / "cpu.max", "50000 100000")
        else:
            write(folder / "cpu.cfs_period_us", "100000")
            write(folder / "cpu.cfs_quota_us", "50000")


def write(path: Path, text: str) -> None:
    with path.open("r+") as file:  # never made: without the controller the file is not there
        file.write(text)


def is_empty(folder: Path) -> bool:
    return not (folder / "cgroup.procs").read_text()


def inside(groups: list[Path], command: list[str]) -> list[str]:
    """The command, started in the groups."""
    joins = "".join(f"echo $$ > {folder}/cgroup.procs; " for folder in groups)
    return ["sh", "-c", f'{joins}exec "$@"', "sh", *command]


@pytest.mark.slow
def test_the_sampler_tells_the_limits_and_the_throttling(limited: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "system.jsonl"
    command = [*sampler.command(out, 0.2), "--root-pid", str(os.getpid())]
    with subprocess.Popen(inside(limited, command)) as process:
        subprocess.run(inside(limited, [sys.executable, "-I", "-S", "-c", BURN]), check=True)
        time.sleep(0.5)
        process.terminate()
        assert process.wait(DEADLINE_S) == 0
    start, *samples = [json.loads(line) for line in out.read_text().splitlines()]
    assert (start["memory_limit_bytes"], start["cpu_limit"]) == (LIMIT, 0.5)
    last = samples[-1]["cgroup"]
    assert 0 < last["memory_bytes"] < LIMIT
    assert last["cpu_throttled_s"] > 0


@pytest.mark.slow
def test_the_doctor_tells_the_limits(limited: list[Path], tmp_path: Path) -> None:
    doctor = [sys.executable, "-c", "from harness.cli import main; main()", "doctor", "--results", str(tmp_path)]
    done = subprocess.run(inside(limited, [*doctor, "--json"]), capture_output=True, text=True, timeout=180)
    told = json.loads(done.stdout)
    assert (told["facts"]["memory_limit_bytes"], told["facts"]["cpu_limit"]) == (LIMIT, 0.5)
    texts = {found["subject"]: found["text"] for found in told["findings"]}
    assert "limited to 3.00 GiB" in texts["control group"]
    assert "allows 0.5 at once" in texts["CPUs"]
