"""Which exceptions mean what: rows of facts about libraries, each with the versions it was seen in.

A row matches on the type of an exception or one of its bases, and, where a pattern is given, on its text.  Rows are
tried in order.  `consequence` marks errors that tell of another rank's end: a cause only when nothing better was seen.
"""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Signature:
    kind: str  # harness.record.Kind names them all
    types: frozenset[str]  # qualified names; empty: any type
    pattern: re.Pattern[str] | None
    consequence: bool
    transient: bool | None
    versions: str  # of the library, and where the fact was read


def _row(
    kind: str,
    versions: str,
    *types: str,
    pattern: str | None = None,
    consequence: bool = False,
    transient: bool | None = None,
) -> Signature:
    compiled = re.compile(pattern) if pattern is not None else None
    return Signature(kind, frozenset(types), compiled, consequence, transient, versions)


RUNTIME = ("RuntimeError", "torch.AcceleratorError", "torch.distributed.DistBackendError")

SIGNATURES: tuple[Signature, ...] = (
    # The garbage size of a desynchronised collective, not a need for memory (NVIDIA/nccl issue 1284).
    _row("nccl", "torch 1.x-2.13", pattern=r"Tried to allocate more than 1EB memory"),
    # torch.OutOfMemoryError is a RuntimeError; device allocators of every backend raise it.
    _row("gpu_oom", "torch 2.5+", "torch.OutOfMemoryError", transient=False),
    _row("gpu_oom", "torch 1.13-2.4", "torch.cuda.OutOfMemoryError", "torch._C.OutOfMemoryError", transient=False),
    _row("gpu_oom", "torch 1.x", pattern=r"\b(?:CUDA|HIP|XPU|NPU) out of memory\b", transient=False),
    _row("gpu_oom", "torch 1.12-2.13, Apple", pattern=r"MPS backend out of memory", transient=False),
    # cudaErrorMemoryAllocation outside the caching allocator: RuntimeError, from 2.8 on torch.AcceleratorError.
    _row("gpu_oom", "torch 1.x-2.13", *RUNTIME, pattern=r"CUDA error: out of memory", transient=False),
    _row("gpu_oom", "cuBLAS, cuDNN", *RUNTIME, pattern=r"CU(?:BLAS|DNN)_STATUS_ALLOC_FAILED", transient=False),
    _row("gpu_oom", "NCCL 2.x", *RUNTIME, pattern=r"Cuda failure(?: 2)? 'out of memory'", transient=False),
    _row(
        "host_oom",
        "torch 2.x",
        "RuntimeError",
        pattern=r"DefaultCPUAllocator: can't allocate memory",
        transient=False,
    ),
    _row("host_oom", "CPython", "MemoryError", transient=False),
    _row(
        "nccl",
        "NCCL 2.x; gloo of torch 2.x",
        *RUNTIME,
        "torch.distributed.DistNetworkError",
        pattern=r"remote process exited|Connection closed by (?:remote )?peer|Connection reset by peer|Broken pipe"
        r"|communicator was aborted|Socket recv failed while polling|failed to recv, got 0 bytes",
        consequence=True,
        transient=True,
    ),
    _row("nccl", "torch 2.0+", "torch.distributed.DistBackendError"),
    _row(
        "nccl",
        "torch 1.x-2.13",
        *RUNTIME,
        pattern=r"NCCL error in:|NCCL Error \d+|ncclUnhandledCudaError|ncclRemoteError",
    ),
    _row(
        "nccl",
        "gloo of torch 2.x",
        *RUNTIME,
        pattern=r"gloo/transport|Gloo connectFullMesh failed|Timed out waiting \d+ms for (?:recv|send) operation"
        r"|failed to pass monitoredBarrier|Detected mismatch between collectives on ranks",
    ),
    _row(
        "rendezvous",
        "torch 2.1+",
        "torch.distributed.DistNetworkError",
        "torch.distributed.DistStoreError",
        "torch.distributed.elastic.rendezvous.api.RendezvousError",
    ),
    # After the rows of memory: the text also stands in what NCCL's watchdog says.
    _row("cuda_error", "torch 1.x-2.13", *RUNTIME, pattern=r"CUDA error: |CU(?:BLAS|DNN)_STATUS_"),
    _row("disk_full", "Linux: ENOSPC, EDQUOT, EFBIG", "OSError", pattern=r"\[Errno (?:28|122|27)\]", transient=False),
    _row("disk_full", "safetensors, tokenizers (Rust)", pattern=r"\(os error (?:28|122|27)\)", transient=False),
    _row("disk_full", "torch 2.x", "RuntimeError", pattern=r"PytorchStreamWriter failed|unexpected pos \d+ vs \d+"),
    # A look-up over the network may also be one of the built-in types below; it is not the user's.
    _row("network", "transformers 4.x-5.x", "OSError", pattern=r"[Ww]e couldn't connect to '"),
    _row(
        "network",
        "huggingface_hub 0.x-2.x, requests, httpx",
        "huggingface_hub.errors.HfHubHTTPError",
        "huggingface_hub.errors.LocalEntryNotFoundError",
        "huggingface_hub.errors.OfflineModeIsEnabled",
        "requests.exceptions.RequestException",
        "httpx.HTTPError",
        "httpx2.HTTPError",
        "socket.gaierror",
        "ConnectionError",
        "TimeoutError",
    ),
    _row(
        "user_error",
        "huggingface_hub 0.x-2.x, transformers 4.x-5.x",
        "huggingface_hub.errors.HFValidationError",
        "huggingface_hub.errors.StrictDataclassError",
        transient=False,
    ),
    _row("user_error", "transformers 4.x-5.x", "OSError", pattern=r"Repo id must be in the form", transient=False),
    _row("user_error", "CPython: python -m, a folder as program", "runpy._Error", transient=False),
    _row(
        "user_error",
        "CPython 3.10+",
        "TypeError",
        "ValueError",
        "LookupError",
        "AttributeError",
        "NameError",
        "ImportError",
        "SyntaxError",
        "AssertionError",
        "NotImplementedError",
        "FileNotFoundError",
        "IsADirectoryError",
        "NotADirectoryError",
        "FileExistsError",
        "PermissionError",
        transient=False,
    ),
    _row(
        "user_error",
        "torch 1.x-2.13",
        "RuntimeError",
        pattern=r"size mismatch for|shapes cannot be multiplied|mat1 and mat2|index out of range in self"
        r"|must match the size of tensor|Expected to have finished reduction in the prior iteration",
        transient=False,
    ),
)


def match(type_name: str, bases: list[str], message: str) -> Signature | None:
    """The first row that fits an exception; None when none does."""
    names = {name.removeprefix("builtins.") for name in (type_name, *bases)}
    for row in SIGNATURES:
        if row.types and not (row.types & names):
            continue
        if row.pattern is None or row.pattern.search(message):
            return row
    return None
