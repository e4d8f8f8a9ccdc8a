"""Which verdict a scenario expects of a case, given the GPUs that it got."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from harness.record import Kind
from harness.scenario.parts import Expect, When


def expected_kind(expect: Expect | None, gpus: Sequence[tuple[str, int]]) -> Kind | None:
    """The kind that is expected on these GPUs, (name, memory in bytes) each; None where nothing is.

    A case on the CPU has no GPU, so that no condition holds there."""
    if expect is None or (expect.when is not None and not _holds(expect.when, gpus)):
        return None
    return Kind(expect.kind)


def _holds(when: When, gpus: Sequence[tuple[str, int]]) -> bool:
    if not gpus:
        return False
    smallest = min(memory for _, memory in gpus)  # the first to run out
    return (
        (when.gpu_memory_below_bytes is None or smallest < when.gpu_memory_below_bytes)
        and (when.gpu_memory_at_least_bytes is None or smallest >= when.gpu_memory_at_least_bytes)
        and (when.gpu_name is None or all(fnmatchcase(name.lower(), when.gpu_name.lower()) for name, _ in gpus))
        and (when.gpus_below is None or len(gpus) < when.gpus_below)
    )
