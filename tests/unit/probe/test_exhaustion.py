"""A GPU's memory that runs out, with a stand-in for torch's CUDA half: there is no GPU here."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.probe.errors import describe
from harness.probe.exhaustion import figures, ran_out
from tests.unit.probe.jobs import Ended, run

# A package `torch` beside the program; its answers are numbers that the tests know again.
TORCH = {
    "__init__.py": """
class OutOfMemoryError(RuntimeError):
    pass
from . import cuda, optim
""",
    "cuda/__init__.py": """
import os
from types import SimpleNamespace
from . import memory
_up, _queued = False, []
def is_initialized():
    return _up
def init():
    global _up
    _up = True
    for call in _queued:
        call()
def _lazy_call(call):
    call() if _up else _queued.append(call)
def current_device():
    return 0
def get_device_properties(device):
    return SimpleNamespace(total_memory=80)
def memory_stats(device=None):
    if os.environ.get("BROKEN"):
        raise RuntimeError("CUDA error: unspecified launch failure")
    return {"allocated_bytes.all.peak": 70 + (device or 0), "num_ooms": 1}
def memory_summary(device=None):
    return f"summary of {device}"
def mem_get_info(device=None):
    return 3 + device, 80
""",
    "cuda/memory.py": """
import os
recorded = None
def _record_memory_history(enabled="all", **options):
    global recorded
    if os.environ.get("REFUSES"):
        raise TypeError("unexpected keyword argument 'stacks'")
    recorded = options
def _dump_snapshot(filename="dump_snapshot.pickle"):
    with open(filename, "w") as file:
        file.write(f"history {recorded}")
""",
    "optim/__init__.py": "from . import optimizer\n",
    "optim/optimizer.py": "def register_optimizer_step_post_hook(hook):\n    pass\n",
}
OOM = 'torch.OutOfMemoryError("CUDA out of memory. Tried to allocate {}.00 GiB. GPU 1 has a total capacity of 80 GiB.")'
START = "import logging, torch\ntorch.cuda.init()\n"
CAUGHT = f"try:\n    raise {OOM.format(2)}\nexcept RuntimeError:\n    logging.exception('smaller')\n"
SNAPSHOT = {"diagnostics": {"memory_snapshot": True}}


def program(
    root: Path, text: str, scenario: dict[str, Any] | None = None, *, faults: int = 0, **environ: str
) -> tuple[Ended, dict[str, Any] | None]:
    """Run it under the probe; how it ended, and memory.json."""
    for name, content in TORCH.items():
        path = root / "torch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    (root / "program.py").write_text(text)
    ended = run(root, "program.py", scenario=scenario, environ=environ)
    assert len(ended.events("probe_error")) == faults
    path = ended.job.memory(0)
    return ended, json.loads(path.read_text()) if path.exists() else None


def test_what_the_allocator_held(tmp_path: Path) -> None:
    ended, memory = program(tmp_path, f"{START}raise {OOM.format(2)}\n")
    assert memory is not None
    assert ended.exit_code == 1
    assert (memory["device"], memory["free_bytes"], memory["total_bytes"]) == (1, 4, 80)
    assert (memory["stats"]["allocated_bytes.all.peak"], memory["summary"]) == (71, "summary of 1")
    assert (memory["type"], memory["phase"], memory["where"]) == ("torch.OutOfMemoryError", "import", "main")
    assert (memory["reasons"], memory["snapshot"]) == ({}, None)
    assert "Tried to allocate 2.00 GiB" in memory["message"]
    assert not ended.job.memory_snapshot(0).exists()


def test_one_that_the_program_outlives_is_told_of(tmp_path: Path) -> None:
    ended, memory = program(tmp_path, f"{START}{CAUGHT}")
    assert memory is not None
    assert (ended.exit_code, memory["where"]) == (0, "log")


@pytest.mark.parametrize(
    "last, told",
    [
        pytest.param(f"{CAUGHT.replace('2.00', '3.00')}", "2.00 GiB", id="outlived-too"),
        pytest.param(f"raise {OOM.format(3)}\n", "3.00 GiB", id="ends-the-rank"),
        pytest.param(f"try:\n    raise {OOM.format(3)}\nexcept RuntimeError:\n    exit(1)\n", "3.00 GiB", id="as-exit"),
        pytest.param("raise ValueError('other')\n", "2.00 GiB", id="another-end"),
    ],
)
def test_the_first_is_kept_unless_a_later_one_ends_the_rank(tmp_path: Path, last: str, told: str) -> None:
    _, memory = program(tmp_path, f"{START}{CAUGHT}{last}")
    assert memory is not None
    assert f"Tried to allocate {told}" in memory["message"]


def test_a_device_that_answers_no_more(tmp_path: Path) -> None:
    text = f"import os\n{START}os.environ['BROKEN'] = '1'\nraise {OOM.format(2)}\n"
    ended, memory = program(tmp_path, text, faults=1)  # the memory event of the journal's end
    assert memory is not None
    assert (memory["stats"], memory["free_bytes"]) == (None, 4)
    assert memory["reasons"] == {"stats": "RuntimeError: CUDA error: unspecified launch failure"}
    error = ended.error()
    assert error is not None
    assert error["type"] == "torch.OutOfMemoryError"


def test_a_snapshot_is_kept_where_it_is_asked_for(tmp_path: Path) -> None:
    ended, memory = program(tmp_path, f"{START}raise {OOM.format(2)}\n", SNAPSHOT)
    assert memory is not None
    assert memory["snapshot"] == "memory_snapshot.pickle"
    snapshot = ended.job.memory_snapshot(0)
    assert snapshot.read_text() == "history {'max_entries': 100000, 'stacks': 'python'}"
    assert [path.name for path in snapshot.parent.iterdir() if "partial" in path.name] == []


def test_without_memory_that_ran_out_there_is_no_snapshot(tmp_path: Path) -> None:
    ended, memory = program(tmp_path, START, SNAPSHOT)
    assert (ended.exit_code, memory) == (0, None)
    assert not ended.job.memory_snapshot(0).exists()


def test_a_torch_that_cannot_record_costs_the_snapshot_alone(tmp_path: Path) -> None:
    ended, memory = program(tmp_path, f"{START}raise {OOM.format(2)}\n", SNAPSHOT, REFUSES="1")
    assert memory is not None
    assert (memory["snapshot"], memory["summary"]) == (None, "summary of 1")
    assert "no memory snapshot: TypeError" in ended.stderr()


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"{START}raise MemoryError()\n", id="host-memory"),
        pytest.param(f"{START}raise ValueError('CUDA is out of fashion')\n", id="other-error"),
        pytest.param(f"import torch\nraise {OOM.format(2)}\n", id="CUDA-not-in-use"),
    ],
)
def test_nothing_to_tell(tmp_path: Path, text: str) -> None:
    _, memory = program(tmp_path, text)
    assert memory is None


def test_memory_that_ran_out_behind_another_error() -> None:
    error = ValueError("evaluation failed")
    error.__cause__ = RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
    assert ran_out(describe(error, where="main", step=None, phase="steady"))
    for other in (ValueError("evaluation failed"), RuntimeError("No executable batch size found, reached zero.")):
        assert not ran_out(describe(other, where="main", step=None, phase="steady"))


def test_a_torch_that_answers_nothing() -> None:
    told = figures(object(), "out of memory")
    assert {key: told[key] for key in ("device", "free_bytes", "stats", "summary")} == dict.fromkeys(
        ("device", "free_bytes", "stats", "summary")
    )
    assert set(told["reasons"]) == {"device", "free_bytes", "stats", "summary"}


RETRIES = """
import torch
from accelerate.utils import find_executable_batch_size

@find_executable_batch_size(starting_batch_size=3, reduce_batch_size_fn=lambda: sizes.pop(0))
def train(batch_size):
    raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {batch_size}.00 GiB.")

sizes = [2, 1, 0]
train()
"""


@pytest.mark.slow
def test_batches_that_are_tried_until_none_fits_are_journalled(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(RETRIES)
    ended = run(tmp_path, "program.py")
    seen = [(event["where"], event["message"]) for event in ended.events("exception")]
    asked = [f"CUDA out of memory. Tried to allocate {size}.00 GiB." for size in (3, 2, 1)]
    assert [message for where, message in seen if where == "retry"] == asked, ended.logs()
    assert seen[-1] == ("main", "No executable batch size found, reached zero.")
    error = ended.error()
    assert error is not None
    assert error["message"] == "No executable batch size found, reached zero."
