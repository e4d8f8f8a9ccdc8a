"""xdist's scheduler for sessions of cases: a case starts when what it needs is free, large ones first.

A worker starts item A only once it has received A's successor, or the order to shut down: so sending A is to arm it,
and sending the next one fires it.  Packing is all this does; that no two jobs share a GPU is for the leases to see to,
since another pytest on the machine is invisible here."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from xdist.report import report_collection_diff
from xdist.scheduler import LoadScheduling
from xdist.workermanage import parse_tx_spec_config

from harness.plugin.session import Plan

Node = Any  # xdist's WorkerController
Need = tuple[int, int]  # GPUs, CPU slots


class CaseScheduling:
    """Behaves as xdist's `load` until the collections are in; then packs, if there are cases among the tests."""

    def __init__(self, config: pytest.Config, log: Any, plan: Callable[[], Plan | None]) -> None:
        self.config = config  # pytest-rerunfailures asks for it when a worker has crashed
        self._plan = plan
        self._inner: Any = LoadScheduling(config, log)
        self._decided = False

    @property
    def nodes(self) -> list[Node]:
        return list(self._inner.nodes)

    @property
    def collection_is_completed(self) -> bool:
        return bool(self._inner.collection_is_completed)

    @property
    def tests_finished(self) -> bool:
        return bool(self._inner.tests_finished)

    @property
    def has_pending(self) -> bool:
        return bool(self._inner.has_pending)

    def add_node(self, node: Node) -> None:
        self._inner.add_node(node)

    def add_node_collection(self, node: Node, collection: Sequence[str]) -> None:
        self._inner.add_node_collection(node, collection)

    def schedule(self) -> None:
        plan = self._plan()
        if not self._decided and plan is not None:
            packing = Packing(self.config, plan)
            for node in self._inner.nodes:
                packing.add_node(node)
            for node, collection in self._inner.node2collection.items():
                packing.add_node_collection(node, collection)
            self._inner = packing
        self._decided = True
        self._inner.schedule()

    def mark_test_complete(self, node: Node, item_index: int, duration: float = 0) -> None:
        self._inner.mark_test_complete(node, item_index, duration)

    def mark_test_pending(self, item: str) -> None:
        self._inner.mark_test_pending(item)

    def remove_pending_tests_from_node(self, node: Node, indices: Sequence[int]) -> None:
        self._inner.remove_pending_tests_from_node(node, indices)

    def remove_node(self, node: Node) -> str | None:
        crashed: str | None = self._inner.remove_node(node)
        return crashed


class Packing:
    """Starts items as their needs fit into what the machine can lease."""

    def __init__(self, config: pytest.Config, plan: Plan) -> None:
        self._config = config
        self._plan = plan
        self._total: Need = (plan.slots.gpus, max(1, plan.slots.cpus))
        self._numnodes = len(parse_tx_spec_config(config))
        self._collection: list[str] | None = None
        self._pending: list[int] = []
        # Nodes stay in here when they are gone: otherwise the collection never counts as completed for a replacement.
        self._collections: dict[Node, list[str]] = {}
        self._armed: dict[Node, int | None] = {}
        self._running: dict[Node, int | None] = {}

    @property
    def nodes(self) -> list[Node]:
        return list(self._armed)

    @property
    def collection_is_completed(self) -> bool:
        return len(self._collections) >= self._numnodes

    @property
    def has_pending(self) -> bool:
        on_nodes = [*self._armed.values(), *self._running.values()]
        return bool(self._pending) or any(index is not None for index in on_nodes)

    @property
    def tests_finished(self) -> bool:
        return self._collection is not None and not self.has_pending

    def need(self, index: int) -> Need:
        """GPUs and CPU slots of an item, at most what there is: a case that needs more still has to be reported."""
        assert self._collection is not None
        case = self._plan.cases.get(self._collection[index])
        if case is None or case.skip is not None or case.error is not None:
            return (0, 0)
        if case.gpus:
            return (min(case.gpus, self._total[0]), 0)
        return (0, min(case.processes, self._total[1]))

    def add_node(self, node: Node) -> None:
        self._armed[node] = self._running[node] = None

    def add_node_collection(self, node: Node, collection: Sequence[str]) -> None:
        if self._collection is None or list(collection) == self._collection:
            self._collections[node] = list(collection)

    def schedule(self) -> None:
        if self._collection is None:
            self._collection = self._agreed_collection()
            order = range(len(self._collection))
            self._pending = sorted(order, key=lambda index: tuple(-part for part in self.need(index)))
        for node in self.nodes:
            if self._armed[node] is None and self._running[node] is None and node in self._collections:
                self._send_next(node)
        self._fire()

    def _agreed_collection(self) -> list[str]:
        (first, reference), *others = self._collections.items()
        for node, collection in others:
            difference = report_collection_diff(reference, collection, first.gateway.id, node.gateway.id)
            if difference:
                report = pytest.CollectReport(node.gateway.id, "failed", difference, [])
                self._config.hook.pytest_collectreport(report=report)
                return []
        return reference

    def _send_next(self, node: Node) -> None:
        if self._pending:
            index = self._pending.pop(0)
            self._armed[node] = index
            node.send_runtest_some([index])
        else:
            node.shutdown()

    def _fire(self) -> None:
        """Start what is armed and fits, the largest first; a smaller one may pass a larger one that has to wait."""
        gpus, cpus = self._free()
        armed = [(self.need(index), node, index) for node, index in self._armed.items() if index is not None]
        for need, node, index in sorted(armed, key=lambda entry: entry[0], reverse=True):
            if self._running[node] is None and need[0] <= gpus and need[1] <= cpus:
                gpus, cpus = gpus - need[0], cpus - need[1]
                self._running[node], self._armed[node] = index, None
                self._send_next(node)

    def _free(self) -> Need:
        needs = [self.need(index) for index in self._running.values() if index is not None]
        return self._total[0] - sum(need[0] for need in needs), self._total[1] - sum(need[1] for need in needs)

    def mark_test_complete(self, node: Node, item_index: int, duration: float = 0) -> None:
        if self._running.get(node) == item_index:
            self._running[node] = None
        self._fire()

    def mark_test_pending(self, item: str) -> None:
        assert self._collection is not None
        self._pending.insert(0, self._collection.index(item))
        self.schedule()

    def remove_pending_tests_from_node(self, node: Node, indices: Sequence[int]) -> None:
        raise NotImplementedError("nothing is ever stolen")

    def remove_node(self, node: Node) -> str | None:
        """Forget a node; its item is the one that crashed, and what it had armed goes back to the others."""
        running, armed = self._running.pop(node), self._armed.pop(node)
        if armed is not None:
            self._pending.insert(0, armed)
        if self._collection is None:
            return None
        self.schedule()
        return self._collection[running] if running is not None else None
