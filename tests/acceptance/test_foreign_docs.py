"""docs/foreign-programs.md followed literally: its files, laid out as it says, and its commands."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.record import Kind, Record, read_record
from tests.acceptance.conftest import Bench, probe_errors
from tests.acceptance.stacks import EXAMPLES, FMS, ROOT, TRL, ForeignStack

pytestmark = pytest.mark.slow

TEXT = (ROOT / "docs" / "foreign-programs.md").read_text()


def follow(heading: str, root: Path, stack: ForeignStack | None = None) -> Record:
    """Write the section's files where its text says, run its command, and return the record of the one case."""
    section = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    files = re.findall(r"`([\w./]+)`:\n\n```(?:python|yaml)\n(.*?)```", section, re.DOTALL)
    assert len(files) == section.count("```") / 2
    (root / "benchmarks" / "scenarios").mkdir(parents=True)
    shutil.copy(ROOT / "benchmarks" / "test_finetune.py", root / "benchmarks")
    shutil.copytree(EXAMPLES, root / "examples" / "stacks")
    (root / "pytest.ini").write_text("[pytest]\n")
    for name, content in files:
        (root / name).write_text(content)
    bench = Bench(root)
    if stack is not None:
        stack.lend(root / "cache")
    (command,) = re.findall(r"^    (pytest .+)$", section, re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command), "--no-aim", "-p", "no:cacheprovider"],
        cwd=root,
        env={**bench.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert probe_errors(bench.session) == []
    (path,) = bench.session.glob("*/record.json")
    return read_record(path)


def check_trained(record: Record, tokens: int) -> None:
    """The 8 steps of each example, on files that were made for it."""
    assert record.verdict is not None
    assert (record.verdict.kind, record.verdict.reason) == (Kind.NONE, "")
    assert record.measurements is not None
    assert (record.measurements.steps_seen, record.measurements.ranks) == (8, 1)
    assert record.measurements.loss_last is not None
    assert record.measurements.tokens["non_pad"] == tokens
    assert "arguments_differ" not in record.measurements.flags
    assert {name: asset.source for name, asset in record.assets.items()} == {"model": "made", "data": "made"}


def test_your_own_script(tmp_path: Path) -> None:
    check_trained(follow("Benchmark your own script", tmp_path), 8 * 8 * 32)


@pytest.mark.fms
def test_trl(tmp_path: Path) -> None:
    check_trained(follow("Benchmark TRL", tmp_path, TRL), 8 * 2 * 33)  # TRL ends each row by </s>


@pytest.mark.fms
def test_fms_hf_tuning(tmp_path: Path) -> None:
    check_trained(follow("Benchmark fms-hf-tuning", tmp_path, FMS), 8 * 2 * 32)


def test_the_command_that_makes_the_environment_of_fms_hf_tuning() -> None:
    """It is what tests of fms-hf-tuning run (stacks.py)."""
    (command,) = re.findall(r"^    harness stack (examples/stacks/fms-.*)$", TEXT, re.MULTILINE)
    assert [ROOT / word for word in command.split(" --no-deps ")] == [FMS.requirements, FMS.no_deps]
