"""scripts/gpu_check.py on a machine without a GPU, and with a driver that torch cannot use."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from harness.journal import read_rank
from harness.probe.layout import JobPaths
from harness.scenario import Case, load_scenarios, resolved
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
    assert told["machine"]["figures"]["doctor"]["shm_bytes"] > 0
    if driver:
        assert told["NVML calls"]["figures"]["cost"]["gpm"]["median_us"] > 0
        assert told["NVML calls"]["figures"]["cost"]["power"]["median_us"] > 0
    page = (out / "gpu_check.md").read_text()
    assert done.stdout == page + "\n"
    assert "torch sees no GPU" in page


SCRIPTS = SCRIPT.parent
BARE = """
import json, sys
from pathlib import Path
import gpu_check, bare_jobs
tiny = bare_jobs.jobs()["small"] | {"gpus": None, "model": bare_jobs.model("tiny-llama", "float32"), "method": METHOD}
tiny["training"] = {"per_device_train_batch_size": 2, "max_steps": 8, "learning_rate": 1e-3, "logging_steps": 1}
tiny["data"] = tiny["data"] | {"sequence_length": 64}
told = bare_jobs.run(Path(sys.argv[1]), tiny, limit_s=100, gpus=[], interval_s=0.1)
print(json.dumps([told, sorted({"pytest", "pydantic", "yaml", "typer", "torch"} & set(sys.modules))]))
"""


@pytest.mark.parametrize("method", ["bare_jobs.FULL", "bare_jobs.LORA"])
def test_jobs_need_nothing_but_what_they_train_with(tmp_path: Path, method: str) -> None:
    code = BARE.replace("METHOD", method)
    environ = os.environ | {"PYTHONPATH": f"{SCRIPTS}"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "job")], env=environ, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    told, heavy = json.loads(done.stdout.splitlines()[-1])
    assert heavy == []
    assert (told["exit_code"], told["steps"], told["exception"]) == (0, 8, None)
    steps = read_rank(JobPaths(tmp_path / "job"), 0).of("step")[3:]
    assert all(step["overhead"] == ["log"] for step in steps)
    times = [step["seconds"] - step["overhead_seconds"] for step in steps]
    assert told["step_time_median_s"] == pytest.approx(statistics.median(times))
    assert told["non_pad_tokens_per_s"] == pytest.approx(5 * 2 * 64 / sum(times))


def test_a_job_that_fails_says_how(tmp_path: Path) -> None:
    code = BARE.replace("METHOD", "bare_jobs.FULL").replace('"max_steps": 8', '"max_steps": 8, "optim": "none such"')
    environ = os.environ | {"PYTHONPATH": f"{SCRIPTS}"}
    argv = [sys.executable, "-c", code, str(tmp_path / "job")]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, cwd=tmp_path, check=True)
    told, _ = json.loads(done.stdout.splitlines()[-1])
    assert (told["exit_code"], told["steps"], told["step_time_median_s"]) == (1, 0, None)
    assert told["exception"]["type"] == "builtins.ValueError"
    assert "none such" in told["exception"]["message"]


def test_both_ways_run_the_same_jobs(tmp_path: Path) -> None:
    code = "import json, gpu_check, bare_jobs; print(json.dumps([gpu_check.SCENARIOS, bare_jobs.jobs()]))"
    environ = os.environ | {"PYTHONPATH": f"{SCRIPTS}"}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, check=True, cwd=tmp_path)
    text, bare = json.loads(done.stdout)
    (tmp_path / "check.yaml").write_text(text)
    for case in load_scenarios(tmp_path):
        assert isinstance(case, Case)
        scenario = resolved(case.scenario)
        told = bare.pop(scenario["name"])
        method, data = ({k: v for k, v in scenario[key].items() if v is not None} for key in ("method", "data"))
        known = {key: scenario[key] for key in ("model", "training", "gpus")} | {"method": method, "data": data}
        assert json.loads(json.dumps(known)) == told
    assert bare == {}
