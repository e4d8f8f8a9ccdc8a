"""Which lines of a log mean what, where no exception says it: rows of (kind, pattern, library versions, source).

A pattern is tried on a line without its prefixes (`harness.classify.text`).  It is anchored to the line's start, or
holds the library's fixed words on both sides of what varies, so that a sentence of a data set does not match.  What
libraries print in the words of their exceptions has its row in `harness.probe.signatures`, and is read through `REPORT`
here."""

import re
from dataclasses import dataclass
from enum import IntEnum


class Weight(IntEnum):
    """How much a line says."""

    SCHEDULER = 0  # the kernel's or the scheduler's word
    CAUSE = 1  # as good as an exception
    OWN_END = 2  # the program's own watchdog, or what a launcher says of it
    COLLECTIVE = 3  # of a collective, or of finding the others


@dataclass(frozen=True)
class LineRow:
    kind: str  # harness.record.Kind names them all
    weight: Weight
    pattern: re.Pattern[str]
    transient: bool | None
    versions: str  # and where it was read


def _row(kind: str, weight: Weight, versions: str, pattern: str, transient: bool | None = None) -> LineRow:
    return LineRow(kind, weight, re.compile(pattern), transient, versions)


_SLURM = r"^(?:slurmstepd|srun|slurmd): (?:error|warning): "

LINES: tuple[LineRow, ...] = (
    _row("timeout", Weight.SCHEDULER, "Slurm 17-24 (slurmstepd)", _SLURM + r".*DUE TO TIME LIMIT"),
    _row(
        "killed",
        Weight.SCHEDULER,
        "Slurm 17-24 (slurmstepd)",
        _SLURM + r".*DUE TO (?:PREEMPTION|NODE FAILURE|JOB REQUEUE)",
        True,
    ),
    _row("killed", Weight.SCHEDULER, "Slurm (srun)", r"^srun: error: Node failure on \S+", True),
    _row(
        "host_oom",
        Weight.SCHEDULER,
        "Slurm 17-24 (slurmstepd, srun)",
        _SLURM + r".*(?:oom[_-]kill event|[Ee]xceeded (?:job|step) memory limit|tasks? [\d,-]+: Out Of Memory)",
        False,
    ),
    _row(
        "host_oom", Weight.SCHEDULER, "Kubernetes (kubectl describe, get)", r"^\s*(?:Reason:\s+)?OOMKilled\s*$", False
    ),
    _row("host_oom", Weight.SCHEDULER, "LSF 10", r"^TERM_MEMLIMIT: job killed", False),
    _row("timeout", Weight.SCHEDULER, "LSF 10; PBS", r"^TERM_RUNLIMIT: job killed|^=>> PBS: job killed: walltime"),
    _row(
        "killed",
        Weight.OWN_END,
        "Slurm 17-24 (slurmstepd): scancel sends SIGTERM",
        _SLURM + r".*\bCANCELLED AT \S+(?: \*\*\*| DUE to SIGNAL)",
        True,
    ),
    _row(
        "nan_loss",
        Weight.CAUSE,
        "torch 1.x-2.13 (TensorCompare.cu, NanCheck.cu): device asserts that are NaN checks",
        r"Assertion `.*(?:contains either `inf`, `nan`|!\s*(?:std::|::)?isnan\().*` failed"
        r"|checkForNaN.*Assertion `.*` failed",
        False,
    ),
    _row(
        "cuda_error",
        Weight.CAUSE,
        "torch 1.x-2.13 (CUDA_KERNEL_ASSERT)",
        r"\.(?:cu|cuh|h|hip):\d+: .*\bAssertion `.*` failed",
        False,
    ),
    _row(
        "cuda_error",
        Weight.CAUSE,
        "ROCr 4-7 (runtime.cpp), HIP 4-7 (rocdevice.cpp)",
        r"^(?:Memory access fault|HW Exception) by GPU \S+ \("
        r"|\b[Cc]allback(?:: Queue \S+|Queue) [Aa]borting with error ?: HSA_STATUS_",
    ),
    _row("cuda_error", Weight.CAUSE, "HIP 4-6 (hip_code_object.cpp)", r"^\"?hipErrorNoBinaryForGpu: ", False),
    _row(
        "cuda_error",
        Weight.CAUSE,
        "NVIDIA driver (nvidia-smi)",
        r"^Failed to initialize NVML: Driver/library version mismatch",
        False,
    ),
    _row(
        "nan_loss",
        Weight.CAUSE,
        "DeepSpeed (loss_scaler.py)",
        r"^[\w.:() ]*Current loss scale already at minimum - cannot decrease",
        False,
    ),
    _row(
        "nan_loss",
        Weight.CAUSE,
        "the idiom of training loops (detr, mae)",
        r"^(?:\S+ ){0,4}Loss is (?:nan|inf|-inf), stopping training",
        False,
    ),
    # Two ranks that write the same exception at once double the name and keep the text.
    _row(
        "gpu_oom",
        Weight.CAUSE,
        "torch 1.13-2.13",
        r"^[\w.: ]*OutOfMemoryError[\w.: ]*CUDA out of memory\. Tried to allocate [\d.]+ ",
        False,
    ),
    _row(
        "user_error",
        Weight.CAUSE,
        "CPython (argparse)",
        r"^[^\s:'\"{]+(?: [\w-]+){0,2}: error: (?:argument |unrecognized arguments|the following arguments are required"
        r"|ambiguous option|one of the arguments|invalid choice|too few arguments|expected )",
        False,
    ),
    _row(
        "user_error",
        Weight.CAUSE,
        "CPython",
        r"^\S*python[\d.]*(?:\.exe)?: (?:can't open file '|No module named |can't find '__main__')",
        False,
    ),
    _row(
        "user_error",
        Weight.CAUSE,
        "bash, env",
        r"^(?:\S+: line \d+: |env: |bash: |sh: \d+: )\S+: (?:command )?"
        r"(?:not found|No such file or directory|Permission denied)",
        False,
    ),
    _row(
        "disk_full",
        Weight.OWN_END,
        "coreutils, tar, rsync, bash: what a script of commands ends with",
        r"^(?:\S+: line \d+: )?[a-z][\w.+-]*: (?!.*/dev/shm/).*: (?:No space left on device|Disk quota exceeded)"
        r"(?: \(\d+\))?$",
        False,
    ),
    _row(
        "timeout",
        Weight.OWN_END,
        "CPython (faulthandler.dump_traceback_later)",
        r"^Timeout \(\d+:\d\d:\d\d(?:\.\d+)?\)!",
    ),
    _row("nccl", Weight.COLLECTIVE, "torch 2.x (NCCL desync report)", r"caused the desync are:", False),
)

# What the hub's client prints between two tries (huggingface_hub 0.x-2.x, utils/_http.py).
BACK_OFF = re.compile(
    r"^HTTP Error (\d{3}) thrown while requesting|^Rate limited\. Waiting [\d.]+s before retry"
    r"|^Retrying in \d+s \[Retry"
)
BACK_OFF_STATUS = re.compile(r"^HTTP Error (\d{3}) thrown while requesting")

# Libraries that report without raising, in the words of their exceptions: c10d's errors, NCCL's warnings, what a C++
# program aborts with, bitsandbytes.
REPORT = re.compile(
    r"""^\[(?P<level>[EFW])\d*\ ?[\d:.]*\ *(?P<c10d>\w+)\.(?:cpp|hpp|cu):\d+\]\ (?:\[[^\]]*\]\ )*(?P<c10d_said>.*)
      | ^(?:\S+:\d+:\d+\ \[(?P<device>-?\d+)\]\ )?(?:\S+:\d+\ )?(?P<nccl>NCCL\ WARN)\ (?P<nccl_said>.*)
      | ^(?P<abort>terminate\ called\ after\ throwing\ an\ instance\ of)\ '(?P<abort_said>std::bad_alloc)'
      | ^\s*(?P<what>what\(\):)\s+(?:\[(?:PG|Rank)\ [^\]]*\]\ )*(?P<what_said>.*)
      | ^(?P<bnb>Error)(?P<bnb_said>\ out\ of\ memory\ at\ line\ \d+\ in\ file.*)
      | ^(?P<bus>ERROR:)\ (?P<bus_said>Unexpected\ bus\ error\ encountered\ in\ worker.*)
    """,
    re.VERBOSE,
)
WATCHDOG_ENDED = re.compile(r"watchdog thread terminated with exception: (.*)")
WORK = re.compile(r"WorkNCCL\(SeqNum=(\d+), OpType=(\w+).*?Timeout\(ms\)=(\d+)\)")
RANK_IN_TEXT = re.compile(r"\bRank (\d+)\]")
GROUP_IN_TEXT = re.compile(r"\[PG (?:ID )?(\S+)")
PROGRESS_OF_RANK = re.compile(r"last enqueued (?:NCCL )?work: (-?\d+), last completed (?:NCCL )?work: (-?\d+)")
CULPRIT = re.compile(r"^\s*- \[(\d+)\] ")

# A log that says what ended the program, in words alone: a last resort, for programs that swallow the exception.
MENTION = re.compile(
    r"(?:CUDA|HIP|XPU|NPU) out of memory\. Tried to allocate [\d.]+ [KMGT]iB|MPS backend out of memory \(MPS allocated"
    r"|DefaultCPUAllocator: can't allocate memory|CUDA error: (?:out of memory|an illegal memory access)"
    r"|\[Errno 28\] No space left on device|NCCL error in: "
)

# Signs of a card without free memory, for a library that fails without a word of it.
FULL_CARD = re.compile(
    r"cudaMalloc retries: [1-9]|\bfree[=: ]+(?P<free>[\d.]+ ?[KMGT]i?B)\b.*?\btotal[=: ]+(?P<total>[\d.]+ ?[KMGT]i?B)\b"
    r"|(?P<used>\d+)MiB / +(?P<of>\d+)MiB|out of memory"
)

# A Trainer's dictionary, JSON of it, and `loss: 1.9, grad_norm: 2.0` as mmengine and Megatron-LM write it.
_VALUE = r"(?:tensor\()?['\"]?([Nn]a[Nn]|-?inf|-?Infinity|[-+\d.e]+)"
LOSS = re.compile(rf"""(?:(?P<quote>['"])loss(?P=quote)|(?<![\w'"./-])(?:lm )?loss): {_VALUE}""")
GRAD_NORM = re.compile(rf"""(?:(?P<quote>['"])grad_norm(?P=quote)|(?<![\w'"./-])grad[_ ]norm): {_VALUE}""")
# Lines of a program that goes on training.
GOES_ON = re.compile(
    r"\d+%\|.*\d+/\d+|'loss': |\bloss[ =:]+[-\d]|\bsteps?[ =:\[]+\d|\bepoch\b[ =:\[]*\d|\d(?:it/s|s/it)", re.IGNORECASE
)
FINISHED = re.compile(r"'train_runtime': ")

XID = re.compile(r"NVRM: Xid \([^)]*\): (\d+)(?:, pid='?(\d+))?")
KERNEL_OOM = re.compile(
    r"Memory cgroup out of memory: Kill(?:ed)? process (\d+)|Out of memory: Kill(?:ed)? process (\d+)"
)
KERNEL_CONSTRAINT = re.compile(r"oom-kill:constraint=(CONSTRAINT_\w+)")
KERNEL_LOST_GPU = re.compile(r"has fallen off the bus")
