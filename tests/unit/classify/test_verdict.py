"""Verdicts from hand-made evidence: the first cause of all ranks, or nothing."""

import io
from dataclasses import replace
from typing import Any

import pytest

from harness.classify.evidence import JobEvidence, KernelLine, exits_of
from harness.classify.log import scan
from harness.classify.verdict import judge
from harness.journal import RankJournal
from harness.record import Kind
from tests.unit.journals import T0, error, event, rank, step

OOM = (
    "CUDA out of memory. Tried to allocate 2.15 GiB. GPU 1 has a total capacity of 79.25 GiB of which 1.03 GiB is "
    "free. Including non-PyTorch memory, this process has 78.20 GiB memory in use."
)
PEER = "[gloo/transport/tcp/pair.cc:537] Connection closed by peer [127.0.0.1]:5029"
FINE = {"why": "exit", "exit_code": 0, "ended": T0 + 99}
BAD = {"why": "exit", "exit_code": 1, "ended": T0 + 99}


def evidence(end: dict[str, Any] | None, *ranks: RankJournal, **fields: Any) -> JobEvidence:
    return JobEvidence(end=end, ranks=ranks, world_size=max(len(ranks), 1), **fields)


def test_success() -> None:
    verdict = judge(evidence(FINE, rank(0, step(1), event("end", exit_code=0))))
    assert (verdict.kind, verdict.reason) == (Kind.NONE, "")


def test_exit_0_without_a_step_is_no_success() -> None:
    assert judge(evidence(FINE, rank(0, event("end", exit_code=0, steps=0)))).kind is Kind.NO_TRAINING
    assert judge(evidence(FINE)).kind is Kind.NO_TRAINING


def test_a_program_that_is_said_to_take_no_steps() -> None:
    assert judge(evidence(FINE, rank(0), expects_steps=False)).kind is Kind.NONE


def test_steps_that_the_optimizer_hook_saw_count() -> None:
    assert judge(evidence(FINE, rank(0, event("end", exit_code=0, steps=8, seen_by="optimizer")))).kind is Kind.NONE


def test_the_oom_of_one_rank_behind_the_errors_of_the_others() -> None:
    peer = error("RuntimeError", PEER, t=10)
    oom = error("torch.OutOfMemoryError", OOM, t=11, bases=["RuntimeError", "Exception"], part="backward")
    verdict = judge(evidence(BAD, rank(0, error=peer), rank(1, error=oom)))
    assert (verdict.kind, verdict.rank, verdict.step, verdict.part) == (Kind.GPU_OOM, 1, 3, "backward")
    assert verdict.reason == "rank 1 asked for 2.15 GiB, 1.03 GiB of 79.25 GiB free, step 3, backward"
    assert verdict.transient is False
    assert verdict.evidence[0].file == "rank-1/error.json"


@pytest.mark.parametrize(
    "type_name, message, told",
    [
        pytest.param(
            "RuntimeError",
            "CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 23.69 GiB total capacity; 21.00 GiB already "
            "allocated; 12.19 MiB free; 22.00 GiB reserved in total by PyTorch)",
            "asked for 20.00 MiB, 12.19 MiB of 23.69 GiB free",
            id="torch-1.12",
        ),
        pytest.param(
            "torch.cuda.OutOfMemoryError",
            "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacty of 10.00 GiB of which 4.00 MiB "
            "is free.",
            "asked for 1.00 GiB, 4.00 MiB of 10.00 GiB free",
            id="torch-2.1",
        ),
        pytest.param(
            "torch.AcceleratorError",
            "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'",
            None,
            id="torch-2.9",
        ),
        pytest.param(
            "RuntimeError",
            "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            None,
            id="cublas",
        ),
        pytest.param("RuntimeError", "HIP out of memory. Tried to allocate 3.00 GiB.", "asked for 3.00 GiB", id="rocm"),
    ],
)
def test_device_memory_by_every_spelling(type_name: str, message: str, told: str | None) -> None:
    verdict = judge(evidence(BAD, rank(0, error=error(type_name, message, bases=["RuntimeError"]))))
    assert verdict.kind is Kind.GPU_OOM
    if told:
        assert told in verdict.reason


def test_a_garbage_size_is_no_need_for_memory() -> None:
    bogus = error("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate more than 1EB memory.")
    assert judge(evidence(BAD, rank(0, error=bogus))).kind is Kind.NCCL


@pytest.mark.parametrize(
    "type_name, message, kind",
    [
        (
            "torch.distributed.DistBackendError",
            "NCCL error in: ProcessGroupNCCL.cpp:2395, unhandled system error",
            Kind.NCCL,
        ),
        ("RuntimeError", "[gloo] Timed out waiting 5000ms for recv operation to complete", Kind.NCCL),
        ("MemoryError", "", Kind.HOST_OOM),
        ("builtins.TypeError", "got an unexpected keyword argument 'evaluation_strategy'", Kind.USER_ERROR),
        ("ModuleNotFoundError", "No module named 'flash_attn'", Kind.USER_ERROR),
        ("RuntimeError", "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)", Kind.USER_ERROR),
        ("RuntimeError", "boom", Kind.UNKNOWN),
        (
            "huggingface_hub.errors.LocalEntryNotFoundError",
            "an error happened while trying to locate the file",
            Kind.NETWORK,
        ),
        ("OSError", "We couldn't connect to 'https://huggingface.co' to load this file", Kind.NETWORK),
        ("OSError", "[Errno 28] No space left on device: 'out/model.bin'", Kind.DISK_FULL),
        ("torch.AcceleratorError", "CUDA error: device-side assert triggered", Kind.CUDA_ERROR),
        ("torch.distributed.DistNetworkError", "The client socket has timed out after 60000ms", Kind.RENDEZVOUS),
        ("OSError", "Repo id must be in the form 'repo_name': './nosuch'", Kind.USER_ERROR),
        ("runpy._Error", "No module named nosuch", Kind.USER_ERROR),
    ],
)
def test_kind_by_exception(type_name: str, message: str, kind: Kind) -> None:
    bases = {
        "ModuleNotFoundError": ["ImportError"],
        "huggingface_hub.errors.LocalEntryNotFoundError": ["FileNotFoundError"],
    }
    verdict = judge(evidence(BAD, rank(0, error=error(type_name, message, bases=bases.get(type_name, [])))))
    assert verdict.kind is kind


def test_the_cause_of_a_wrapped_exception() -> None:
    chain = [{"type": "torch.OutOfMemoryError", "message": OOM, "link": "cause"}]
    seen = error("torch.OutOfMemoryError", OOM, part="backward", step=7)
    wrapped = error("ValueError", "training failed", chain=chain, step=None, phase="teardown", where="main")
    verdict = judge(evidence(BAD, rank(0, step(6), seen, error=wrapped)))
    assert (verdict.kind, verdict.step, verdict.part) == (Kind.GPU_OOM, 7, "backward")


@pytest.mark.parametrize(
    "type_name, kind", [("NameError", Kind.USER_ERROR), ("RuntimeError", Kind.GPU_OOM), ("mylib.Failed", Kind.GPU_OOM)]
)
def test_what_was_being_handled_counts_only_for_an_exception_nobody_knows(type_name: str, kind: Kind) -> None:
    chain = [{"type": "torch.OutOfMemoryError", "message": OOM, "link": "context"}]
    assert judge(evidence(BAD, rank(0, error=error(type_name, "boom", chain=chain)))).kind is kind


WORKER = "DataLoader worker (pid 9) is killed by signal: Killed. "
WORKERS = "DataLoader worker (pid(s) 9) exited unexpectedly"


@pytest.mark.parametrize(
    "raised, behind, link, kind, reason",
    [
        (("ConnectionResetError", "[Errno 104] Connection reset by peer"), WORKER, "context", Kind.KILLED, WORKER),
        (("RuntimeError", WORKERS), WORKER, "cause", Kind.KILLED, WORKER),
        (("RuntimeError", WORKERS), "", "cause", Kind.UNKNOWN, WORKERS),
    ],
)
def test_a_lost_process_and_what_is_behind_it(
    raised: tuple[str, str], behind: str, link: str, kind: Kind, reason: str
) -> None:
    chain = [{"type": "RuntimeError" if behind else "EOFError", "message": behind, "link": link}]
    lost = error(*raised, chain=chain)
    verdict = judge(evidence(BAD, rank(0, error=error("RuntimeError", PEER, t=10)), rank(1, error=lost)))
    assert (verdict.kind, verdict.rank) == (kind, 1)
    assert verdict.reason.endswith(f"RuntimeError: {reason}".strip())


TIMED_OUT = "[gloo] Timed out waiting 1800000ms for recv operation to complete"


@pytest.mark.parametrize("type_name, message", [("mylib.DataCorrupt", "shard 3"), ("RuntimeError", "assertion")])
def test_an_exception_nobody_knows_comes_before_the_time_out_of_its_peers(type_name: str, message: str) -> None:
    own = error(type_name, message, t=10)
    verdict = judge(evidence(BAD, rank(0, error=error("RuntimeError", TIMED_OUT, t=1600)), rank(1, error=own)))
    assert (verdict.kind, verdict.rank) == (Kind.UNKNOWN, 1)


def test_a_victim_of_its_watchdog_is_not_the_cause() -> None:
    own = error("mylib.DataCorrupt", "shard 3", t=10)
    verdict = judge(evidence(BAD, rank(0), rank(1, error=own), rank_exits={0: -6, 1: 1}))
    assert (verdict.kind, verdict.rank) == (Kind.UNKNOWN, 1)
    both = evidence(BAD, rank(0), rank(1), rank_exits={0: -6, 1: -9})
    assert (judge(both).kind, judge(both).rank) == (Kind.KILLED, 1)


def test_training_that_stopped_short_is_no_success() -> None:
    segment = event("segment", 0, segment=0, max_steps=20)
    stopped = rank(
        0, segment, step(1), step(2), error("torch.OutOfMemoryError", OOM, t=3), event("end", 4, exit_code=0)
    )
    verdict = judge(evidence(FINE, stopped))
    assert verdict.kind is Kind.GPU_OOM
    assert "went on without training" in verdict.reason
    again = event("segment", 5, segment=1, max_steps=2)
    went_on = rank(0, *[e for _, e in stopped.events], again, step(6, segment=1))
    assert judge(evidence(FINE, went_on)).kind is Kind.NONE


DONE = [event("segment", 0, segment=0, max_steps=3), step(1), step(2), step(3)]


@pytest.mark.parametrize(
    "failed, kind, reason",
    [
        (rank(1, *DONE, event("end", 9, exit_code=0)), Kind.NONE, ""),
        (rank(1, *DONE), Kind.NONE, ""),
        (rank(1, event("start"), event("end", exit_code=1), event("start"), *DONE), Kind.NONE, ""),
        (
            rank(1, *DONE, event("end", 9, exit_code=3)),
            Kind.UNKNOWN,
            "rank 1 ended with exit code 3; the command ended",
        ),
        (
            rank(1, *DONE[:2]),
            Kind.UNKNOWN,
            "rank 1 stopped without a word after step 1, and another took 3; the command",
        ),
        (
            rank(
                1,
                *DONE,
                event("end", 9, exit_code=1),
                error=error("OSError", "[Errno 28] No space left on device", t=8, where="main"),
            ),
            Kind.DISK_FULL,
            "left on device; the rank ended with exit code 1, and the command ended with exit code 0 all the same",
        ),
    ],
    ids=["well", "left-by-os._exit", "started-anew", "exit-code", "killed", "error-after-training"],
)
def test_trap_exit_code_0_with_a_failed_child(failed: RankJournal, kind: Kind, reason: str) -> None:
    verdict = judge(evidence(FINE, rank(0, *DONE, event("end", 9, exit_code=0)), failed))
    assert verdict.kind is kind
    assert reason in verdict.reason
    assert verdict.rank == (None if kind is Kind.NONE else 1)


def test_a_second_try_that_hangs_is_a_timeout() -> None:
    first = [step(1), error("torch.OutOfMemoryError", OOM, t=2), event("segment", 3, segment=1, max_steps=20)]
    end = {"why": "time_limit", "exit_code": -15, "ended": T0 + 60}
    assert judge(evidence(end, rank(0, *first), time_limit_s=60.0, ending_t=T0 + 50)).kind is Kind.TIMEOUT


@pytest.mark.parametrize("why", ["signal", "parent_died", "supervisor_died", "time_limit"])
def test_an_out_of_memory_error_before_the_job_was_ended(why: str) -> None:
    oom = error("torch.OutOfMemoryError", OOM, t=10)
    end = {"why": why, "signal": "SIGTERM", "exit_code": -15}
    assert judge(evidence(end, rank(0, step(1)), rank(1, error=oom), ending_t=T0 + 50)).kind is Kind.GPU_OOM


def test_a_usage_error_under_a_launcher() -> None:
    tails = {
        "rank-0/stderr.log": "train.py: error: unrecognized arguments: --lrr\n",
        "node-0/launcher.log": "torchrun\n",
    }
    ended = event("end", exit_code=2)
    for found in (
        evidence(BAD, rank(0), rank(1), tails=tails, rank_exits={0: 2, 1: 2}),
        evidence(BAD, rank(0, ended), rank(1, ended), tails=tails),
    ):
        verdict = judge(found)
        assert verdict.kind is Kind.USER_ERROR
        assert "--lrr" in verdict.reason


def test_a_lost_peer_with_no_better_cause_names_no_root_rank() -> None:
    verdict = judge(evidence(BAD, rank(0, error=error("RuntimeError", PEER)), rank(1)))
    assert (verdict.kind, verdict.rank, verdict.transient) == (Kind.NCCL, None, True)
    assert verdict.reason.startswith("rank 0, step 3: RuntimeError")


def test_the_first_of_two_causes_in_time() -> None:
    late = error("TypeError", "late", t=20)
    early = error("torch.OutOfMemoryError", OOM, t=19)
    assert judge(evidence(BAD, rank(0, error=late), rank(1, error=early))).kind is Kind.GPU_OOM


def test_the_silent_rank_is_the_one_that_was_killed() -> None:
    silent = evidence(BAD, rank(0, error=error("RuntimeError", PEER)), rank(1, step(1)), rank_exits={0: -15, 1: -9})
    verdict = judge(silent)
    assert (verdict.kind, verdict.rank, verdict.step) == (Kind.KILLED, 1, 2)
    assert judge(replace(silent, rank_exits={0: -15, 1: -11})).kind is Kind.CRASH


@pytest.mark.parametrize(
    "said, kind",
    [
        ("subprocess.CalledProcessError: Command '['python']' died with <Signals.SIGKILL: 9>.", Kind.KILLED),
        ("subprocess.CalledProcessError: Command '['python']' died with <Signals.SIGSEGV: 11>.", Kind.CRASH),
        ("torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with signal SIGKILL", Kind.KILLED),
        ("subprocess.CalledProcessError: Command '['python']' returned non-zero exit status 1.", Kind.UNKNOWN),
    ],
)
@pytest.mark.parametrize("file", ["node-0/launcher.log", "rank-0/stderr.log"])
@pytest.mark.parametrize("ended", [False, True])
def test_the_only_rank_below_a_launcher_of_the_targets_own(said: str, kind: Kind, file: str, ended: bool) -> None:
    """A launcher ends with 1 whatever has ended the rank; in a rank's own log it is a helper of the rank."""
    log = scan(io.BytesIO(f"Traceback (most recent call last):\n{said}\n".encode()), file)
    only = rank(0, step(1), *([event("end", exit_code=7)] if ended else []))
    verdict = judge(evidence(BAD, only, logs=[log], rank_exits=exits_of([log])))
    if ended:
        told = "rank 0 ended with exit code 7 and no exception was seen"
        assert (verdict.kind, verdict.rank, verdict.reason) == (Kind.UNKNOWN, 0, told)
    elif file == "node-0/launcher.log" and kind is not Kind.UNKNOWN:
        assert (verdict.kind, verdict.rank) == (kind, 0)
    else:
        assert verdict.kind is Kind.UNKNOWN


def test_a_rank_that_was_told_to_end() -> None:
    told = evidence(BAD, rank(0, error=error("RuntimeError", PEER)), rank(1, step(1)), rank_exits={0: 1, 1: -15})
    verdict = judge(told)
    assert (verdict.kind, verdict.rank, verdict.transient) == (Kind.KILLED, 1, True)
    assert verdict.reason == "rank 1 was ended by SIGTERM"
    assert judge(replace(told, rank_exits={0: 1, 1: -2})).transient is False
    assert judge(replace(told, supervised=False)).kind is Kind.NCCL  # another launcher's doing, maybe


def test_killed_for_memory_only_where_the_counter_says_so() -> None:
    killed = {"why": "exit", "exit_code": -9, "ended": T0}
    assert judge(evidence(killed | {"oom_kill": 0}, rank(0))).kind is Kind.KILLED
    assert judge(evidence(killed | {"oom_kill": 1}, rank(0))).kind is Kind.HOST_OOM


def test_of_the_kernels_kills_that_of_a_rank_counts() -> None:
    killed = "Memory cgroup out of memory: Killed process {} (python) total-vm:1kB"
    kernel = [KernelLine(killed.format(pid), "node-0/kernel.log", pid) for pid in (41, 42)]
    ranks = rank(0, event("start", pid=40)), rank(1, event("start", pid=42))
    verdict = judge(evidence(BAD | {"oom_kill": 1}, *ranks, rank_exits={0: 1, 1: -9}, kernel=kernel))
    assert (verdict.kind, verdict.rank) == (Kind.HOST_OOM, 1)
    assert verdict.reason == "rank 1 was killed: its control group was out of memory: kernel killed process 42"
    assert verdict.evidence[0].line == 42


def test_an_exception_caught_for_good_is_no_verdict() -> None:
    caught = error("torch.OutOfMemoryError", OOM, t=2)
    after = rank(0, step(1), caught, step(3))
    verdict = judge(evidence(BAD, after))
    assert verdict.kind is Kind.UNKNOWN


def test_an_exception_that_left_no_error_file() -> None:
    lost = rank(0, step(1), error("torch.OutOfMemoryError", OOM, t=2))
    verdict = judge(evidence(BAD, lost))
    assert verdict.kind is Kind.GPU_OOM
    assert (verdict.evidence[0].file, verdict.evidence[0].line) == ("rank-0/events.jsonl", 2)


def hang(lagging: int | None, **ranks: Any) -> dict[str, Any]:
    told = {
        name.removeprefix("r"): {"step": step, "in_collective": waits, "at": at}
        for name, (step, waits, at) in ranks.items()
    }
    return {
        "why": "hang",
        "exit_code": -15,
        "ended": T0 + 99,
        "hang": {"lagging_rank": lagging, "silent_s": 900.4, "limit_s": 900.0, "ranks": told},
    }


@pytest.mark.parametrize(
    "end, kind, root, reason",
    [
        pytest.param(
            hang(1, r0=(3, True, "c10d.py:5 in all_reduce"), r1=(3, False, "train.py:9 in load")),
            Kind.NCCL,
            1,
            "no rank got on for 900 s; rank 1 lags after step 3, at train.py:9 in load; rank 0 waits in a collective "
            "operation",
            id="one lags",
        ),
        pytest.param(
            hang(None, r0=(3, True, "c10d.py:5 in all_reduce"), r1=(3, True, "c10d.py:5 in all_reduce")),
            Kind.NCCL,
            None,
            "no rank got on for 900 s; one of them at c10d.py:5 in all_reduce; ranks 0, 1 wait in a collective "
            "operation",
            id="all wait",
        ),
        pytest.param(
            hang(None, r0=(None, False, "train.py:9 in load")),
            Kind.TIMEOUT,
            0,
            "no rank got on for 900 s; rank 0 at train.py:9 in load",
            id="one rank alone",
        ),
        pytest.param(hang(None, r0=(None, None, None)), Kind.TIMEOUT, 0, "no rank got on for 900 s", id="no stacks"),
        pytest.param({"why": "hang", "hang": None}, Kind.TIMEOUT, None, "no rank got on", id="nothing known"),
    ],
)
def test_a_hang(end: dict[str, Any], kind: Kind, root: int | None, reason: str) -> None:
    verdict = judge(evidence(end, rank(0, step(3)), rank(1, step(3)), ending_t=T0 + 90))
    assert (verdict.kind, verdict.rank, verdict.reason, verdict.transient) == (kind, root, reason, None)
    if root == 1:
        assert [(fact.file, fact.text) for fact in verdict.evidence[:2]] == [
            ("rank-1/stacks.txt", "at train.py:9 in load"),
            ("rank-0/stacks.txt", "at c10d.py:5 in all_reduce"),
        ]


def test_what_ended_a_rank_before_the_hang_is_its_cause() -> None:
    oom = error("torch.OutOfMemoryError", OOM, t=11)
    assert judge(evidence(hang(None), rank(0, error=oom), rank(1), ending_t=T0 + 90)).kind is Kind.GPU_OOM


def test_batch_sizes_that_were_tried_before_none_was_left() -> None:
    tried = [error("torch.OutOfMemoryError", OOM.replace("2.15", size), where="retry") for size in ("2.15", "1.10")]
    left = error("RuntimeError", "No executable batch size found, reached zero.", t=60)
    verdict = judge(evidence(BAD, rank(0, *tried, error=left)))
    assert (verdict.kind, verdict.rank) == (Kind.GPU_OOM, 0)
    assert "asked for 2.15 GiB, 1.03 GiB of 79.25 GiB free at first; no batch size fits" in verdict.reason


def test_time_limit_says_where_it_struck() -> None:
    end = {"why": "time_limit", "exit_code": -15, "ended": T0 + 60}
    journal = rank(0, event("phase", name="steady"), *[step(n) for n in range(1, 12)])
    verdict = judge(evidence(end, journal, time_limit_s=60.0, ending_t=T0 + 50))
    assert (verdict.kind, verdict.step, verdict.phase) == (Kind.TIMEOUT, 12, "steady")
    assert verdict.reason == "time limit of 60 s reached, step 12, steady"


@pytest.mark.parametrize("why, kind", [("time_limit", Kind.TIMEOUT), ("signal", Kind.KILLED)])
def test_where_several_ranks_stood_when_they_were_ended(why: str, kind: Kind) -> None:
    end = {"why": why, "signal": "SIGTERM", "exit_code": 1, "ended": T0 + 60}
    level = judge(evidence(end, rank(0, step(1)), rank(1, step(1))))
    behind = judge(evidence(end, rank(0, step(1), step(2)), rank(1, step(1))))
    assert (level.kind, level.rank, behind.rank) == (kind, None, 1 if why == "time_limit" else None)
    assert level.reason.endswith(", step 2, start")


def test_an_error_before_the_time_limit_is_the_cause_of_the_hang() -> None:
    end = {"why": "time_limit", "exit_code": -15, "ended": T0 + 60}
    before = evidence(end, rank(0), rank(1, error=error("torch.OutOfMemoryError", OOM, t=30)), ending_t=T0 + 50)
    assert judge(before).kind is Kind.GPU_OOM
    assert judge(replace(before, ending_t=T0 + 20)).kind is Kind.TIMEOUT


@pytest.mark.parametrize(
    "end, told",
    [
        ({"why": "signal", "signal": "SIGINT", "exit_code": -2}, "SIGINT"),
        ({"why": "parent_died", "exit_code": -15}, "the harness died"),
        ({"why": "supervisor_died", "exit_code": None}, "the supervisor was killed"),
        (None, "no last word"),
    ],
)
def test_ended_from_outside(end: dict[str, Any] | None, told: str) -> None:
    verdict = judge(evidence(end, rank(0, step(1))))
    assert verdict.kind is Kind.KILLED
    assert told in verdict.reason


def test_start_failed() -> None:
    verdict = judge(evidence({"why": "start_failed", "error": "no such file: python9", "exit_code": None}))
    assert verdict.kind is Kind.USER_ERROR
    assert "python9" in verdict.reason


def test_usage_error_by_exit_code() -> None:
    tails = {"rank-0/stderr.log": "usage: train.py\ntrain.py: error: argument --lr: invalid float value: 'x'\n"}
    verdict = judge(evidence({"why": "exit", "exit_code": 2}, rank(0), tails=tails))
    assert verdict.kind is Kind.USER_ERROR
    assert "invalid float value" in verdict.reason


def test_nothing_to_go_on_is_unknown() -> None:
    assert judge(evidence(BAD, rank(0, step(1)))).kind is Kind.UNKNOWN
    silent = judge(evidence(BAD, rank(0), rank(1, step(1)), rank_exits={0: -15, 1: 7}))
    assert (silent.kind, silent.rank) == (Kind.UNKNOWN, 1)
    assert "exit code 7" in silent.reason


def test_the_last_words_of_several_ranks_that_swallow_their_errors() -> None:
    nccl = "NCCL error in: ProcessGroupNCCL.cpp:1, remote process exited or there was a network error, ncclRemoteError"
    told = {"rank-0/stdout.log": f"failed: {nccl}\n", "rank-1/stdout.log": f"failed: {OOM}\n"}
    logs = [scan(io.BytesIO(text.encode()), name, int(name[5])) for name, text in told.items()]
    verdict = judge(evidence(BAD, rank(0), rank(1), logs=logs))
    assert (verdict.kind, verdict.rank) == (Kind.GPU_OOM, 1)
    assert judge(evidence(BAD, rank(0), rank(1), logs=logs[:1])).kind is Kind.NCCL


def test_a_reason_is_one_line() -> None:
    verdict = judge(evidence(BAD, rank(0, error=error("RuntimeError", "a\nb\r\n" + "c" * 9999))))
    assert "\n" not in verdict.reason
    assert len(verdict.reason) <= 400


def test_rank_exits_of_the_launcher() -> None:
    text = (
        "Failures:\n"
        "  rank      : 0 (local_rank: 0)\n  exitcode  : -15 (pid: 20984)  (SIGTERM)\n  error_file: <N/A>\n"
        "  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 20985)  (SIGKILL)\n"
    )
    assert rank_exits(text) == {0: -15, 1: -9}
    assert rank_exits(f"W1201 api.py:1028] Sending process 20984 closing signal SIGTERM\n{text}") == {1: -9}


def rank_exits(text: str) -> dict[int, int]:
    return exits_of([scan(io.BytesIO(text.encode()), "launcher.log")])


def test_a_loss_that_is_no_number_to_the_end() -> None:
    ended = event("end", 9, exit_code=0)
    good = [step(n) for n in range(1, 4)]
    diverged = [step(n, loss="NaN") for n in range(4, 8)]
    verdict = judge(evidence(FINE, rank(0, *good, *diverged, ended)))
    assert (verdict.kind, verdict.step) == (Kind.NAN_LOSS, 4)
    assert judge(evidence(FINE, rank(0, *diverged, step(8), ended))).kind is Kind.NONE


def test_a_launcher_that_was_killed() -> None:
    killed = {"why": "exit", "exit_code": -9, "ended": T0}
    assert judge(evidence(killed, rank(0), rank(1))).kind is Kind.KILLED
    assert judge(evidence(killed | {"oom_kill": 2}, rank(0), rank(1))).kind is Kind.HOST_OOM


def test_a_job_that_ended_well_and_changed_nothing() -> None:
    """Judged here and not over the verdict: who asks of a job directory gets the record's answer."""
    steps = [step(number, grad_norm=0.0) for number in range(1, 7)]
    idle = rank(0, *steps, event("end", exit_code=0))
    verdict = judge(evidence(FINE, idle))
    assert (verdict.kind, verdict.rank, verdict.transient) == (Kind.NO_TRAINING, 0, False)
    assert verdict.reason == "rank 0: the gradient norm is 0 in all 6 steps"
    assert [fact.file for fact in verdict.evidence] == ["rank-0/events.jsonl", "end.json"]
    assert judge(evidence(FINE, idle, expects_steps=False)).kind is Kind.NONE


def test_a_rank_that_left_without_a_word_is_not_the_networks_fault() -> None:
    ends = rank(0, step(1), error=error("RuntimeError", PEER, t=10)), rank(1, step(1))
    verdict = judge(evidence(BAD, *ends, rank_exits={0: 1, 1: 9}))
    assert (verdict.kind, verdict.rank, verdict.transient) == (Kind.UNKNOWN, 1, None)
    assert verdict.reason == "rank 1 ended with exit code 9 and no exception was seen; its peers lost it"
    assert [(each.kind, each.rank) for each in verdict.secondary] == [(Kind.NCCL, 0)]


def test_a_rank_that_left_and_wrote_so_itself() -> None:
    ends = rank(0, error=error("RuntimeError", PEER, t=10)), rank(1, event("end", exit_code=3))
    verdict = judge(evidence(BAD, *ends))
    assert (verdict.kind, verdict.rank) == (Kind.UNKNOWN, 1)


def test_a_rank_that_fell_silent_before_it_was_seen_tells_nothing() -> None:
    """Its probe never ran, so that its silence shows nothing: the others' words are all there is."""
    verdict = judge(evidence(BAD, rank(0, error=error("RuntimeError", PEER, t=10)), rank_exits={1: 9}))
    assert (verdict.kind, verdict.rank, verdict.transient) == (Kind.NCCL, None, None)
    assert verdict.reason.endswith("rank 1 ended with exit code 9 and told nothing")


def test_of_a_loader_workers_traceback_the_end_is_told() -> None:
    message = (
        "Caught FileNotFoundError in DataLoader worker process 0.\n"
        "Original Traceback (most recent call last):\n"
        '  File "/site-packages/torch/utils/data/_utils/worker.py", line 374, in _worker_loop\n'
        "    data = fetcher.fetch(index)\n"
        "           ^^^^^^^^^^^^^^^^^^^^\n"
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/shard-7.bin'\n"
    )
    verdict = judge(evidence(BAD, rank(0, error=error("FileNotFoundError", message, t=10, part="data"))))
    assert verdict.reason == (
        "rank 0, step 3, data: FileNotFoundError: Caught FileNotFoundError in DataLoader worker process 0. "
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/shard-7.bin'"
    )


def followed() -> RankJournal:
    """A process that ran out of memory, and the next, which trained to its end."""
    oom = error("torch.OutOfMemoryError", OOM, t=5)
    first = [event("start", t=1), step(1), oom, event("end", t=6, exit_code=1, steps=1)]
    return rank(0, *first, event("start", t=60), step(61), event("end", t=90, exit_code=0, steps=1))


def test_what_ended_a_process_that_another_followed_is_no_cause_beside_another() -> None:
    said = b"""Traceback (most recent call last):
  File "train.py", line 1, in <module>
torch.OutOfMemoryError: %s
Traceback (most recent call last):
  File "driver.py", line 5, in <module>
    raise ValueError("my report has no template")
ValueError: my report has no template
""" % OOM.encode()
    log = scan(io.BytesIO(said), "node-0/launcher.log")
    verdict = judge(evidence(BAD, followed(), logs=[log]))
    assert verdict.kind is not Kind.GPU_OOM
    assert "my report has no template" in verdict.reason
    assert judge(evidence(FINE, followed())).kind is Kind.NONE


def test_a_driver_that_fails_for_one_of_its_trainings_tells_nothing_else() -> None:
    verdict = judge(evidence(BAD, followed()))
    assert (verdict.kind, verdict.rank) == (Kind.GPU_OOM, 0)


def test_a_process_that_was_killed_after_another_ended_well() -> None:
    """The end that stands in the journal is not its own."""
    first = [event("start"), step(1), event("end", t=2, exit_code=0, steps=1)]
    lost = error("torch.OutOfMemoryError", OOM, t=50)
    assert judge(evidence(BAD, rank(0, *first, event("start", t=10), step(11), lost))).kind is Kind.GPU_OOM
