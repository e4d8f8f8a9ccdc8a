"""The allocator's figures by phase, with a stand-in for torch.cuda."""

from typing import Any

import pytest

from harness.probe import memory

GIB = 2**30


class Cuda:
    """An allocator that keeps its peaks until they are reset."""

    def __init__(self) -> None:
        self.held = self.peak = 0

    def hold(self, count: int) -> None:
        self.held = count
        self.peak = max(self.peak, count)

    def memory_stats(self) -> dict[str, int]:
        return {f"{kind}_bytes.all.peak": self.peak for kind in ("allocated", "active", "reserved")}

    def reset_peak_memory_stats(self) -> None:
        self.peak = self.held

    def current_device(self) -> int:
        return 0

    def get_device_properties(self, device: int) -> Any:
        return type("Properties", (), {"total_memory": 80 * GIB})


@pytest.mark.parametrize("reset, steady, since", [(True, 3 * GIB, "phase"), (False, 9 * GIB, "process")])
def test_trap_a_peak_of_loading_is_not_that_of_training(
    monkeypatch: pytest.MonkeyPatch, reset: bool, steady: int, since: str
) -> None:
    """In a foreign program nothing is reset, and the figures say that they cover what was before, too."""
    cuda = Cuda()
    monkeypatch.setattr(memory, "cuda_in_use", lambda: cuda)
    cuda.hold(9 * GIB)  # a copy on its way to the device
    cuda.hold(2 * GIB)
    loading = memory.read_memory("model_load", reset=reset)
    cuda.hold(3 * GIB)
    training = memory.read_memory("steady", reset=reset)
    assert loading is not None
    assert training is not None
    assert (loading["allocated_peak_bytes"], loading["phase"]) == (9 * GIB, "model_load")
    assert (training["allocated_peak_bytes"], training["since"], training["total_bytes"]) == (steady, since, 80 * GIB)
