"""The sampler and the doctor inside a real control group, limited as a container is: they report its limits."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.sampling import sampler
from harness.telemetry import summarise
from harness.watch.cgroups import cgroup_chain
from tests.unit.jobs import DEADLINE_S, eventually

MEMORY_BYTES = 512 * 2**20
CPUS = 0.5

LIMITS = {
    1: {"memory": {"memory.limit_in_bytes": f"{MEMORY_BYTES}"},
        "cpu": {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": f"{int(CPUS * 100000)}"}},
    2: {"memory": {"memory.max": f"{MEMORY_BYTES}"}, "cpu": {"cpu.max": f"{int(CPUS * 100000)} 100000"}},
}  # fmt: skip


@dataclass(frozen=True)
class Container:
    """Control groups that a process may be put into."""

    folders: tuple[Path, ...]

    def command(self, *argv: str) -> list[str]:
        """The argv that runs another one inside."""
        enter = "".join(f'echo $$ > "{folder}/cgroup.procs" && ' for folder in self.folders)
        return ["sh", "-c", f'{enter}exec "$@"', "sh", *argv]


@pytest.fixture
def container() -> Iterator[Container]:
    """Limited in memory and CPU; the test is skipped where no such group can be made."""
    made: list[Path] = []
    with ExitStack() as stack:
        for controller in ("memory", "cpu"):
            version, chain = cgroup_chain(controller)
            if not chain:
                pytest.skip(f"no control group rules {controller} here")
            folder = chain[0] / f"harness-limits-{os.getpid()}"
            if folder not in made:
                try:
                    folder.mkdir()
                except OSError as error:
                    pytest.skip(f"no control group can be made: {error}")
                stack.callback(folder.rmdir)
                made.append(folder)
            for name, value in LIMITS[version][controller].items():
                try:
                    (folder / name).write_text(value)
                except OSError as error:
                    pytest.skip(f"{controller} cannot be limited: {error}")
        yield Container(tuple(made))


def test_the_sampler_reports_the_limits_and_the_groups_own_memory(container: Container, tmp_path: Path) -> None:
    journal = tmp_path / "system.jsonl"

    def events() -> list[dict[str, object]]:
        text = journal.read_text() if journal.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    argv = [*sampler.command(journal, 0.1), "--root-pid", str(os.getpid())]
    with subprocess.Popen(container.command(*argv)) as process:
        try:
            eventually(lambda: len(events()) >= 4)
            process.terminate()
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()
    told = summarise(events())
    assert (told.memory_limit_bytes, told.cpu_limit) == (MEMORY_BYTES, CPUS)
    assert told.job.host is not None
    assert told.job.host.cgroup_memory_peak_bytes is not None
    assert 0 < told.job.host.cgroup_memory_peak_bytes <= MEMORY_BYTES  # the sampler's alone, not the machine's
    assert told.job.host.cpu_throttled_s is not None


@pytest.mark.slow
def test_the_doctor_reports_the_limits(container: Container, tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "from harness.cli import main; main()", "doctor", "--results", str(tmp_path)]

    def doctor(*options: str) -> str:
        done = subprocess.run(container.command(*argv, *options), capture_output=True, text=True, timeout=DEADLINE_S)
        assert done.returncode in (0, 1), done.stderr
        return done.stdout

    facts = json.loads(doctor("--json"))["facts"]
    assert (facts["memory_limit_bytes"], facts["cpu_limit"]) == (MEMORY_BYTES, CPUS)
    assert facts["memory_used_bytes"] <= MEMORY_BYTES < facts["memory_total_bytes"]
    screen = doctor()
    assert "limited to 512.00 MiB" in screen
    assert "of which the control group allows 0.5 at once" in screen
