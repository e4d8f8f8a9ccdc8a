"""The sampler as the supervisor starts it: by path, beside a process tree."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.engines.local import LocalJob
from harness.journal import read_events
from harness.sampling import sampler
from harness.sampling.sampler import SAMPLE_FIELDS
from tests.aim_faults import fill, tmpfs
from tests.conftest import FakeNvml
from tests.unit.jobs import DEADLINE_S, argv_of, events, eventually, make_job, processes_naming, read_end

# A root with one child, which has one child that holds 64 MiB, and some work behind it that ended processes did.
TREE = """
import os, subprocess, sys, time
out, command = sys.argv[1], sys.argv[2:]
subprocess.run([sys.executable, "-S", "-c", "sum(range(6_000_000))"])
inner = "import sys, time; memory = b'x' * 2**26; open(sys.argv[1] + '/up', 'w').close(); time.sleep(600)"
outer = "import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', *sys.argv[1:]])"
child = subprocess.Popen([sys.executable, "-S", "-c", outer, inner, out])
while not os.path.exists(out + "/up"):
    time.sleep(0.01)
beside = subprocess.Popen([*command, "--root-pid", str(os.getpid())])
with open(out + "/sampler.new", "w") as file:
    file.write(str(beside.pid))
os.rename(file.name, out + "/sampler")
input()
"""


@contextmanager
def sampled(folder: Path, interval_s: float) -> Iterator["subprocess.Popen[bytes]"]:
    """A root process that runs a tree and a sampler; killed at the end."""
    command = sampler.command(folder / "system.jsonl", interval_s)
    argv = [sys.executable, "-S", "-c", TREE, str(folder), *command]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as root:
        try:
            yield root
        finally:
            for pid in processes_naming(folder):
                os.kill(pid, signal.SIGKILL)


def journal(folder: Path) -> list[dict[str, Any]]:
    path = folder / "system.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def journal_of_whole_lines(folder: Path) -> list[dict[str, Any]]:
    """As a reader sees it that leaves out what is torn."""
    return [event for _, event in read_events(folder / "system.jsonl")]


def lines(folder: Path) -> list[dict[str, Any]]:
    """The samples."""
    return [event for event in journal(folder) if event["e"] == "sample"]


def pid_of_sampler(folder: Path) -> int:
    return int((folder / "sampler").read_text())


def test_samples_of_a_tree(tmp_path: Path) -> None:
    with sampled(tmp_path, 0.05):
        eventually(lambda: len(lines(tmp_path)) >= 12)
        before = len(lines(tmp_path))
        os.kill(pid_of_sampler(tmp_path), signal.SIGTERM)
        eventually(lambda: pid_of_sampler(tmp_path) not in processes_naming(tmp_path))
    samples = lines(tmp_path)
    assert len(samples) > before  # the last one
    for sample in samples:
        assert {key: set(value) for key, value in sample.items() if isinstance(value, dict)} == {
            group: set(fields) for group, fields in SAMPLE_FIELDS.items()
        }
        assert sample["e"] == "sample"
        assert sample["tree"]["processes"] == 2  # neither the root nor the sampler
        assert sample["tree"]["rss_bytes"] > 2**26
        assert sample["tree"]["cpu_s"] > 0.02  # of the child that ended before the sampler came
        assert sample["host"]["memory_total_bytes"] >= sample["host"]["memory_available_bytes"] > 0
        assert sample["sampler"]["poll_s"] > 0
    with_pss = [number for number, sample in enumerate(samples[:11], 1) if sample["tree"]["pss_bytes"] is not None]
    assert with_pss == [1, 2, 3, 5, 10]
    assert samples[-1]["tree"]["pss_bytes"] > 2**26
    assert samples[0]["host"]["cpu_percent"] is None
    assert all(0 <= sample["host"]["cpu_percent"] <= 100 for sample in samples[1:] if sample["host"]["cpu_percent"])
    used = [sample["tree"]["cpu_s"] for sample in samples]
    assert used == sorted(used)


def test_the_tree_may_end_before_the_sampler(tmp_path: Path) -> None:
    with sampled(tmp_path, 0.05) as root:
        eventually(lambda: lines(tmp_path) and (tmp_path / "sampler").exists())
        for pid in processes_naming(tmp_path):
            if pid not in (root.pid, pid_of_sampler(tmp_path)):
                os.kill(pid, signal.SIGKILL)
        eventually(lambda: lines(tmp_path)[-1]["tree"]["rss_bytes"] is None)
        assert all(sample["tree"]["rss_bytes"] != 0 != sample["tree"]["pss_bytes"] for sample in lines(tmp_path))
        used = [sample["tree"]["cpu_s"] for sample in lines(tmp_path)]
        assert used == sorted(used)


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    with sampled(tmp_path, 0.05) as root:
        eventually(lambda: lines(tmp_path) and (tmp_path / "sampler").exists())
        root.kill()
        eventually(lambda: pid_of_sampler(tmp_path) not in processes_naming(tmp_path))


def test_a_sampler_that_is_started_anew_tells_of_the_gap(tmp_path: Path) -> None:
    with sampled(tmp_path, 0.05) as root:
        eventually(lambda: len(lines(tmp_path)) >= 3 and (tmp_path / "sampler").exists())
        os.kill(pid_of_sampler(tmp_path), signal.SIGKILL)
        eventually(lambda: pid_of_sampler(tmp_path) not in processes_naming(tmp_path))
        before = journal(tmp_path)
        with (tmp_path / "system.jsonl").open("a") as file:
            file.write('{"t":1,"m":2,"e":"sam')  # what a SIGKILL may leave
        command = [*sampler.command(tmp_path / "system.jsonl", 0.05), "--root-pid", str(root.pid)]
        with subprocess.Popen(command) as anew:
            eventually(lambda: len(journal_of_whole_lines(tmp_path)) > len(before) + 2)
            anew.terminate()
    after = journal_of_whole_lines(tmp_path)
    assert after[: len(before)] == before  # to the last line
    gap, start, sample = after[len(before) : len(before) + 3]
    assert (gap["e"], start["e"], sample["e"]) == ("gap", "start", "sample")
    assert gap["from_m"] == before[-1]["m"]
    assert gap["seconds"] == pytest.approx(gap["m"] - before[-1]["m"], abs=0.05)
    assert sample["tree"]["cpu_s"] >= before[-1]["tree"]["cpu_s"]
    assert sample["tree"]["write_bytes"] >= before[-1]["tree"]["write_bytes"]


def test_a_disk_that_is_full_for_a_while_costs_the_lines_of_that_while(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", "1m") as disk:
        journal = disk / "system.jsonl"
        argv = [*sampler.command(journal, 0.05), "--root-pid", str(os.getpid())]
        with subprocess.Popen(argv, stderr=subprocess.PIPE) as process:
            eventually(lambda: len(lines(disk)) >= 3)
            before = lines(disk)
            fill(disk / "filler")
            eventually(
                lambda: b"journal lost a line" in (os.read(process.stderr.fileno(), 200) if process.stderr else b"")
            )
            full = lines(disk)
            (disk / "filler").unlink()
            eventually(lambda: len(journal_of_whole_lines(disk)) >= len(full) + 3)
            process.terminate()
            assert process.wait(DEADLINE_S) == 0
        after = [event for event in journal_of_whole_lines(disk) if event["e"] == "sample"]
    assert after[: len(before)] == before
    assert after[: len(full)] == full
    assert len(after) >= len(full) + 3


def test_what_it_costs_is_told_as_the_kernel_counts_it(tmp_path: Path) -> None:
    with sampled(tmp_path, 0.05):
        eventually(lambda: len(lines(tmp_path)) >= 10 and (tmp_path / "sampler").exists())
        fields = Path(f"/proc/{pid_of_sampler(tmp_path)}/stat").read_bytes().rpartition(b")")[2].split()
        outside = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        told = lines(tmp_path)
    assert told[0]["sampler"]["busy_fraction"] is None
    assert outside == pytest.approx(told[-1]["sampler"]["cpu_s"], abs=0.05)  # the kernel counts in hundredths
    shares = [line["sampler"]["busy_fraction"] * (line["m"] - early["m"]) for early, line in itertools.pairwise(told)]
    used = told[-1]["sampler"]["cpu_s"] - told[0]["sampler"]["cpu_s"]
    assert sum(shares) == pytest.approx(used, rel=0.25, abs=0.01)


@pytest.mark.slow
def test_the_script_that_measures_what_it_costs(fake_nvml: FakeNvml) -> None:
    script = Path(__file__).parents[3] / "scripts" / "sampler_cost.py"
    options = ["--gpus", "2", "--processes", "3", "--seconds", "2", "--nvml", str(fake_nvml.folder)]
    done = subprocess.run([sys.executable, script, *options], check=True, capture_output=True, text=True)
    assert done.stdout.startswith("2 GPUs, 3 processes\n")
    assert re.search(r"^sampler: \d+\.\d+% of one core from outside, \d+\.\d+% by itself$", done.stdout, re.MULTILINE)


def test_what_lies_beside_the_package_hides_no_module_of_the_library(tmp_path: Path) -> None:
    """Where the harness is installed, its parent folder is site-packages."""
    site = tmp_path / "site-packages"
    shutil.copytree(Path(sampler.__file__).parents[1], site / "harness")
    (site / "argparse.py").write_text("raise ImportError('not the library')\n")
    script = site / "harness" / "sampling" / "__main__.py"
    subprocess.run([sys.executable, "-I", "-S", str(script), "--help"], check=True, capture_output=True)


@pytest.mark.parametrize("option", ["-I", "-IS"])
def test_it_starts_by_path_without_an_installation_and_without_heavy_imports(tmp_path: Path, option: str) -> None:
    script = Path(sampler.__file__).with_name("__main__.py")
    out = tmp_path / "system.jsonl"
    argv = [sys.executable, option, "-X", "importtime", str(script), "--out", str(out), "--root-pid", "1"]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, cwd=tmp_path) as process:
        eventually(lambda: lines(tmp_path))
        process.terminate()
        _, said = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in said.decode().splitlines()}
    assert "harness" in imported
    assert not imported & {"pydantic", "pytest", "torch", "psutil", "pynvml", "yaml", "subprocess", "asyncio"}


def test_a_supervised_job_is_sampled_to_its_last_cpu_second(tmp_path: Path) -> None:
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    ended = [
        sys.executable,
        "-S",
        "-c",
        f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {burn!r}])",
    ]
    job = make_job(tmp_path / "job", ended, sampler=sampler.command(tmp_path / "system.jsonl", 600))
    with LocalJob.start(job, argv_of(job), os.environ) as running:
        assert running.wait(DEADLINE_S)
    assert read_end(job)["exit_code"] == 0
    last = lines(tmp_path)[-1]
    assert last["tree"]["processes"] == 0  # it goes after the command
    assert last["tree"]["rss_bytes"] is last["tree"]["pss_bytes"] is None
    assert last["tree"]["cpu_s"] >= 0.45
    assert [event["exit_code"] for event in events(job) if event["e"] == "sampler_ended"] == [0]
