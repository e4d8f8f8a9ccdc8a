"""Control groups of both versions, as made-up trees; the /proc that leads to them is made up, too."""

from pathlib import Path

import pytest

from harness.sampling.cgroups import Cgroup, pressure

PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"


def fill(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    folder.mkdir()
    return folder


def version_2(tmp_path: Path, proc: Path, own: dict[str, str], above: dict[str, str]) -> Cgroup:
    root = tmp_path / "cgroup"
    fill(root / "pod", above)
    fill(root / "pod" / "job", own)
    (proc / "cgroup").write_text("0::/pod/job\n")
    (proc / "mountinfo").write_text(f"30 23 0:26 / {root} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n")
    return Cgroup.of(str(proc))


def version_1(tmp_path: Path, proc: Path, memory: dict[str, str], cpu: dict[str, str]) -> Cgroup:
    fill(tmp_path / "memory" / "job", memory)
    fill(tmp_path / "cpu" / "job", cpu)
    (proc / "cgroup").write_text("4:memory:/job\n3:cpu,cpuacct:/job\n")
    (proc / "mountinfo").write_text(
        f"31 23 0:27 / {tmp_path}/memory rw - cgroup cgroup rw,memory\n"
        f"32 23 0:28 / {tmp_path}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    )
    return Cgroup.of(str(proc))


def test_version_2(tmp_path: Path, proc: Path) -> None:
    own = {
        "memory.current": "1000\n",
        "memory.peak": "2000\n",
        "memory.max": "max\n",
        "memory.pressure": PRESSURE.format(1_500_000),
        "cpu.pressure": PRESSURE.format(2_000_000),
        "io.pressure": PRESSURE.format(0),
        "cpu.stat": "usage_usec 9\nnr_throttled 3\nthrottled_usec 2500000\n",
        "cpu.max": "400000 100000\n",
    }
    found = version_2(tmp_path, proc, own, {"memory.max": "5000\n", "cpu.max": "150000 100000\n"})
    assert (found.version, found.memory_limit_bytes, found.cpu_limit, found.reasons) == (2, 5000, 1.5, {})
    assert found.read() == {
        "memory_bytes": 1000,
        "memory_peak_bytes": 2000,
        "memory_pressure_s": 1.5,
        "cpu_pressure_s": 2.0,
        "io_pressure_s": 0.0,
        "cpu_throttled_s": 2.5,
    }


def test_an_older_kernel_with_version_2(tmp_path: Path, proc: Path) -> None:
    own = {"memory.current": "1000\n", "memory.max": "max\n", "cpu.stat": "usage_usec 9\n", "cpu.max": "max 100000\n"}
    found = version_2(tmp_path, proc, own, {})
    assert found.read() == {
        "memory_bytes": 1000,
        **dict.fromkeys(
            ["memory_peak_bytes", "memory_pressure_s", "cpu_pressure_s", "io_pressure_s", "cpu_throttled_s"]
        ),
    }
    assert found.reasons["memory_peak_bytes"] == f"no number in {tmp_path}/cgroup/pod/job/memory.peak"
    assert found.reasons["cpu_throttled_s"] == f"no throttled_usec in {tmp_path}/cgroup/pod/job/cpu.stat"
    assert found.reasons["memory_limit_bytes"] == found.reasons["cpu_limit"] == "no control group here sets a limit"


def test_version_1(tmp_path: Path, proc: Path) -> None:
    memory = {"memory.usage_in_bytes": "10\n", "memory.max_usage_in_bytes": "20\n", "memory.limit_in_bytes": "4096\n"}
    cpu = {"cpu.stat": "nr_periods 1\nthrottled_time 500000000\n", "cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100"}
    found = version_1(tmp_path, proc, memory, cpu)
    assert (found.version, found.memory_limit_bytes, found.cpu_limit) == (1, 4096, None)
    told = found.read()
    assert (told["memory_bytes"], told["memory_peak_bytes"], told["cpu_throttled_s"]) == (10, 20, 0.5)
    assert told["memory_pressure_s"] is told["io_pressure_s"] is None
    assert found.reasons["memory_pressure_s"] == "control groups of version 1 keep no pressure"
    assert found.reasons["io_pressure_s"] == "no control group rules io here"


def test_version_1_without_limits(tmp_path: Path, proc: Path) -> None:
    memory = {"memory.usage_in_bytes": "10\n", "memory.limit_in_bytes": "9223372036854771712\n"}
    cpu = {"cpu.cfs_quota_us": "250000\n", "cpu.cfs_period_us": "100000\n"}
    found = version_1(tmp_path, proc, memory, cpu)
    assert (found.memory_limit_bytes, found.cpu_limit) == (None, 2.5)


def test_no_control_groups(proc: Path) -> None:
    found = Cgroup.of(str(proc))
    assert (found.version, found.memory_limit_bytes, found.cpu_limit) == (None, None, None)
    assert set(found.read().values()) == {None}
    assert found.reasons["memory_bytes"] == "no control group rules memory here"


def test_a_figure_that_vanishes(tmp_path: Path, proc: Path) -> None:
    found = version_2(tmp_path, proc, {"memory.current": "1000\n"}, {})
    (tmp_path / "cgroup" / "pod" / "job" / "memory.current").unlink()
    assert found.read()["memory_bytes"] is None


def test_pressure_of_the_machine(proc: Path) -> None:
    fill(proc / "pressure", {"memory": PRESSURE.format(250_000)})
    assert pressure("memory", str(proc)) == 0.25
    assert pressure("io", str(proc)) is None
