"""Whole logs: the first cause of all ranks, through chains of exceptions, launchers' summaries and interleaving."""

import base64
import io
from typing import Any

import pytest

from harness.classify import evidence_of, judge, of_logs, scan
from harness.record import Kind, Verdict

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.15 GiB. GPU 1 has a total capacity of 79.25 GiB "
    "of which 1.03 GiB is free."
)
CLOSED = "RuntimeError: [/p/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:8366."
DIRECT = "\nThe above exception was the direct cause of the following exception:\n\n"
DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"


def ended(log: str, exit_code: int | None = 1, **more: Any) -> Verdict:
    return judge(evidence_of({"stderr": log, "exit_code": exit_code, **more}))


def trace(error: str, prefix: str = "") -> str:
    lines = [
        "Traceback (most recent call last):",
        '  File "/a/train.py", line 3, in main',
        "    run()",
        *error.split("\n"),
    ]
    return "".join(f"{prefix}{line}\n" for line in lines)


def summary(*exits: tuple[int, int], closed: tuple[int, ...] = ()) -> str:
    """torchrun's words on ranks that failed: (rank, exit code); the last is the one it calls the root cause."""
    text = "".join(f"W1201 api.py:1028] Sending process {1000 + rank} closing signal SIGTERM\n" for rank in closed)
    text += "=" * 60 + "\ntrain.py FAILED\n" + "-" * 60 + "\nFailures:\n"
    entries = [
        f"[{n}]:\n  time      : 2026-12-01_01:52:00\n  host      : node-0\n  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : {code} (pid: {1000 + rank})\n  error_file: <N/A>\n  traceback : To enable traceback see: x\n"
        for n, (rank, code) in enumerate(exits)
    ]
    text += "".join(entries[:-1]) or "  <NO_OTHER_FAILURES>\n"
    return text + "-" * 60 + "\nRoot Cause (first observed failure):\n" + entries[-1] + "=" * 60 + "\n"


def test_a_silent_rank_that_was_killed_is_the_root() -> None:
    log = trace(CLOSED, "[rank0]: ") + summary((0, -15), (1, -9), closed=(0,))
    verdict = ended(log)
    assert (verdict.kind, verdict.rank, verdict.transient) == (Kind.KILLED, 1, None)
    assert verdict.secondary[0].kind is Kind.NCCL
    crashed = ended(trace(CLOSED, "[rank0]: ") + summary((0, -15), (1, -11), closed=(0,)))
    assert (crashed.kind, crashed.rank) == (Kind.CRASH, 1)


def test_a_line_of_an_exception_without_its_traceback() -> None:
    line = "ModuleNotFoundError: No module named 'tensorrt'\n"
    assert ended(line).kind is Kind.USER_ERROR
    assert ended(line + summary((1, -9))).kind is Kind.KILLED
    assert ended(line + trace("RuntimeError: CUDA error: misaligned address")).kind is Kind.CUDA_ERROR


def test_ranks_that_abort_after_another_failed() -> None:
    watchdog = (
        "[rank{0}]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:607] [Rank {0}] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600062 ms.\n"
    )
    log = (
        watchdog.format(0)
        + watchdog.format(2)
        + trace("KeyError: 'x'", "[rank1]: ")
        + summary((0, -6), (2, -6), (1, 1))
    )
    assert (ended(log).kind, ended(log).rank) == (Kind.USER_ERROR, 1)
    silent = ended(watchdog.format(0) + watchdog.format(2))
    assert (silent.kind, silent.rank) == (Kind.NCCL, 1)
    assert "rank 1" in silent.reason


def test_ranks_in_different_collectives() -> None:
    line = (
        "[rank{0}]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:607] [Rank {0}] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=9, OpType={1}, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600062 ms.\n"
    )
    verdict = ended(line.format(0, "ALLREDUCE") + line.format(1, "BROADCAST"), -6)
    assert (verdict.kind, verdict.transient, verdict.rank) == (Kind.NCCL, False, None)
    assert "different collectives" in verdict.reason


def test_a_barrier_names_who_is_missing() -> None:
    verdict = ended(trace("RuntimeError: [Rank 0]: Ranks 2, 3 failed to pass monitoredBarrier in 5000 ms", "[rank0]: "))
    assert (verdict.kind, verdict.rank) == (Kind.NCCL, 2)


def test_a_rank_that_hangs_is_ended_by_the_launcher_and_says_nothing() -> None:
    waited = "RuntimeError: [/p/gloo/transport/tcp/b.cc:7] Timed out waiting 5000ms for recv operation to complete"
    verdict = ended(trace(waited, "[rank0]: ") + summary((1, -15), (0, 1), closed=(1,)))
    assert (verdict.kind, verdict.rank, verdict.transient) == (Kind.NCCL, 1, None)
    assert "5000 ms" in verdict.reason


def test_the_rank_without_a_prefix_is_the_one_that_failed_by_itself() -> None:
    verdict = ended(trace("KeyError: 'x'") + summary((0, -15), (1, 1), closed=(0,)))
    assert (verdict.kind, verdict.rank) == (Kind.USER_ERROR, 1)


@pytest.mark.parametrize(
    "deepest, transient",
    [
        ("httpx2.HTTPStatusError: Server error '504 Gateway Timeout' for url 'https://huggingface.co/x'", True),
        ("httpx2.HTTPStatusError: Client error '404 Not Found' for url 'https://huggingface.co/x'", False),
        ("httpx2.ConnectError: [Errno 111] Connection refused", True),
        (
            "huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://x/y: offline mode is enabled.",
            False,
        ),
        (
            "requests.exceptions.ConnectionError: ('Connection aborted.', ConnectionResetError(104, 'reset'))",
            True,
        ),
    ],
)
def test_the_cause_tells_whether_a_retry_helps(deepest: str, transient: bool) -> None:
    middle = (
        "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub"
    )
    outer = "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them."
    verdict = ended(DIRECT.join([trace(deepest), trace(middle), trace(outer)]))
    assert (verdict.kind, verdict.transient) == (Kind.NETWORK, transient)


def test_a_cause_that_was_never_raised_is_one_line() -> None:
    offline = "huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://x/y: offline mode is enabled.\n"
    outer = (
        "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub"
    )
    noise = "epoch 1 of 9, all is well\n" * 30_000
    for log in (offline + DIRECT + trace(outer), noise + offline + DIRECT + trace(outer) + noise):
        verdict = ended(log)
        assert (verdict.kind, verdict.transient) == (Kind.NETWORK, False)


def test_a_gated_repository_behind_its_status_is_the_users() -> None:
    status = "httpx2.HTTPStatusError: Client error '403 Forbidden' for url 'https://huggingface.co/x'"
    gated = (
        "huggingface_hub.errors.GatedRepoError: 403 Client Error. (Request ID: x)\n\nCannot access gated repo for x."
    )
    outer = (
        "OSError: You are trying to access a gated repo.\nMake sure to have access to it at https://huggingface.co/x."
    )
    assert ended(DIRECT.join([trace(status), trace(gated), trace(outer)])).kind is Kind.USER_ERROR


def test_a_writer_that_failed_and_why() -> None:
    log = trace("OSError: [Errno 28] No space left on device") + DURING
    log += trace("RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 576 vs 470")
    assert (ended(log).kind, ended(log).transient) == (Kind.DISK_FULL, False)


def test_a_mistake_in_a_handler_is_a_mistake() -> None:
    assert ended(trace(OOM) + DURING + trace("NameError: name 'x' is not defined")).kind is Kind.USER_ERROR
    assert ended(trace(OOM) + DIRECT + trace("ValueError: training failed")).kind is Kind.GPU_OOM


def test_no_batch_size_fits() -> None:
    goes_on = "".join(f"step {n} loss 2.0\n" for n in range(20))
    verdict = ended(trace(OOM) + goes_on + trace("RuntimeError: No executable batch size found, reached zero."))
    assert (verdict.kind, verdict.transient) == (Kind.GPU_OOM, False)
    assert verdict.reason == "asked for 2.15 GiB, 1.03 GiB of 79.25 GiB free at first; no batch size fits"


def test_what_went_before_a_restart_ended_nothing() -> None:
    log = trace(OOM, "[rank1]: ") + "[default0]: worker group FAILED. 1/1 attempts left; will restart worker group\n"
    assert ended(log + trace("KeyError: 'x'", "[rank0]: ")).kind is Kind.USER_ERROR


def test_an_error_before_the_time_limit_and_the_wait_at_its_end() -> None:
    limit = "slurmstepd: error: *** JOB 4 ON node-0 CANCELLED AT 2024-04-20T09:09:37 DUE TO TIME LIMIT ***\n"
    assert ended(trace("KeyError: 'x'", "[rank1]: ") + limit, 143).kind is Kind.USER_ERROR
    waiting = (
        "HTTP Error 429 thrown while requesting HEAD https://x\nRate limited. Waiting 56.0s before retry [Retry 1/5].\n"
    )
    assert ended(waiting + limit, 143).kind is Kind.NETWORK
    assert ended(waiting + "step 1 loss 2.0\n" + limit, 143).kind is Kind.TIMEOUT
    assert "429" in ended(waiting, 124).reason


def test_after_sigterm_nothing_is_a_cause() -> None:
    log = "W1201 api.py:753] Received 15 death signal, shutting down workers\n" + trace("KeyError: 'x'", "[rank1]: ")
    assert (ended(log).kind, ended(log).transient) == (Kind.KILLED, True)


def test_an_exception_in_torchruns_summary_alone() -> None:
    log = summary((0, 1)).replace(
        "traceback : To enable traceback see: x\n", "traceback : " + trace(OOM).replace("\n", "\n  ")
    )
    verdict = ended(log)
    assert (verdict.kind, verdict.rank) == (Kind.GPU_OOM, 0)


def test_the_error_file_knows_the_qualified_name() -> None:
    error_file = (
        '{"message": {"message": "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.15 GiB.", "extraInfo": '
        '{"py_callstack": "Traceback (most recent call last):\\n  File \\"a\\"\\ntorch.OutOfMemoryError: CUDA out of '
        'memory.\\n", "timestamp": "1764553934"}}}'
    )
    verdict = ended("", error_file=error_file)
    assert verdict.kind is Kind.GPU_OOM
    assert verdict.evidence[0].text.startswith("torch.OutOfMemoryError: ")
    assert ended("", error_file="{torn").kind is Kind.UNKNOWN


@pytest.mark.parametrize(
    "prefix, rank",
    [
        ("[rank3]: ", 3),
        ("[rank3]:", 3),
        ("[default3]:", 3),
        ("[default0]:[rank3]: ", 3),
        ("[3]:", 3),
        ("3: ", 3),
        ("[1,3]<stderr>:", 3),
        ("2026-12-01T01:02:03.456Z [rank3]: ", 3),
        ("[2026-12-01 01:02:03,456] [rank3]: ", 3),
        ("worker-1: [rank3]: ", 3),
        ("(RayTrainWorker pid=77, ip=10.0.0.1) ", None),
        ("\x1b[36m(RayTrainWorker pid=77)\x1b[0m [rank3]: ", 3),
        ("\x1b[31m[rank3]:\x1b[0m ", 3),
        ("│ ", None),
    ],
)
def test_prefixes(prefix: str, rank: int | None) -> None:
    verdict = ended(trace(OOM, prefix))
    assert (verdict.kind, verdict.rank) == (Kind.GPU_OOM, rank)


def test_a_prefix_of_a_tracebacks_first_line_alone() -> None:
    """fms-hf-tuning 3.x logs the exceptions that it folds into exit codes."""
    logged = "Rank-{0} [ERROR]:sft_trainer.py:main: {1}"
    log = logged.format(1, trace("RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 8"))
    log += logged.format(0, trace(CLOSED))
    verdict = ended(log, 203)
    assert (verdict.kind, verdict.rank) == (Kind.HOST_OOM, 1)
    assert [(each.kind, each.rank) for each in verdict.secondary] == [(Kind.NCCL, 0)]


def test_after_a_progress_bar_on_the_same_line() -> None:
    log = "\r  3%|3    | 31/1040 [00:41<22:31,  1.34s/it]" * 5 + trace(OOM, "[rank1]: ")
    assert (ended(log).kind, ended(log).rank) == (Kind.GPU_OOM, 1)


def test_two_ranks_that_write_at_once() -> None:
    verdict = ended(trace("ValueErrorValueError: : bad batch size\nbad batch size"))
    assert (verdict.kind, verdict.evidence[0].text) == (Kind.USER_ERROR, "ValueError: bad batch size bad batch size")


def test_a_time_limit_that_ended_the_launcher() -> None:
    told = "W1201 api.py:753] Received 15 death signal, shutting down workers\nTerminated\n"
    assert ended("step 1 loss 2.0\n" + told, 124).kind is Kind.TIMEOUT


def test_a_communicator_that_was_aborted_for_a_time_out() -> None:
    error = (
        "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 0.  Original reason for failure "
        "was: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)"
    )
    assert (ended(trace(error)).kind, ended(trace(error)).transient) == (Kind.NCCL, None)


def test_a_lost_store_alone_tells_of_a_peer() -> None:
    log = (
        "[rank1]:[W626 06:24:44.9 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=3): Broken pipe\n"
        "[rank1]:[W626 06:24:44.9 TCPStore.cpp:340] [c10d] TCP client failed to connect to a:1 - retrying\n"
    )
    verdict = ended(log)
    assert (verdict.kind, verdict.transient, verdict.rank) == (Kind.NCCL, True, None)


def test_the_scheduler_tells_of_memory_and_of_ending_the_step() -> None:
    log = (
        "slurmstepd: error: *** STEP 1.0 ON node-0 CANCELLED AT 2024-04-20T09:09:37 ***\n"
        "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed.\n"
    )
    assert ended(log, 137).kind is Kind.HOST_OOM


def test_bytes_that_are_no_text() -> None:
    data = b"\xff\xfe\x00" * 1_000_000 + b"\n" + trace(OOM, "[rank0]: ").encode() + b"\xff\n"
    verdict = judge(evidence_of({"stderr_b64": base64.b64encode(data).decode(), "exit_code": 1}))
    assert (verdict.kind, verdict.rank, verdict.evidence[0].line) == (Kind.GPU_OOM, 0, 5)


def test_lines_are_numbered_through_blocks() -> None:
    noise = "node-0:1:2 [0] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/IPC\n"
    log = scan(io.BytesIO((noise * 60_000 + trace(OOM, "[rank1]: ") + noise * 60_000).encode()), "x.log")
    verdict = judge(of_logs([log], exit_code=1))
    assert (verdict.kind, verdict.rank, verdict.evidence[0].line) == (Kind.GPU_OOM, 1, 60_004)
    assert log.lines == 120_004


def test_several_logs_are_one_job() -> None:
    logs = [
        scan(io.BytesIO(trace(CLOSED).encode()), "rank0.log", 0),
        scan(io.BytesIO(trace(OOM).encode()), "rank1.log", 1),
    ]
    verdict = judge(of_logs(logs))
    assert (verdict.kind, verdict.rank, verdict.evidence[0].file) == (Kind.GPU_OOM, 1, "rank1.log")


def test_what_is_told_again_is_counted() -> None:
    text = "".join(trace(f"ValueError: sample {n} is bad", "[rank0]: ") + f"step {n} loss 2.0\n" * 5 for n in range(40))
    log = scan(io.BytesIO(text.encode()), "x.log")
    assert [raised.count for raised in log.raised] == [1, 39]


def test_somebody_elses_failures() -> None:
    log = "Failures:\n" + "  line of a report\n" * 25_000 + trace(OOM, "[rank1]: ")
    assert (ended(log).kind, ended(log).rank) == (Kind.GPU_OOM, 1)


def test_other_writers_in_the_middle_of_a_traceback() -> None:
    first, *rest = trace("socket.gaierror: [Errno -2] Name or service not known").splitlines(keepends=True)
    log = first + "INFO: all is well\n" + rest[0] + "wandb: syncing\n" + "".join(rest[1:])
    assert (ended(log).kind, ended(log).transient) == (Kind.NETWORK, True)


def test_what_is_kept_is_bounded() -> None:
    text = "".join(trace(f"mylib.Err{n}Error: {n}", f"[rank{n}]: ") for n in range(3000))
    log = scan(io.BytesIO(text.encode()), "x.log")
    assert len(log.raised) <= 400


def test_a_log_without_an_exit_code() -> None:
    assert ended(trace(OOM), None).kind is Kind.GPU_OOM
    assert ended("step 1 loss 2.0\n", None).kind is Kind.UNKNOWN


@pytest.mark.parametrize("quote", ["", "'"], ids=["transformers-4", "transformers-5"])
def test_losses_that_are_no_numbers_to_the_end(quote: str) -> None:
    good = f"{{'loss': {quote}2.1{quote}, 'grad_norm': {quote}1.0{quote}, 'epoch': 0.1}}\n"
    bad = f"{{'loss': {quote}nan{quote}, 'grad_norm': {quote}nan{quote}, 'epoch': 0.1}}\n"
    assert ended(good + bad * 4, 0).kind is Kind.NAN_LOSS
    assert ended(bad * 4 + good, 0).kind is Kind.NONE
    assert ended(good * 4 + bad, 0).kind is Kind.NONE
