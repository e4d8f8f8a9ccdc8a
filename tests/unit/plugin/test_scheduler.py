"""Packing, with hand-made nodes that record what is sent to them."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from harness.plugin.runner import Slots
from harness.plugin.scheduler import Packing
from harness.plugin.session import Plan, PlannedCase


@dataclass(eq=False)
class Node:
    """A worker: it starts an item once it has the next one, or is to shut down."""

    name: str
    queue: list[int | None] = field(default_factory=list)

    @property
    def gateway(self) -> Any:
        return SimpleNamespace(id=self.name)

    def send_runtest_some(self, indices: list[int]) -> None:
        self.queue += indices

    def shutdown(self) -> None:
        self.queue.append(None)

    @property
    def runs(self) -> int | None:
        return self.queue[0] if len(self.queue) > 1 else None

    @property
    def is_over(self) -> bool:
        return self.queue == [None]


def case(gpus: int = 0, processes: int = 1, skip: str | None = None) -> PlannedCase:
    return PlannedCase(case_id="x", directory="x", experiment="x", labels={}, gpus=gpus, processes=processes, skip=skip)


def make(workers: int, gpus: int, cpus: int, cases: list[PlannedCase]) -> tuple[Packing, list[Node]]:
    config: Any = SimpleNamespace(getvalue=lambda _: [f"{workers}*popen"])
    plan = Plan(Slots(gpus, cpus), {f"n{number}": planned for number, planned in enumerate(cases)})
    packing = Packing(config, plan)
    nodes = [Node(f"gw{number}") for number in range(workers)]
    for node in nodes:
        packing.add_node(node)
    for node in nodes:
        packing.add_node_collection(node, list(plan.cases))
    assert packing.collection_is_completed
    packing.schedule()
    return packing, nodes


def running(nodes: list[Node]) -> list[int]:
    return sorted(node.runs for node in nodes if node.runs is not None)


def run_out(packing: Packing, nodes: list[Node], needs: list[int], total: int) -> list[int]:
    """End one item after the other; returns their order."""
    order: list[int] = []
    while not packing.tests_finished:
        active = running(nodes)
        assert active, "nothing runs and nothing is finished"
        assert sum(min(needs[index], total) for index in active) <= total
        node = next(node for node in nodes if node.runs == active[0])
        node.queue.pop(0)
        order.append(active[0])
        packing.mark_test_complete(node, active[0])
    assert all(node.is_over for node in nodes)
    return order


@pytest.mark.parametrize(
    "needs, total, workers",
    [
        ([1, 1, 4, 2, 2], 4, 4),
        ([4, 4, 4], 4, 2),
        ([1], 4, 3),
        ([8, 1], 4, 2),
        ([1, 2, 1, 2, 1, 2, 4, 4], 4, 1),
        ([0, 0, 1], 1, 2),
        ([], 2, 2),
    ],
)
def test_gpus_are_never_overbooked_and_all_items_run(needs: list[int], total: int, workers: int) -> None:
    packing, nodes = make(workers, total, 64, [case(gpus=need, processes=max(1, need)) for need in needs])
    assert sorted(run_out(packing, nodes, needs, total)) == list(range(len(needs)))


def test_large_cases_go_first_and_small_ones_fill_up() -> None:
    _, nodes = make(3, 4, 8, [case(gpus=1), case(gpus=4), case(gpus=3)])
    assert running(nodes) == [1]
    _, nodes = make(3, 4, 8, [case(gpus=1), case(gpus=2), case(gpus=3)])
    assert running(nodes) == [0, 2]


def test_cpu_cases_count_in_cpu_slots_beside_gpus() -> None:
    _, nodes = make(4, 1, 2, [case(gpus=1), case(processes=2), case(processes=2), case(processes=16)])
    assert len(running(nodes)) == 2
    assert 0 in running(nodes)


def test_cases_to_skip_wait_for_nothing() -> None:
    packing, nodes = make(2, 0, 2, [case(processes=2), case(gpus=8, skip="no GPU"), case(processes=2)])
    assert packing.need(1) == (0, 0)
    assert sorted(run_out(packing, nodes, [2, 0, 2], 2)) == [0, 1, 2]


def test_a_crashed_node_gives_back_what_it_had() -> None:
    packing, (first, second) = make(2, 1, 2, [case(gpus=1), case(gpus=1), case(gpus=1)])
    active = first if first.runs is not None else second
    crashed = active.runs
    assert packing.remove_node(active) == f"n{crashed}"
    assert packing.has_pending
    replacement = Node("gw2")
    packing.add_node(replacement)
    packing.add_node_collection(replacement, ["n0", "n1", "n2"])
    packing.schedule()
    other = second if active is first else first
    assert sorted(run_out(packing, [other, replacement], [1, 1, 1], 1)) == sorted({0, 1, 2} - {crashed})


def test_a_node_that_collected_something_else_stops_the_session() -> None:
    reports: list[Any] = []
    hook = SimpleNamespace(pytest_collectreport=lambda report: reports.append(report))
    config: Any = SimpleNamespace(getvalue=lambda _: ["2*popen"], hook=hook)
    packing = Packing(config, Plan(Slots(1, 1), {"n0": case()}))
    one, two = Node("gw0"), Node("gw1")
    for node, collection in ((one, ["n0"]), (two, ["n1"])):
        packing.add_node(node)
        packing.add_node_collection(node, collection)
    packing.schedule()
    assert len(reports) == 1
    assert packing.tests_finished
