"""Where a process stands in the tree of control groups.  Standard library only."""

import contextlib
import re
from pathlib import Path


def cgroup_chain(controller: str, proc: str = "/proc/self") -> tuple[int, list[Path]]:
    """The cgroup version (0: none) that rules `controller`, and this process's folders in it, its own first."""
    try:
        lines = Path(proc, "cgroup").read_text().splitlines()
        memberships = {names: path for _, names, path in (line.split(":", 2) for line in lines)}
        mounts = [line.split() for line in Path(proc, "mountinfo").read_text().splitlines()]
    except (OSError, ValueError):
        return 0, []
    v1 = next((path for names, path in memberships.items() if controller in names.split(",")), None)
    path = memberships.get("") if v1 is None else v1
    if path is None:
        return 0, []
    for fields in mounts:
        kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
        if (kind == "cgroup" and controller in options) if v1 is not None else kind == "cgroup2":
            base, top = (re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), fields[at]) for at in (4, 3))
            # In a container the mount may show only a part of the tree, or the path may lie outside of what is mounted.
            inside = path if top == "/" else path[len(top) :] if path.startswith(top) else "/"
            own = Path(base, inside.lstrip("/"))
            if ".." in own.parts or not own.is_dir():
                own = Path(base)
            return (2 if v1 is None else 1), [own, *(p for p in own.parents if p.is_relative_to(base))]
    return 0, []


def cpu_limit(proc: str = "/proc/self") -> float | None:
    """CPUs that this process's group and those above it may use at once; None without a limit."""
    version, folders = cgroup_chain("cpu", proc)
    limits = []
    for folder in folders:
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            if version == 2:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota, period = ((folder / f"cpu.cfs_{part}_us").read_text() for part in ("quota", "period"))
            if quota != "max" and int(quota) > 0:
                limits.append(int(quota) / int(period))
    return min(limits, default=None)
