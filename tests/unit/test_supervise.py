import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness import supervise
from harness.probe.layout import JobPaths
from harness.watch import progress
from tests.unit.jobs import (
    DEADLINE_S,
    END_KEYS,
    argv_of,
    events,
    eventually,
    make_job,
    processes_naming,
    read_end,
    stubborn,
)


@contextmanager
def supervised(
    job: JobPaths, pass_fds: tuple[int, ...] = (), argv: Sequence[str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", supervise.__file__, str(job.job), "--", *(argv or argv_of(job))],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=pass_fds,
        start_new_session=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def run(job: JobPaths) -> int:
    with supervised(job) as process:
        return process.wait(DEADLINE_S)


def when_ready(job: JobPaths) -> None:
    eventually((job.root / "ready").exists)


@pytest.mark.parametrize(
    ("command", "code", "exit_code"),
    [
        pytest.param(["true"], 0, 0, id="success"),
        pytest.param(["sh", "-c", "exit 7"], 7, 7, id="failure"),
        pytest.param(["sh", "-c", "kill -SEGV $$"], 139, -11, id="signal"),
    ],
)
def test_the_exit_code_of_the_command_is_passed_on(
    tmp_path: Path, command: list[str], code: int, exit_code: int
) -> None:
    job = make_job(tmp_path, command)
    assert run(job) == code
    end = read_end(job)
    assert (end["why"], end["exit_code"], end["clean"], end["killed"]) == ("exit", exit_code, True, [])
    assert end["started"] <= end["ended"]
    assert not list(tmp_path.glob("end.json.*"))


@pytest.mark.parametrize("code", [0, 7])
def test_nothing_outlives_a_command_that_ends(tmp_path: Path, code: int) -> None:
    job = make_job(tmp_path, stubborn(tmp_path, code))
    assert run(job) == code
    assert processes_naming(tmp_path) == []
    end = read_end(job)
    assert (end["why"], end["exit_code"], end["clean"], end["signal"]) == ("exit", code, True, None)
    killed = [event["pid"] for event in events(job) if event["e"] == "killed"]
    assert killed == end["killed"]
    assert len(killed) >= 3


def test_the_time_limit_ends_everything(tmp_path: Path) -> None:
    job = make_job(tmp_path, stubborn(tmp_path), time_limit_s=1.0)
    assert run(job) == 124
    assert processes_naming(tmp_path) == []
    end = read_end(job)
    assert (end["why"], end["exit_code"], end["clean"]) == ("time_limit", -signal.SIGTERM, True)
    assert [event["seconds"] for event in events(job) if event["e"] == "time_limit"] == [1.0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_everything(tmp_path: Path, number: signal.Signals) -> None:
    job = make_job(tmp_path, stubborn(tmp_path))
    with supervised(job) as process:
        when_ready(job)
        process.send_signal(number)
        assert process.wait(DEADLINE_S) == 128 + number
    assert processes_naming(tmp_path) == []
    end = read_end(job)
    assert (end["why"], end["signal"], end["clean"]) == ("signal", number.name, True)


def test_a_second_signal_ends_the_grace(tmp_path: Path) -> None:
    job = make_job(tmp_path, stubborn(tmp_path), grace_s=3600)
    with supervised(job) as process:
        when_ready(job)
        process.send_signal(signal.SIGINT)
        eventually(lambda: any(event["e"] == "ending" for event in events(job)))
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
    assert processes_naming(tmp_path) == []
    assert [event["name"] for event in events(job) if event["e"] == "signal"] == ["SIGINT", "SIGINT"]


def test_the_end_of_stdin_means_that_the_harness_died(tmp_path: Path) -> None:
    job = make_job(tmp_path, stubborn(tmp_path))
    with supervised(job) as process:
        when_ready(job)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(DEADLINE_S) == 143
    assert processes_naming(tmp_path) == []
    assert read_end(job)["why"] == "parent_died"


def test_the_parents_death_counts_also_while_a_fork_of_it_holds_the_pipe(tmp_path: Path) -> None:
    job = make_job(tmp_path, stubborn(tmp_path))
    read, write = os.pipe()
    starter = "import subprocess, sys; subprocess.Popen(sys.argv[2:], stdin=int(sys.argv[1])); input()"
    argv = [
        sys.executable,
        "-c",
        starter,
        str(read),
        sys.executable,
        "-I",
        "-S",
        supervise.__file__,
        str(job.job),
        "--",
        *argv_of(job),
    ]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, pass_fds=(read,)) as parent:
        when_ready(job)
        parent.kill()
    eventually(lambda: processes_naming(tmp_path) == [])
    assert read_end(job)["why"] == "parent_died"
    os.close(read)
    os.close(write)


def test_the_command_dies_with_a_killed_supervisor(tmp_path: Path) -> None:
    job = make_job(tmp_path, ["sleep", f"600.{os.getpid()}"])
    with supervised(job) as process:
        eventually(lambda: processes_naming(f"600.{os.getpid()}"))
        process.kill()
    eventually(lambda: not processes_naming(f"600.{os.getpid()}"))
    assert not job.end.exists()


@pytest.mark.parametrize(
    ("command", "cwd", "code", "text"),
    [
        pytest.param(["/no/such/program"], None, 127, "/no/such/program", id="not-found"),
        pytest.param(["/etc"], None, 126, "PermissionError", id="not-executable"),
        pytest.param(["true"], "/no/such/folder", 127, "/no/such/folder", id="no-cwd"),
        pytest.param([], None, 126, "Error", id="empty"),
    ],
)
def test_a_command_that_cannot_start(tmp_path: Path, command: list[str], cwd: str | None, code: int, text: str) -> None:
    job = make_job(tmp_path, command, cwd=cwd)
    assert run(job) == code
    end = read_end(job)
    assert (end["why"], end["exit_code"], end["clean"]) == ("start_failed", None, True)
    assert text in end["error"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": 1}'])
def test_an_unusable_job_file(tmp_path: Path, text: str) -> None:
    job = JobPaths(tmp_path)
    job.job.write_text(text)
    with supervised(job, argv=["true"]) as process:
        assert process.wait(DEADLINE_S) == 2
        assert process.stderr is not None
        assert b"cannot use job.json" in process.stderr.read()


def test_a_lost_folder_costs_neither_the_exit_code_nor_the_last_word(tmp_path: Path) -> None:
    job = make_job(tmp_path / "job", ["sh", "-c", f"rm -r '{tmp_path}/job'; exit 5"])
    with supervised(job) as process:
        assert process.wait(DEADLINE_S) == 5
        assert process.stderr is not None
        said = process.stderr.read()
    assert b"cannot write" in said
    assert b'"exit_code": 5' in said


def test_what_the_command_gets(tmp_path: Path) -> None:
    (tmp_path / "cwd").mkdir()
    told = "import os, signal, sys; print(os.getcwd(), [n for n in range(99) if os.path.exists(f'/proc/self/fd/{n}')], "
    told += "os.readlink('/proc/self/fd/0'), os.getsid(0) == os.getpid(), signal.getsignal(signal.SIGINT).__name__)"
    job = make_job(tmp_path, [sys.executable, "-c", told], cwd=str(tmp_path / "cwd"))
    lease = os.open(tmp_path, os.O_RDONLY)
    with supervised(job, pass_fds=(lease,)) as process:
        assert process.wait(DEADLINE_S) == 0
    os.close(lease)
    expected = f"{tmp_path}/cwd {[0, 1, 2, lease]} /dev/null True default_int_handler\n"
    assert job.launcher_log().read_text() == expected


SAMPLER = """
import os, pathlib, signal, sys, time
root, out = sys.argv[sys.argv.index("--root-pid") + 1], pathlib.Path(sys.argv[1])
lease = [fd for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and os.path.isdir(f"/proc/self/fd/{fd}/x")]
open(out / "sampler", "w").write(f"{root == str(os.getppid())} {lease}")
def last(*_):
    open(out / "last", "w").write(str((out / "command_ran").exists()))
    sys.exit(3)
if sys.argv[2] == "good":
    signal.signal(signal.SIGTERM, last)
else:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(out / "up", "w").close()
time.sleep(600)
"""


@pytest.mark.parametrize("manner", ["good", pytest.param("bad", marks=pytest.mark.slow)])
def test_the_sampler_frames_the_command_and_is_no_leftover(tmp_path: Path, manner: str) -> None:
    wait = f"while [ ! -e {tmp_path}/up ]; do sleep 0.02; done; touch {tmp_path}/command_ran"
    sampler = [sys.executable, "-c", SAMPLER, str(tmp_path), manner]
    (tmp_path / "x").mkdir()
    job = make_job(tmp_path, ["sh", "-c", wait], sampler=sampler)
    lease = os.open(tmp_path, os.O_RDONLY)
    with supervised(job, pass_fds=(lease,)) as process:
        assert process.wait(DEADLINE_S) == 0
    os.close(lease)
    assert (tmp_path / "sampler").read_text() == "True []"
    names = [event["e"] for event in events(job)]
    expected = ["start", "sampler_started", "command_started", "command_ended", "ending", "sampler_ended", "end"]
    assert names == expected
    ended = next(event["exit_code"] for event in events(job) if event["e"] == "sampler_ended")
    if manner == "good":
        assert (ended, (tmp_path / "last").read_text()) == (3, "True")
    else:
        assert ended == -signal.SIGKILL
    assert read_end(job)["killed"] == []
    assert processes_naming(tmp_path) == []


@pytest.mark.slow
def test_a_sampler_that_dies_is_started_anew(tmp_path: Path) -> None:
    """It writes how often it was started, and dies at its first two."""
    count = tmp_path / "count"
    sampler = f"echo x >> {count}; [ $(wc -l < {count}) -ge 3 ] || kill -KILL $$; exec sleep 600"
    wait = f"while [ $(cat {count} | wc -l) -lt 3 ]; do sleep 0.05; done"
    job = make_job(tmp_path, ["sh", "-c", wait], sampler=["sh", "-c", sampler, str(tmp_path)])
    assert run(job) == 0
    told = [event["e"].removeprefix("sampler_") for event in events(job) if event["e"].startswith("sampler")]
    assert told == ["started", "ended"] * 3
    assert processes_naming(tmp_path) == []


@pytest.mark.slow
def test_a_sampler_that_always_dies_is_given_up(tmp_path: Path) -> None:
    job = make_job(tmp_path, ["sleep", "15"], sampler=["false"])
    assert run(job) == 0
    assert [event["e"] for event in events(job)].count("sampler_started") == 4


def test_a_sampler_that_cannot_start_costs_nothing(tmp_path: Path) -> None:
    job = make_job(tmp_path, ["true"], sampler=["/no/such/sampler"])
    assert run(job) == 0
    assert {"sampler_ended"} < {event["e"] for event in events(job)}


def test_the_journal_holds_what_its_table_says(tmp_path: Path) -> None:
    job = make_job(tmp_path, stubborn(tmp_path), time_limit_s=0.5, sampler=["sleep", "600"])
    assert run(job) == 124
    for event in events(job):
        assert set(event) - {"t", "m", "e"} == set(supervise.SUPERVISOR_EVENTS[event["e"]])


@pytest.mark.parametrize(
    ("cgroup", "mount", "file", "text", "kills"),
    [
        pytest.param("0::/job", "/ {0} rw - cgroup2 none rw", "job/memory.events", "oom 1\noom_kill 3", 3, id="v2"),
        pytest.param("0::/", "/ {0} rw - cgroup2 none rw", "memory.events", "oom_kill 2", 2, id="v2-own-namespace"),
        pytest.param("0::/", "/ {0} rw - cgroup2 none rw", "cpu.max", "max 100000", None, id="v2-root"),
        pytest.param(
            "0::/../other", "/ {0} rw - cgroup2 none rw", "memory.events", "oom_kill 2", 2, id="v2-outside-of-the-mount"
        ),
        pytest.param(
            "4:memory:/a/b\n0::/",
            "/a {0} rw - cgroup none rw,memory",
            "b/memory.oom_control",
            "under_oom 0\noom_kill 5",
            5,
            id="v1-part-of-the-tree",
        ),
        pytest.param(
            "4:memory:/a", "/ {0} rw - cgroup none rw,cpu", "a/memory.oom_control", "oom_kill 5", None, id="other"
        ),
    ],
)
def test_processes_killed_for_memory_are_counted(
    tmp_path: Path, cgroup: str, mount: str, file: str, text: str, kills: int | None
) -> None:
    proc, tree = tmp_path / "proc", tmp_path / "cgroup tree"
    proc.mkdir()
    (tree / file).parent.mkdir(parents=True)
    (tree / file).write_text(f"{text}\n")
    (proc / "cgroup").write_text(f"{cgroup}\n")
    (proc / "mountinfo").write_text("31 23 0:28 " + mount.format(str(tree).replace(" ", r"\040")) + "\n")
    assert supervise.oom_kills(str(proc)) == kills


def test_no_cgroups_no_count(tmp_path: Path) -> None:
    assert supervise.oom_kills(str(tmp_path)) is None


def test_the_end_file_holds_what_the_contract_says(tmp_path: Path) -> None:
    job = make_job(tmp_path, ["true"])
    run(job)
    assert set(read_end(job)) == set(END_KEYS)
    assert stat.S_IMODE(job.end.stat().st_mode) == 0o600


def test_processes_that_come_back_when_asked_to_go(tmp_path: Path) -> None:
    """On SIGTERM each leaves a copy of itself in another session: one look at /proc never sees the last one."""
    code = """
import os, signal, sys, time
def again(*_):
    if os.fork():
        os._exit(0)
    os.setsid()
signal.signal(signal.SIGTERM, again)
open(sys.argv[1] + "/ready", "w").close()
while True:
    time.sleep(600)
"""
    job = make_job(tmp_path, [sys.executable, "-S", "-c", code, str(tmp_path)])
    with supervised(job) as process:
        when_ready(job)
        process.terminate()
        assert process.wait(DEADLINE_S) == 143
    assert processes_naming(tmp_path) == []
    assert read_end(job)["clean"]


def test_a_stopped_process_ends(tmp_path: Path) -> None:
    code = "import os, sys, time; open(sys.argv[1] + '/ready', 'w').close(); os.kill(os.getpid(), 19); time.sleep(600)"
    job = make_job(tmp_path, [sys.executable, "-S", "-c", code, str(tmp_path)], grace_s=DEADLINE_S)
    with supervised(job) as process:
        when_ready(job)
        process.terminate()
        assert process.wait(DEADLINE_S) == 143
    assert read_end(job)["killed"] == []


def test_descendants_are_the_living_ones(tmp_path: Path) -> None:
    table = [
        (10, 1, "S", 1),
        (11, 10, "S (x) R 1", 1),
        (12, 11, "S", 1),
        (13, 10, "Z", 1),
        (14, 10, "Z", 3),
        (15, 12, "S", 1),
    ]
    for pid, parent, state, threads in table:
        (tmp_path / str(pid)).mkdir()
        name, state = ("a) Z 9 (b", "S") if len(state) > 1 else ("a", state)
        fields = " ".join([str(parent), *["0"] * 15, str(threads), "0"])
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) {state} {fields}\n")
    (tmp_path / "16").mkdir()  # ended between listing and reading
    (tmp_path / "version").touch()
    assert sorted(supervise.descendants(10, proc=str(tmp_path))) == [11, 12, 14, 15]
    assert sorted(supervise.descendants(10, without=12, proc=str(tmp_path))) == [11, 14]
    assert supervise.descendants(99, proc=str(tmp_path)) == []


# A rank that has told of its start and listens for stacks as the probe does, then does what it is told to.
FAKE_RANK = """
import faulthandler, json, os, sys, time
folder, manner = sys.argv[1:3]
os.mkdir(folder + "/rank-0")
faulthandler.register(60, file=os.open(folder + "/rank-0/stacks.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT))
with open(folder + "/rank-0/events.jsonl", "w") as journal:
    journal.write(json.dumps({"e": "start", "pid": os.getpid()}) + "\\n")

def busy():
    while True:
        sum(range(1000))

def talks():
    for number in range(30):
        print("step", number, flush=True)
        time.sleep(0.2)

globals()[manner]()
"""


def fake_rank(root: Path, manner: str, **fields: object) -> JobPaths:
    return make_job(root, [sys.executable, "-S", "-c", FAKE_RANK, str(root), manner], **fields)


@pytest.mark.slow
def test_a_silent_job_hangs(tmp_path: Path) -> None:
    job = fake_rank(tmp_path, "busy", hang_after_s=4.0)
    assert run(job) == 124
    end = read_end(job)
    assert (end["why"], end["exit_code"], end["clean"]) == ("hang", -signal.SIGTERM, True)
    hang = end["hang"]
    assert (hang["lagging_rank"], hang["limit_s"], hang["ranks"]["0"]["event"]) == (None, 4.0, "start")
    told = {event["e"]: event for event in events(job)}
    assert {key: told["hang"][key] for key in hang} == hang
    assert (told["stacks"]["ranks"], told["stacks"]["without"]) == ([0], [])
    assert "in busy" in job.stacks(0).read_text()
    for event in events(job):
        assert set(event) - {"t", "m", "e"} == set(supervise.SUPERVISOR_EVENTS[event["e"]])


@pytest.mark.slow
def test_a_job_that_writes_does_not_hang(tmp_path: Path) -> None:
    job = fake_rank(tmp_path, "talks", hang_after_s=4.0)
    assert run(job) == 0
    end = read_end(job)
    assert (end["why"], end["hang"]) == ("exit", None)


@pytest.mark.slow
def test_at_the_time_limit_the_stacks_are_kept(tmp_path: Path) -> None:
    job = fake_rank(tmp_path, "busy", time_limit_s=3.0)
    assert run(job) == 124
    assert (read_end(job)["why"], read_end(job)["hang"]) == ("time_limit", None)
    assert [event["e"] for event in events(job)][-5:] == ["time_limit", "stacks", "ending", "command_ended", "end"]
    assert "in busy" in job.stacks(0).read_text()


def test_a_hang_of_many_ranks_fits_into_the_last_word(tmp_path: Path) -> None:
    """Its place is reserved; the event in the journal has them all."""
    ranks = {
        str(n): dict.fromkeys(("event", "step", "steps", "silent_s", "in_collective"), 123456) | {"at": "x" * 200}
        for n in range(999)
    }
    hang = progress.listed({"lagging_rank": 7, "ranks": ranks}, supervise._RANKS_LISTED)
    path = tmp_path / "end.json"
    supervise.EndFile(str(path)).write(hang=hang, killed=[4194304] * supervise._KILLED_LISTED)
    assert path.stat().st_size < supervise.EndFile._reserved_bytes - 2000


def test_what_the_kernel_says_while_the_job_runs(tmp_path: Path) -> None:
    device, path = tmp_path / "kmsg", tmp_path / "kernel.log"
    device.write_text("6,1,1000000,-;before the job\n")
    log = supervise.KernelLog(str(path), str(device))
    with device.open("a") as file:
        file.write("4,3,5000000,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.\n SUBSYSTEM=pci\n")
    log.write()
    (line,) = path.read_text().splitlines()
    assert line.endswith(" NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_kernel_lines_of_interest() -> None:
    records = [
        "6,1,1000000,-;usb 1-1: new device",
        "3,2,2500000,c;Memory cgroup out of memory: Killed process 7 (python3) total-vm:1kB\n DEVICE=x\n",
        "torn",
    ]
    assert list(supervise.kernel_lines(records, 100.0)) == [
        (102.5, "Memory cgroup out of memory: Killed process 7 (python3) total-vm:1kB")
    ]


@pytest.mark.parametrize("device", ["absent", "."])
def test_a_kernel_log_that_cannot_be_read(tmp_path: Path, device: str) -> None:
    supervise.KernelLog(str(tmp_path / "kernel.log"), str(tmp_path / device)).write()
    assert not (tmp_path / "kernel.log").exists()
