"""How many CPU slots there are to lease: affinity and cgroup quotas, old and new."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.leases import cpu_slots


@pytest.mark.parametrize(
    ("cgroup", "mount", "files", "slots"),
    [
        pytest.param("0::/job", "cgroup2 none rw", {"job/cpu.max": "max 100000"}, None, id="v2-without-quota"),
        pytest.param("0::/job", "cgroup2 none rw", {"job/cpu.max": "50000 100000"}, 1, id="v2-half"),
        pytest.param(
            "0::/a/b", "cgroup2 none rw", {"a/b/cpu.max": "max 1", "a/cpu.max": "90000 100000"}, 1, id="v2-above"
        ),
        pytest.param("0::/job", "cgroup2 none rw", {"job/cpu.max": "9900000 100000"}, None, id="v2-more-than-cores"),
        pytest.param(
            "2:cpu,cpuacct:/job",
            "cgroup none rw,cpu,cpuacct",
            {"job/cpu.cfs_quota_us": "100000", "job/cpu.cfs_period_us": "100000"},
            1,
            id="v1",
        ),
        pytest.param(
            "2:cpu:/job",
            "cgroup none rw,cpu",
            {"job/cpu.cfs_quota_us": "-1", "job/cpu.cfs_period_us": "100000"},
            None,
            id="v1-without-quota",
        ),
    ],
)
def test_cpu_slots(tmp_path: Path, cgroup: str, mount: str, files: dict[str, str], slots: int | None) -> None:
    for name, text in files.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(f"{text}\n")
    (tmp_path / "cgroup").write_text(f"{cgroup}\n")
    (tmp_path / "mountinfo").write_text(f"31 23 0:28 / {tmp_path}/tree rw - {mount}\n")
    cores = len(os.sched_getaffinity(0))
    assert cpu_slots(str(tmp_path)) == tuple(f"cpu-{number}" for number in range(slots or cores))


def test_cpu_slots_follow_the_affinity() -> None:
    code = "import os; from harness.leases import cpu_slots; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    done = subprocess.run(
        [sys.executable, "-c", code + "print(cpu_slots())"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "('cpu-0',)\n"
