"""Whatever happens to pytest, a worker or the supervisor: nothing of the job lives on, and the record says so."""

import json
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from harness.record import Kind, read_record
from tests.acceptance.conftest import Bench, properties

pytestmark = pytest.mark.slow

SCENARIO = """
name: stubborn
processes: {processes}
measure: {{steps: none}}
trainer: {{kind: script, target: ../tree.py, args: ["{token}", "300"]}}
"""
PATIENCE_S = 90.0


class Tree:
    """A started session whose one job has put up its tree of stubborn processes."""

    def __init__(self, bench: Bench, token: str, processes: int, arguments: Sequence[str]) -> None:
        self.bench, self.token, self.processes = bench, token, processes
        self.pytest = bench.start(*arguments)
        # of each rank: the program itself, its child in a session of its own, and the daemon
        wait_for(lambda: len(self.members()) >= 3 * processes, lambda: (bench.root / "output.txt").read_text())

    @property
    def case(self) -> str:
        return f"stubborn-{self.processes}proc"

    def members(self) -> list[psutil.Process]:
        """The job's processes: those with the token in the command line, launched by the probe or by the program."""
        found = []
        for process in psutil.process_iter(["cmdline"]):
            if self.token in (process.info["cmdline"] or []) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found

    @property
    def job(self) -> Path:
        return self.bench.session / self.case / "attempt-1"

    @property
    def supervisor(self) -> psutil.Process:
        """The supervisor, by the job's first journal line."""
        lines = (self.job / "node-0" / "supervisor.jsonl").read_text().splitlines()
        return psutil.Process(next(e["pid"] for line in lines if (e := json.loads(line))["e"] == "start"))

    def finish(self) -> int:
        """Wait until pytest has ended and nothing of the job lives; pytest's exit code."""
        code = self.pytest.wait(PATIENCE_S)
        wait_for(lambda: not self.members(), lambda: str([p.cmdline() for p in self.members()]))
        return code


def wait_for(condition: Callable[[], bool], told: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, told()
        time.sleep(0.1)


@pytest.fixture
def tree(make_bench: Callable[[str], Bench], request: pytest.FixtureRequest) -> Iterator[Tree]:
    arguments, processes = getattr(request, "param", ((), 1))
    token = f"tree-{uuid.uuid4()}"
    bench = make_bench(SCENARIO.format(token=token, processes=processes))
    tree = Tree(bench, token, processes, arguments)
    yield tree
    for process in tree.members():
        process.kill()
    tree.pytest.kill()
    tree.pytest.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_pytest_is_asked_to_end(tree: Tree, number: signal.Signals) -> None:
    tree.pytest.send_signal(number)
    assert tree.finish() == 2
    record = read_record(tree.job.parent / "record.json")
    assert record.state == "finished"
    assert record.verdict is not None
    assert record.verdict.kind is Kind.KILLED
    assert number.name in record.verdict.reason
    assert (tree.bench.root / "junit.xml").exists()


def test_ctrl_c_twice(tree: Tree) -> None:
    tree.pytest.send_signal(signal.SIGINT)
    time.sleep(0.5)
    tree.pytest.send_signal(signal.SIGINT)
    assert tree.finish() == 2
    assert (tree.job / "end.json").exists()


def test_pytest_is_killed(tree: Tree) -> None:
    tree.pytest.kill()
    assert tree.finish() == -signal.SIGKILL
    wait_for(lambda: (tree.job / "end.json").exists(), lambda: "no end.json")
    assert json.loads((tree.job / "end.json").read_text())["why"] == "parent_died"
    assert read_record(tree.job.parent / "record.json").state == "running"  # a cut-off case leaves one


@pytest.mark.parametrize("tree", [((), 1), ((), 2)], indirect=True, ids=["1-rank", "2-ranks"])
def test_the_supervisor_is_killed(tree: Tree) -> None:
    tree.supervisor.kill()
    assert tree.finish() == 1
    told = properties(tree.bench.case_elements()[tree.case])
    assert told["verdict"] == "killed"
    assert "supervisor" in told["verdict_reason"]


@pytest.mark.parametrize("tree", [(("-n", "1"), 1)], indirect=True, ids=["n1"])
def test_a_worker_is_killed(tree: Tree) -> None:
    worker = tree.supervisor.parent()
    assert worker is not None
    assert worker.pid != tree.pytest.pid
    worker.kill()
    assert tree.finish() == 1
    element = tree.bench.case_elements()["stubborn-1proc"]
    assert element.find("failure") is not None
    assert properties(element)["verdict"] in ("killed", "unknown")


@pytest.mark.parametrize(
    "tree",
    [(("--time-limit", "3"), 1), (("--time-limit", "15"), 2)],
    indirect=True,
    ids=["1-rank", "2-ranks"],
)
def test_the_time_limit(tree: Tree) -> None:
    assert tree.finish() == 1
    assert properties(tree.bench.case_elements()[tree.case])["verdict"] == "timeout"


def test_a_gpu_or_slot_is_free_again(tree: Tree) -> None:
    tree.pytest.kill()
    tree.finish()
    pids = [p.pid for p in psutil.process_iter() if _holds(p.pid, tree.bench.root / "locks")]
    assert pids == []


def _holds(pid: int, folder: Path) -> bool:
    try:
        links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
    except OSError:
        return False
    return any(link.startswith(str(folder)) for link in links)
