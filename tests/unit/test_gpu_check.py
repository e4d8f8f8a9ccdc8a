"""scripts/gpu_check.py on a machine without a GPU, and with a driver that torch cannot use."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import FakeNvml

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu_check.py"

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("driver", [False, True], ids=["no-driver", "driver"])
def test_what_cannot_be_done_is_skipped_with_the_reason(fake_nvml: FakeNvml, tmp_path: Path, driver: bool) -> None:
    environ = fake_nvml.environ(1) | ({} if driver else {"LD_LIBRARY_PATH": ""})
    out = tmp_path / "out"
    done = subprocess.run([sys.executable, str(SCRIPT), "--out", str(out)], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads((out / "gpu_check.json").read_text())
    states = {name: part["state"] for name, part in told.items()}
    assert states == {
        "machine": "done",
        "NVML calls": "done" if driver else "skipped",
        "load": "skipped",
        "out of memory": "skipped",
        "jobs": "skipped",
    }
    assert told["machine"]["figures"]["cuda_available"] is False
    assert all(part["why"] for part in told.values() if part["state"] == "skipped")
    if driver:
        assert told["NVML calls"]["figures"]["cost"]["power"]["median_us"] > 0
    page = (out / "gpu_check.md").read_text()
    assert done.stdout == page + "\n"
    assert "torch sees no GPU" in page
