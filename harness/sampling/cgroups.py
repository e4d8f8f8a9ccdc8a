"""The control group that a job runs in: memory, limits, pressure, CPU throttling.  Version 2 and 1; standard library.

The supervisor, the sampler and the command share a group.  The figures are the group's: in a container those of all
that runs there, on a bare machine perhaps those of a login session."""

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.watch.cgroups import cgroup_chain, cpu_limit

_UNLIMITED = 1 << 60  # version 1 says so with a number near 2**63, rounded down to pages

# figure -> (controller, file of version 2, key in it, scale), (file of version 1, key, scale); no key: the file is it
_Source = tuple[str, str | None, float]
_FIGURES: dict[str, tuple[str, _Source, _Source | None]] = {
    "memory_bytes": ("memory", ("memory.current", None, 1), ("memory.usage_in_bytes", None, 1)),
    "memory_peak_bytes": ("memory", ("memory.peak", None, 1), ("memory.max_usage_in_bytes", None, 1)),
    "memory_pressure_s": ("memory", ("memory.pressure", "some", 1e-6), None),
    "cpu_pressure_s": ("cpu", ("cpu.pressure", "some", 1e-6), None),
    "io_pressure_s": ("io", ("io.pressure", "some", 1e-6), None),
    "cpu_throttled_s": ("cpu", ("cpu.stat", "throttled_usec", 1e-6), ("cpu.stat", "throttled_time", 1e-9)),
}


@dataclass
class Cgroup:
    """Where the figures stand; found once, read at every sample."""

    version: int | None
    memory_limit_bytes: int | None
    cpu_limit: float | None
    reasons: dict[str, str] = field(default_factory=dict)  # figure or limit -> why it is null
    _files: dict[str, tuple[Path, str | None, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, proc: str = "/proc/self") -> "Cgroup":
        """The group of a process, given its folder in /proc."""
        chains = {name: cgroup_chain(name, proc) for name in ("memory", "cpu", "io")}
        found = cls(chains["memory"][0] or chains["cpu"][0] or None, None, None)
        for figure, (controller, v2, v1) in _FIGURES.items():
            version, folders = chains[controller]
            source = v2 if version == 2 else v1
            if version == 0:
                found.reasons[figure] = f"no control group rules {controller} here"
            elif source is None:
                found.reasons[figure] = "control groups of version 1 keep no pressure"
            elif _number(folders[0] / source[0], source[1]) is None:
                found.reasons[figure] = f"no {source[1] or 'number'} in {folders[0] / source[0]}"
            else:
                found._files[figure] = (folders[0] / source[0], source[1], source[2])
        found.memory_limit_bytes = _memory_limit(*chains["memory"])
        found.cpu_limit = cpu_limit(proc)
        for name, limit in (("memory_limit_bytes", found.memory_limit_bytes), ("cpu_limit", found.cpu_limit)):
            if limit is None:
                found.reasons[name] = "no control group here sets a limit"
        return found

    def read(self) -> dict[str, Any]:
        """Figure -> value; null where it is not told, or no more."""
        return {figure: self._figure(figure) for figure in _FIGURES}

    def _figure(self, figure: str) -> float | int | None:
        if figure not in self._files:
            return None
        path, key, scale = self._files[figure]
        value = _number(path, key)
        return value if value is None or scale == 1 else round(value * scale, 6)


def pressure(kind: str, proc: str = "/proc") -> float | None:
    """Seconds that some task of the machine has waited for `kind` (memory, cpu, io); None where it is not kept."""
    microseconds = _number(Path(proc, "pressure", kind), "some")
    return None if microseconds is None else microseconds / 1e6


def _number(path: Path, key: str | None) -> int | None:
    """The file's only number, that behind a key, or the total of a line of pressure; None when it is not there."""
    with contextlib.suppress(OSError, ValueError):
        text = path.read_text()
        if key is None:
            return int(text)
        for line in text.splitlines():
            name, _, rest = line.partition(" ")
            if name == key:
                return int(rest.rpartition("total=")[2])
    return None


def _memory_limit(version: int, folders: list[Path]) -> int | None:
    """The smallest limit of the group and those above it."""
    name = "memory.max" if version == 2 else "memory.limit_in_bytes"
    limits = [limit for folder in folders if (limit := _number(folder / name, None)) is not None]
    return min((limit for limit in limits if limit < _UNLIMITED), default=None)
