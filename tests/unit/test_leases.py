"""Leases among real processes."""

import json
import os
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness import leases
from harness.leases import LEASE_EVENTS, BusyError, LeaseError, lease, lock_dir
from tests.unit.jobs import DEADLINE_S, eventually

GPUS = ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]

# Leases in turn: POOL COUNT... ; says `held` when it has each, gives it back after HOLD seconds.
WORKER = """
import sys, time
from pathlib import Path
from harness.leases import lease
folder, name, pool, hold, *counts = sys.argv[1:]
files = {"lock_dir": Path(folder, "locks"), "journal": Path(folder, "leases.jsonl")}
for count in counts:
    with lease(pool.split(","), int(count), what=name, **files):
        print("held", flush=True)
        time.sleep(float(hold))
"""


class GivenUpError(Exception):
    """A test waits no longer; the text is what it was told."""


def give_up(told: str) -> None:
    """For `on_wait`."""
    raise GivenUpError(told)


@contextmanager
def worker(
    folder: Path, name: str, counts: list[int], hold_s: float, pool: list[str]
) -> Iterator["subprocess.Popen[str]"]:
    argv = [sys.executable, "-c", WORKER, str(folder), name, ",".join(pool), str(hold_s), *map(str, counts)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said_held(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"


def journal(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "leases.jsonl").read_text().splitlines()]


def overlaps(events: list[dict[str, Any]]) -> list[str]:
    """Ids that somebody acquired while another had them, by the order of the journal's lines."""
    held: dict[str, int] = {}
    found = []
    for event in events:
        for name in event["ids"] if event["e"] != "waiting" else ():
            if event["e"] == "acquired":
                found += [name] if name in held else []
                held[name] = event["pid"]
            else:
                assert held.pop(name) == event["pid"]
    return found


def test_a_lease_names_what_it_got(tmp_path: Path) -> None:
    log = tmp_path / "leases.jsonl"
    with lease(GPUS, 2, what="case", lock_dir=tmp_path / "locks", journal=log) as holding:
        assert holding.ids == ("GPU-0", "GPU-1")
        assert len(set(holding.fds)) == 2
        assert not any(os.get_inheritable(fd) for fd in holding.fds)
        with lease(GPUS, 2, what="other", lock_dir=tmp_path / "locks", journal=log) as second:
            assert second.ids == ("GPU-2", "GPU-3")
    assert [event["e"] for event in journal(tmp_path)] == ["acquired", "acquired", "released", "released"]
    with lease(GPUS, 4, what="case", lock_dir=tmp_path / "locks", on_wait=give_up):
        pass
    for fd in holding.fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


@pytest.mark.parametrize("count", [0, -1, 3])
def test_what_the_pool_cannot_give_is_refused(tmp_path: Path, count: int) -> None:
    with pytest.raises(ValueError, match="2 to lease"), lease(["a", "b", "a"], count, what="", lock_dir=tmp_path):
        pass


def test_waiting_tells_who_holds_and_what_it_prints_is_safe(tmp_path: Path) -> None:
    with lease(GPUS, 4, what="bad\x1b[31m\n" + "x" * 500, lock_dir=tmp_path):
        with (
            pytest.raises(GivenUpError, match=r"^waiting for 2 of GPU-1, GPU-2: GPU-1 held by process") as told,
            lease(["GPU-1", "GPU-2"], 2, what="me", lock_dir=tmp_path, on_wait=give_up),
        ):
            pass
        (tmp_path / "GPU-1.lock").write_text('{"pid": "x"}')
        (tmp_path / "GPU-2.lock").write_bytes(b"\xff\x00")
        with (
            pytest.raises(GivenUpError, match="GPU-2 held by a process that left no name"),
            lease(["GPU-1", "GPU-2"], 2, what="me", lock_dir=tmp_path, on_wait=give_up),
        ):
            pass
    assert f"GPU-1 held by process {os.getpid()}: bad?[31m?xxx" in str(told.value)
    assert str(told.value).isprintable()
    assert len(str(told.value)) < 600


def test_the_journal_tells_again_and_again_what_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "_NEXT_WORD_S", 0.2)  # a minute is too long for a test
    told: list[str] = []

    def third_time(text: str) -> None:
        told.append(text)
        if len(told) == 3:
            give_up(text)

    files: dict[str, Any] = {"lock_dir": tmp_path / "locks", "journal": tmp_path / "leases.jsonl"}
    with (
        lease(["GPU-0"], 1, what="holder", **files),
        pytest.raises(GivenUpError),
        lease(["GPU-0", "GPU-1"], 2, what="me", busy=lambda _: "used by 77", on_wait=third_time, **files),
    ):
        pass
    waiting = [event for event in journal(tmp_path) if event["e"] == "waiting"]
    assert [(event["what"], event["count"], event["pool"]) for event in waiting] == [("me", 2, ["GPU-0", "GPU-1"])] * 3
    for event in waiting:
        first, second = event["holders"]
        assert first.startswith(f"GPU-0 held by process {os.getpid()}: holder, since ")
        assert second == "GPU-1 used by 77"
        assert set(event) - {"t", "e"} == set(LEASE_EVENTS["waiting"])


def test_foreign_use_makes_an_id_unavailable(tmp_path: Path) -> None:
    told: list[str] = []
    asked: list[str] = []

    def busy(name: str) -> str | None:
        asked.append(name)
        return "used by process 77\n" if name == "GPU-0" and asked.count(name) < 2 else None

    with lease(["GPU-0", "GPU-1"], 1, what="", lock_dir=tmp_path, busy=busy) as holding:
        assert holding.ids == ("GPU-1",)
    asked.clear()
    with lease(["GPU-0", "GPU-1"], 2, what="", lock_dir=tmp_path, busy=busy, on_wait=told.append) as holding:
        assert holding.ids == ("GPU-0", "GPU-1")
    assert told == ["waiting for 2 of GPU-0, GPU-1: GPU-0 used by process 77?"]


# A job of somebody else's on GPU-1, in file `foreign`, keeps a lease of two from being had.
PREVENTED = """
import sys
from pathlib import Path
from harness.leases import lease
folder, limit = Path(sys.argv[1]), sys.argv[2]
busy = lambda name: "used by process 77" if name == "GPU-1" and (folder / "foreign").exists() else None
files = {"lock_dir": folder / "locks", "journal": folder / "leases.jsonl", "busy_limit_s": float(limit)}
with lease(["GPU-0", "GPU-1"], 2, what="big", busy=busy, **files) as holding:
    print(*holding.ids, flush=True)
"""


@contextmanager
def prevented(folder: Path, limit_s: float) -> Iterator["subprocess.Popen[str]"]:
    (folder / "foreign").touch()
    argv = [sys.executable, "-c", PREVENTED, str(folder), str(limit_s)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_smaller_leases_pass_one_that_foreign_processes_prevent(tmp_path: Path) -> None:
    with prevented(tmp_path, 600) as big:
        eventually(lambda: (tmp_path / "leases.jsonl").exists())  # it has said that it waits
        with worker(tmp_path, "small", [1, 1, 1], 0, ["GPU-0"]) as small:
            small.communicate(timeout=DEADLINE_S)
            assert small.returncode == 0
        assert big.poll() is None
        (tmp_path / "foreign").unlink()
        assert big.communicate(timeout=DEADLINE_S)[0] == "GPU-0 GPU-1\n"
    events = journal(tmp_path)
    assert events[0]["holders"] == ["GPU-1 used by process 77"]
    assert overlaps(events) == []
    assert [event["what"] for event in events if event["e"] == "acquired"] == ["small"] * 3 + ["big"]


def test_a_prevented_lease_does_not_cost_the_night(tmp_path: Path) -> None:
    with prevented(tmp_path, 0.3) as big:
        said = big.communicate(timeout=DEADLINE_S)[1].splitlines()[-1]
    assert big.returncode == 1
    assert said == ("harness.leases.BusyError: 2 of GPU-0, GPU-1 not free within 0.3 s: GPU-1 used by process 77")
    with lease(GPUS, 4, what="", lock_dir=tmp_path / "locks", on_wait=give_up):
        pass


def test_leases_of_others_are_waited_for_beyond_the_limit(tmp_path: Path) -> None:
    """GPU-0 is in foreign use, which prevents nothing: GPU-1 alone would do, and is leased."""
    with (
        lease(["GPU-1"], 1, what="holder", lock_dir=tmp_path),
        pytest.raises(GivenUpError, match="GPU-0 used by 77; GPU-1 held by process"),
        lease(
            ["GPU-0", "GPU-1"],
            1,
            what="me",
            lock_dir=tmp_path,
            busy=lambda name: "used by 77" if name == "GPU-0" else None,
            busy_limit_s=0,
            on_wait=give_up,
        ),
    ):
        pass
    with (
        pytest.raises(BusyError, match="used by 77"),
        lease(["GPU-0"], 1, what="me", lock_dir=tmp_path, busy=lambda _: "used by 77", busy_limit_s=0),
    ):
        pass


def test_two_invocations_never_overlap(tmp_path: Path) -> None:
    counts = {"a": [1, 2, 4, 1], "b": [2, 1, 3, 2], "c": [4, 1, 1], "d": [3, 2]}
    pools = {"a": GPUS, "b": GPUS, "c": GPUS[::-1], "d": GPUS[1:]}
    with ExitStack() as stack:
        running = [stack.enter_context(worker(tmp_path, name, counts[name], 0.05, pools[name])) for name in counts]
        for process in running:
            process.communicate(timeout=DEADLINE_S)
        assert [process.returncode for process in running] == [0] * 4
    events = journal(tmp_path)
    assert overlaps(events) == []
    asked = sorted(count for series in counts.values() for count in series)
    assert sorted(len(event["ids"]) for event in events if event["e"] == "acquired") == asked
    for event in events:
        assert set(event) - {"t", "e"} == set(LEASE_EVENTS[event["e"]])


def test_a_big_lease_is_not_starved(tmp_path: Path) -> None:
    """Small leases overlap so that all four are never free at once, unless somebody who came first is let through."""
    with ExitStack() as stack:
        small = [stack.enter_context(worker(tmp_path, f"small-{n}", [1] * 400, 0.2 + n / 20, GPUS)) for n in range(5)]
        for process in small[:4]:
            said_held(process)
        big = stack.enter_context(worker(tmp_path, "big", [4], 0, GPUS))
        big.communicate(timeout=DEADLINE_S)
        assert big.returncode == 0
        assert any(process.poll() is None for process in small)


def test_separate_pools_do_not_wait_for_each_other(tmp_path: Path) -> None:
    done = threading.Event()

    def want_both() -> None:
        with lease(["GPU-0", "GPU-1"], 2, what="big", lock_dir=tmp_path):
            done.set()

    with lease(["GPU-0"], 1, what="long", lock_dir=tmp_path):
        thread = threading.Thread(target=want_both)
        thread.start()
        eventually(
            lambda: b"big" in (tmp_path / "GPU-1.lock").read_bytes() if (tmp_path / "GPU-1.lock").exists() else 0
        )
        with lease(["GPU-2"], 1, what="other", lock_dir=tmp_path, on_wait=give_up):
            assert not done.is_set()
        with lease(["cpu-0"], 1, what="cpu", lock_dir=tmp_path, on_wait=give_up):
            pass
    thread.join(DEADLINE_S)
    assert done.is_set()


def test_a_killed_holder_frees_its_lease(tmp_path: Path) -> None:
    with worker(tmp_path, "dead", [4], 600, GPUS) as process:
        said_held(process)
        process.kill()
    with lease(GPUS, 4, what="", lock_dir=tmp_path / "locks", on_wait=give_up):
        pass


def test_a_lease_lasts_as_long_as_a_job_that_inherited_it(tmp_path: Path) -> None:
    holder = textwrap.dedent("""
        import subprocess, sys, time
        from pathlib import Path
        from harness.leases import lease
        with lease(["GPU-0"], 1, what="gone", lock_dir=Path(sys.argv[1])) as holding:
            job = subprocess.Popen(["sleep", "600"], pass_fds=holding.fds, stdout=subprocess.DEVNULL)
            print(job.pid, flush=True)
            time.sleep(600)
    """)
    argv = [sys.executable, "-c", holder, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        job = int(process.stdout.readline())
        process.kill()
    try:
        said = "GPU-0 held by process [0-9]+, which is gone, but a process it started is not: gone"
        with pytest.raises(GivenUpError, match=said), lease(["GPU-0"], 1, what="", lock_dir=tmp_path, on_wait=give_up):
            pass
    finally:
        os.kill(job, 9)
    with lease(["GPU-0"], 1, what="", lock_dir=tmp_path):
        pass


def test_an_error_while_collecting_keeps_nothing(tmp_path: Path) -> None:
    def busy(name: str) -> str | None:
        if name == "GPU-1":
            raise KeyboardInterrupt
        return None

    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(KeyboardInterrupt), lease(GPUS, 2, what="", lock_dir=tmp_path, busy=busy):
        pass
    assert len(os.listdir("/proc/self/fd")) == before
    with lease(GPUS, 4, what="", lock_dir=tmp_path, on_wait=give_up):
        pass


def test_the_folder_serves_all_users_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with lease(["GPU-0"], 1, what="", lock_dir=tmp_path / "new" / "locks"):
            pass
    finally:
        os.umask(before)
    folder = tmp_path / "new" / "locks"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o666}
    assert {path.name for path in folder.iterdir()} == {"GPU-0.lock", "turn-GPU-0.lock"}


def test_links_and_odd_files_are_refused(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    with pytest.raises(LeaseError, match="HARNESS_LOCK_DIR"), lease(["a"], 1, what="", lock_dir=tmp_path / "link"):
        pass
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (real / "a.lock").symlink_to(victim)
    with pytest.raises(LeaseError, match=r"a\.lock"), lease(["a"], 1, what="", lock_dir=real):
        pass
    assert victim.read_text() == "precious"
    os.mkfifo(real / "b.lock")
    with pytest.raises(LeaseError, match="no regular file"), lease(["b"], 1, what="", lock_dir=real):
        pass
    (real / "file").write_text("")
    with pytest.raises(LeaseError, match="lock folder"), lease(["a"], 1, what="", lock_dir=real / "file"):
        pass
    real.chmod(0o777)
    with pytest.raises(LeaseError, match=r"chmod \+t"), lease(["c"], 1, what="", lock_dir=real):
        pass


def test_a_removed_lock_file_is_made_again(tmp_path: Path) -> None:
    with lease(["a"], 1, what="", lock_dir=tmp_path):
        pass
    (tmp_path / "a.lock").unlink()
    with lease(["a"], 1, what="", lock_dir=tmp_path) as holding:
        assert os.path.samestat(os.fstat(holding.fds[0]), (tmp_path / "a.lock").stat())


def test_ids_cannot_leave_the_folder(tmp_path: Path) -> None:
    with lease(["../x/y", "MIG-GPU-a/1/0"], 2, what="", lock_dir=tmp_path / "locks"):
        pass
    names = {path.name for path in (tmp_path / "locks").iterdir() if not path.name.startswith("turn-")}
    assert names == {"_x_y.lock", "MIG-GPU-a_1_0.lock"}


def test_a_full_disk_costs_no_lease(tmp_path: Path) -> None:
    with lease(["a"], 1, what="", lock_dir=tmp_path, journal=tmp_path / "no" / "such" / "leases.jsonl") as holding:
        assert holding.ids == ("a",)


def test_the_lock_folder_is_the_same_for_all_unless_told() -> None:
    assert lock_dir({}) == lock_dir({"HOME": "/x", "USER": "y", "TMPDIR": "/z", "HARNESS_LOCK_DIR": ""})
    assert lock_dir({"HARNESS_LOCK_DIR": "/a"}) == Path("/a")
