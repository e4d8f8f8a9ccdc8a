"""The figure of a job beside what the program itself says of its steps, by the script that measures both."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "scripts" / "bare_loop.py"


@pytest.mark.parametrize("options", [[], ["--ranks", "2"], ["--trainer"]], ids=["loop", "two-ranks", "trainer"])
def test_the_figure_is_the_programs_own(options: list[str]) -> None:
    """How near the two are is for a quiet machine to tell; here, that nothing is counted twice or left out."""
    command = [sys.executable, str(SCRIPT), "--pairs", "1", "--steps", "12", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    ratios = dict(re.findall(r"^(harness over [^:]+): +median (\d+\.\d+) ", done.stdout, re.MULTILINE))
    assert set(ratios) == {"harness over bare program", "harness over the program's own, one job"}, done.stdout
    assert 0.5 < float(ratios["harness over the program's own, one job"]) < 2
    assert float(ratios["harness over bare program"]) > 0
