import os
from pathlib import Path

import pytest

from harness.sampling import host


def stat(pid: int, parent: int, name: str = "python", ticks: str = "100 20 7 3") -> bytes:
    """A /proc/PID/stat line: 4 threads, 10 pages resident."""
    return (
        f"{pid} ({name}) S {parent} 1 1 0 -1 4194560 1 2 3 4 {ticks} 20 0 4 0 12345 1000000 10 18446744073709551615 1\n"
    ).encode()


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    for pid, parent in [(1, 0), (10, 1), (11, 10), (12, 11), (13, 10), (14, 13), (20, 1)]:
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_bytes(stat(pid, parent))
    (tmp_path / "30").mkdir()  # one that ended between listing and reading
    (tmp_path / "self").mkdir()
    return tmp_path


@pytest.mark.parametrize("name", ["python", "a b", "x) R 1 (y", ""])
def test_names_may_hold_anything(name: str) -> None:
    process = host.parse_stat(stat(42, 7, name))
    assert (process.pid, process.parent, process.threads) == (42, 7, 4)
    assert process.rss_bytes == 10 * host._PAGE
    assert process.cpu_s == 130 / host._TICK
    assert process.children_cpu_s == 10 / host._TICK


def test_the_tree_is_without_root_and_sampler(proc: Path) -> None:
    tree = host.tree_below(10, host.read_processes(str(proc)), without=[13])
    assert sorted(tree.pids) == [11, 12]
    assert tree.threads == 8
    # What the root has collected of ended children counts, what it used itself does not.
    assert tree.cpu_s == (2 * 130 + 10) / host._TICK


def test_a_root_that_is_gone(proc: Path) -> None:
    assert host.tree_below(99, host.read_processes(str(proc)), without=[13]) == host.Tree((), 0, 0.0, 0)


def test_pss(proc: Path) -> None:
    (proc / "self" / "smaps_rollup").touch()
    (proc / "11" / "smaps_rollup").write_text("0-1 ---p 0 0 0 [rollup]\nRss: 90 kB\nPss:    30 kB\nPss_Dirty: 5 kB\n")
    (proc / "12" / "smaps_rollup").write_text("")  # a zombie
    assert host.read_pss((11, 12, 30), str(proc)) == 30 * 1024
    (proc / "13" / "smaps_rollup").mkdir()  # cannot be read: the sum would be too small
    assert host.read_pss((11, 12, 13), str(proc)) is None


def test_pss_on_a_kernel_without(proc: Path) -> None:
    assert host.read_pss((11,), str(proc)) is None


def test_io(proc: Path) -> None:
    (proc / "11" / "io").write_text(
        "rchar: 1\nwchar: 2\nread_bytes: 4096\nwrite_bytes: 512\ncancelled_write_bytes: 0\n"
    )
    assert host.read_io(11, str(proc)) == (4096, 512)
    assert host.read_io(12, str(proc)) is None


@pytest.mark.parametrize(
    ("pid", "options", "below"),
    [
        pytest.param(12, {}, True, id="grandchild"),
        pytest.param(10, {}, False, id="the-root"),
        pytest.param(10, {"with_root": True}, True, id="the-root-with-it"),
        pytest.param(14, {}, False, id="below-what-is-left-out"),
        pytest.param(20, {}, False, id="elsewhere"),
        pytest.param(30, {}, None, id="ended"),
        pytest.param(99, {}, None, id="never-there"),
    ],
)
def test_whether_a_process_is_below(proc: Path, pid: int, options: dict[str, bool], below: bool | None) -> None:
    assert host.is_below(pid, 10, [13], proc=str(proc), **options) is below


def test_open_files() -> None:
    own = host.count_files([os.getpid()])
    assert own is not None
    with open("/dev/null") as one, open("/dev/null") as two:
        assert host.count_files([os.getpid(), 4194303]) == own + 2, (one, two)


def test_network(proc: Path) -> None:
    (proc / "11" / "net").mkdir()
    head = "Inter-| Receive | Transmit\n face |bytes packets\n"
    lines = [f"{name}: {rx} 1 0 0 0 0 0 0 {tx} 1 0 0 0 0 0 0\n" for name, rx, tx in [("lo", 9, 9), ("eth0", 5, 7)]]
    (proc / "11" / "net" / "dev").write_text("".join([head, *lines, "  eth1:1000 1 0 0 0 0 0 0 2 1 0 0 0 0 0 0\n"]))
    assert host.read_network(11, str(proc)) == (1005, 9)
    assert host.read_network(12, str(proc)) is None


def test_energy_of_the_processors(tmp_path: Path) -> None:
    packages = [tmp_path / f"intel-rapl:{number}" for number in range(2)]
    for package in [*packages, tmp_path / "intel-rapl:0:0"]:  # the last is a part of a package
        package.mkdir()
        (package / "max_energy_range_uj").write_text("999999999\n")
        (package / "energy_uj").write_text("5000000\n")
    energy = host.CpuEnergy(str(tmp_path))
    assert energy.read() == 0.0
    (packages[0] / "energy_uj").write_text("8000000\n")
    (packages[1] / "energy_uj").write_text("4000000\n")  # it began anew
    assert energy.read() == 3.0 + 999.0
    (packages[1] / "energy_uj").unlink()
    assert energy.read() is None
    assert host.CpuEnergy(str(tmp_path / "absent")).read() is None


def test_host_figures(proc: Path) -> None:
    (proc / "meminfo").write_text("MemTotal:   100 kB\nMemFree:   10 kB\nMemAvailable:   40 kB\nBuffers: 1 kB\n")
    (proc / "stat").write_text("cpu  10 1 5 80 4 0 0 0 2 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
    assert host.read_memory(str(proc)) == (100 * 1024, 40 * 1024)
    assert host.read_cpu_ticks(str(proc)) == (16, 100)
    assert host.read_memory("/no/such") == (None, None)
    assert host.read_cpu_ticks("/no/such") is None
