"""Which exceptions mean what: rows of facts about libraries, each with the versions it was seen in.

A row matches on the type of an exception or one of its bases, and, where a pattern is given, on its text.  Rows are
tried in order.  `consequence` marks errors that tell of another rank's end: a cause only when nothing better was seen.
Rows without a type also read what libraries print without raising (NCCL's warnings, what a C++ program aborts with).
"""

import builtins
import re
from collections.abc import Sequence
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


# What torch raises of its own: the type says little, the text everything.
RUNTIME = (
    "RuntimeError",
    "torch.AcceleratorError",
    "torch.distributed.DistError",
    "torch.distributed.DistBackendError",
    "torch.distributed.DistNetworkError",
    "torch.distributed.DistStoreError",
)
HUB = "huggingface_hub 0.x-2.x (errors.py, utils/_http.py)"
SPACE = r"No space left on device|Disk quota exceeded|File too large"
# Python's and Rust's spelling of ENOSPC, EDQUOT and EFBIG.
NO_SPACE = rf"{SPACE}|\[Errno (?:28|122|27)\]|os error (?:28|122|27)\)"
PEER_LOST = (
    r"remote process exited|ncclRemoteError|Connection closed by (?:remote )?peer|Connection reset by peer"
    r"|Connection closed by remote peer|Broken pipe"
    r"|communicator was aborted(?![\s\S]*Watchdog caught)|Socket recv failed while polling"
    r"|failed to recv, got 0 bytes|TCPStore server has shut down too early"
)

# Errors of the collectives that say what is wrong, before those that only say that a peer is gone.
_NCCL = (
    # The garbage size of a desynchronised collective, not a need for memory (NVIDIA/nccl issue 1284).
    _row("nccl", "torch 1.x-2.13", pattern=r"Tried to allocate more than 1EB memory"),
)

_GPU_MEMORY = (
    _row(
        "gpu_oom",
        "accelerate 0.x-1.15 (utils/memory.py)",
        pattern=r"No executable batch size found, reached zero",
        transient=False,
    ),
    # torch.OutOfMemoryError is a RuntimeError; device allocators of every backend raise it.
    _row("gpu_oom", "torch 2.5+", "torch.OutOfMemoryError", transient=False),
    _row("gpu_oom", "torch 1.13-2.4", "torch.cuda.OutOfMemoryError", "torch._C.OutOfMemoryError", transient=False),
    _row("gpu_oom", "torch 1.x-2.13, torch_npu", pattern=r"\b(?:CUDA|HIP|XPU|NPU) out of memory\b", transient=False),
    _row("gpu_oom", "torch 1.12-2.13, Apple", pattern=r"MPS backend out of memory", transient=False),
    _row(
        "gpu_oom",
        "SYCL runtime of torch's XPU builds, Level Zero (oneCCL)",
        pattern=r"(?:UR|PI|ZE)_(?:RESULT_)?ERROR_OUT_OF_DEVICE_MEMORY",
        transient=False,
    ),
    _row("gpu_oom", "XLA (torch_xla, JAX)", pattern=r"RESOURCE_EXHAUSTED: .*[Oo]ut of memory", transient=False),
    _row("gpu_oom", "Habana bridge", pattern=r"PT_DEVMEM Allocation failed for size::", transient=False),
    # cudaErrorMemoryAllocation outside the caching allocator: RuntimeError, from 2.8 on torch.AcceleratorError.
    _row(
        "gpu_oom",
        "torch 1.x-2.13 (CUDAException.cpp)",
        pattern=r"(?:CUDA|HIP)(?: driver)? error: out of memory|cudaErrorMemoryAllocation|hipErrorOutOfMemory"
        r"|CUDA_ERROR_OUT_OF_MEMORY|cuda runtime error \(2\) ?: ",
        transient=False,
    ),
    _row("gpu_oom", "cuBLAS, cuDNN, hipBLAS", pattern=r"(?:CUBLAS|CUDNN|HIPBLAS)_STATUS_ALLOC_FAILED", transient=False),
    _row(
        "gpu_oom",
        "NCCL 2.x (checks.h, alloc.h)",
        pattern=r"Cuda failure(?: 2)? '?out of memory|Failed to CUDA (?:host )?(?:calloc async|calloc|malloc|alloc)\b",
        transient=False,
    ),
    _row("gpu_oom", "Triton 2.x-3.x", pattern=r"Triton Error \[(?:CUDA|HIP)\]: out of memory", transient=False),
    _row(
        "gpu_oom",
        "bitsandbytes 0.3x-0.4x (csrc/ops.cu)",
        pattern=r"^Error out of memory at line \d+ in file",
        transient=False,
    ),
    _row("gpu_oom", "vLLM 0.x", pattern=r"No available memory for the cache blocks", transient=False),
    _row(
        "gpu_oom",
        "vLLM 0.7+ (gpu_worker.py): others hold the memory at start-up",
        pattern=r"Free memory on device .* on startup .*is less than desired GPU memory utilization",
    ),
)

_HOST_MEMORY = (
    _row("user_error", "Linux: EMFILE, ENFILE", pattern=r"Too many open files|\[Errno 2[34]\]", transient=False),
    _row("host_oom", "torch 1.x-2.13 (alloc_cpu.cpp)", pattern=r"DefaultCPUAllocator: ", transient=False),
    _row("host_oom", "numpy 1.17+", pattern=r"^Unable to allocate .* for an array with shape", transient=False),
    _row("host_oom", "CPython, numpy", "MemoryError", "_ArrayMemoryError", transient=False),
    _row("host_oom", "Ray 2.x (its memory monitor)", "ray.exceptions.OutOfMemoryError", transient=False),
    _row("host_oom", "libstdc++", pattern=r"std::bad_alloc", transient=False),
    _row(
        "host_oom",
        "torch 1.x-2.13 (MapAllocator.cpp), NCCL 2.x (shmutils.cc): /dev/shm is full",
        pattern=rf"(?:(?:/dev/shm/|</torch_).*(?:{SPACE}))|(?:{SPACE}|\[Errno 28\]).*/dev/shm/"
        r"|/dev/shm/nccl-.*(?:failed to extend|No space)|failed to extend /dev/shm/nccl-"
        r"|Error while creating shared memory segment|posix_fallocate failed|unable to write to file </torch_",
        transient=False,
    ),
    _row(
        "host_oom",
        "torch 1.x-2.13 (MapAllocator.cpp)",
        pattern=r"unable to (?:allocate shared memory ?\(shm\) for|resize|mmap|write to|open).* </torch_",
    ),
    _row(
        "host_oom",
        "torch 1.x-2.13 (DataLoader.cpp, signal_handling.py)",
        pattern=r"killed by signal: Bus error|insufficient shared memory ?\(shm\)|out of shared memory",
    ),
)

_WORKERS = (
    _row("killed", "torch 1.x-2.13 (DataLoader)", pattern=r"is killed by signal: Killed"),
    _row("killed", "torch 1.x-2.13 (DataLoader)", pattern=r"is killed by signal: Terminated", transient=True),
    _row(
        "crash",
        "torch 1.x-2.13 (DataLoader)",
        pattern=r"is killed by signal: (?:Segmentation fault|Aborted|Illegal instruction|Floating point exception)",
    ),
    # Why stands behind it, where it stands at all.
    _row(
        "unknown", "torch 1.x-2.13 (DataLoader)", pattern=r"DataLoader worker \(pid\(s\) [\d, ]+\) exited unexpectedly"
    ),
)

_DISK = (
    _row("disk_full", "Linux: ENOSPC, EDQUOT, EFBIG; Python and Rust", pattern=NO_SPACE, transient=False),
    _row("disk_full", "datasets 1.x-5.x (builder.py)", pattern=r"^Not enough disk space\. Needed: ", transient=False),
    # torch's zip writer says so of any write error.
    _row(
        "disk_full",
        "torch 1.6-2.13 (inline_container.cc)",
        pattern=r"PytorchStreamWriter failed writing|unexpected pos \d+ vs \d+|basic_ios::clear: iostream error",
    ),
)

_NAN = (
    _row(
        "nan_loss",
        "torch 1.x-2.13 (anomaly_mode, clip_grad, Distributions), DeepSpeed (loss_scaler.py), fairseq",
        pattern=r"returned nan values in its \d+th output|is non-finite, so it cannot be clipped"
        r"|probability tensor contains either|Current loss scale already at minimum|Minimum loss scale reached",
        transient=False,
    ),
    _row(
        "nan_loss",
        "the idiom of training loops (detr, mae, timm)",
        pattern=r"(?i)\bloss is (?:nan|inf|-inf|not finite|non-finite)\b|\b(?:nan|non-finite) loss\b",
        transient=False,
    ),
    _row(
        "nan_loss",
        "torch 1.x-2.13 (distributions): the values follow on lines of their own",
        pattern=r"to satisfy the constraint [\s\S]*but found invalid values:\s*tensor\([^)]*\bnan\b",
        transient=False,
    ),
    _row(
        "nan_loss",
        "Megatron-LM (rerun_state_machine.py, param_and_grad_buffer.py), Lightning 1.x-2.x",
        pattern=r"\bfound (?:NaN|Inf) in (?:local|the) "
        r"|The loss returned in `training_step` is (?:tensor\()?-?(?:nan|inf)"
        r"|Detected nan and/or inf values in `",
        transient=False,
    ),
    _row("nan_loss", "CPython, fairseq", "FloatingPointError", transient=False),
)

_CUDA = (
    _row(
        "cuda_error",
        "NCCL 2.x: a fault that NCCL reports",
        pattern=r"Cuda failure(?: \d+)? '.*ECC error",
        transient=True,
    ),
    _row(
        "cuda_error",
        "NCCL 2.x: a fault that NCCL reports",
        pattern=r"Cuda failure(?: \d+)? '(?:an illegal memory access|unspecified launch failure|misaligned address"
        r"|unknown error|device-side assert)",
    ),
    _row("user_error", "torch 1.x-2.13", pattern=r"invalid device ordinal", transient=False),
    _row(
        "cuda_error",
        "CUDA driver",
        pattern=r"uncorrectable (?:NVLink|ECC) error|has fallen off the bus",
        transient=True,
    ),
    _row(
        "cuda_error",
        "CUDA runtime, torch 1.x-2.13 (torch/cuda/__init__.py)",
        pattern=r"device-side assert triggered|no kernel image is available|driver version is insufficient"
        r"|NVIDIA driver on your system is too old|Found no NVIDIA driver on your system"
        r"|Driver/library version mismatch|Error 80[34]\b|system has unsupported display driver"
        r"|forward compatibility was attempted|too many resources requested for launch|hipErrorNoBinaryForGpu"
        r"|(?:CUDA|HIP) error: (?:invalid device function|peer access is not supported)",
        transient=False,
    ),
    _row(
        "cuda_error",
        "Triton 2.x-3.x (runtime/errors.py)",
        pattern=r"out of resource: (?:shared memory|threads|tensor memory|registers)",
        transient=False,
    ),
    _row("cuda_error", "Triton 2.x-3.x", "triton.runtime.errors.OutOfResources", transient=False),
    _row(
        "cuda_error",
        "CUDA 11+ (fabric manager), ROCr, cuBLAS, cuDNN, Triton",
        pattern=r"Error 802\b|system not yet initialized|Memory access fault by GPU|Triton Error \[(?:CUDA|HIP)\]: "
        r"|(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE|CUFFT|HIPBLAS)_STATUS_|\bcuDNN error: |No CUDA GPUs are available"
        r"|no CUDA-capable device|CUDA unknown error|Unexpected error from cudaGetDeviceCount",
    ),
    # After the row of memory: a lost device, or resources that may be memory and may be anything.
    _row(
        "cuda_error",
        "SYCL runtime of torch's XPU builds, Level Zero",
        pattern=r"level_zero backend failed with error: "
        r"|(?:UR|PI|ZE)_(?:RESULT_)?ERROR_(?:DEVICE_LOST|OUT_OF_RESOURCES)",
    ),
    # After the rows of memory: the text also stands in what NCCL's watchdog says.
    _row(
        "cuda_error",
        "torch 1.x-2.13 (CUDAException.cpp), before 1.11 also THC",
        pattern=r"(?:CUDA|HIP)(?: driver)? error: |cuda runtime error \(\d+\) ?: ",
    ),
)

_COLLECTIVES = (
    _row(
        "nccl",
        "NCCL 2.x (init.cc, bootstrap.cc, socket.cc): settings, not faults",
        pattern=r"Duplicate GPU detected|no socket interface found|Mismatched NCCL version"
        r"|Detected mismatch between collectives",
        transient=False,
    ),
    # A limit of locked memory, not the link.
    _row("nccl", "NCCL 2.x (ibvwrap.cc)", pattern=r"Call to ibv_\w+ failed.*Cannot allocate memory", transient=False),
    _row(
        "nccl",
        "NCCL 2.x (net_ib.cc; no peer before 2.10, status by name from 2.28 on)",
        pattern=r"NET/IB ?: Got completion (?:from peer .* )?with (?:error|status=)|IBV_WC_\w+_ERR"
        r"|Call to ibv_\w+ failed"
        r"|NET/IB ?: .*Got async event : (?:local )?(?:port error|GID table change|device fatal|QP)",
        transient=True,
    ),
    _row("nccl", "NCCL 2.x, gloo: a peer is gone", *RUNTIME, pattern=PEER_LOST, consequence=True, transient=True),
    _row(
        "nccl",
        "NCCL 2.x (socket.cc), gloo: no way to the peer",
        *RUNTIME,
        pattern=r"(?:NCCL|nccl|gloo/|Gloo )[\s\S]*(?:Connection refused|No route to host|Connection timed out"
        r"|Network is unreachable)|\bsocket\w*: .*(?:Connection refused|No route to host|Connection timed out)"
        r"|(?:Call to connect|Connect) .*(?:Connection refused|No route to host|Connection timed out)",
        transient=True,
    ),
    _row(
        "nccl",
        "NCCL 2.x",
        pattern=r"ncclInvalid(?:Usage|Argument)|NCCL error.*, invalid (?:usage|argument)",
        transient=False,
    ),
    _row(
        "nccl",
        "torch 1.x-2.13 (ProcessGroupNCCL.cpp, NCCLUtils.cpp)",
        pattern=r"NCCL error|NCCL Error \d+|nccl(?:UnhandledCuda|System|Internal)Error"
        r"|[Ww]atchdog caught collective operation timeout|watchdog got stuck for \d+ seconds"
        r"|Heartbeat monitor timed out",
    ),
    _row(
        "nccl",
        "gloo of torch 1.x-2.13, c10d",
        pattern=r"gloo/transport|Gloo connectFullMesh failed|Timed out waiting \d+ms for (?:recv|send) operation"
        r"|failed to pass monitoredBarrier",
    ),
    # RuntimeError before 2.0; "retreiving" before 2.1.
    _row("nccl", "torch 1.x-2.13 (ProcessGroupNCCL.cpp)", pattern=r"is setting up NCCL communicator and retr"),
    _row("nccl", "torch 2.0+", "torch.distributed.DistBackendError"),
)

_RENDEZVOUS = (
    _row("user_error", "torch 1.x-2.13", pattern=r"environment variable \w+ expected, but not set", transient=False),
    _row("rendezvous", "torch 2.x: another service answers", pattern=r"Ping failed, invalid value", transient=False),
    _row(
        "rendezvous",
        "torch 2.x, 1.x (TCPStore.cpp, Utils.hpp): a key never came",
        *RUNTIME,
        pattern=r"wait timeout after \d+ms, keys:|^Socket Timeout\b",
    ),
    _row(
        "rendezvous",
        "torch 1.x-2.13 (socket.cpp, TCPStore.cpp, distributed_c10d.py)",
        pattern=r"EADDRINUSE|[Aa]ddress already in use|failed to listen on any local network address"
        r"|client socket has (?:timed out|failed)|seconds waiting for clients\. \d+/\d+ clients joined"
        r"|store[- ]based barrier|^connect\(\) timed out\. Original timeout was",
        transient=True,
    ),
    _row(
        "rendezvous",
        "torch 2.1+",
        "torch.distributed.DistNetworkError",
        "torch.distributed.DistStoreError",
        "torch.distributed.elastic.rendezvous.api.RendezvousError",
        "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
        "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError",
        "torch.distributed.elastic.rendezvous.api.RendezvousClosedError",
        "torch.distributed.elastic.rendezvous.api.RendezvousStateError",
        "torch.distributed.elastic.rendezvous.api.RendezvousGracefulExitError",
        transient=True,
    ),
)

# Whether a retry helps stands in the cause of these: the status, or that offline mode is on (`network_transient`).
_NETWORK = (
    _row("user_error", HUB, "huggingface_hub.errors.GatedRepoError", "GatedRepoError", transient=False),
    _row(
        "user_error",
        f"{HUB}, transformers 4.x-5.x",
        pattern=r"Cannot access gated repo|trying to access a gated repo|Access to model .* is restricted",
        transient=False,
    ),
    _row(
        "user_error",
        f"{HUB}, transformers 4.x-5.x",
        "huggingface_hub.errors.HFValidationError",
        "huggingface_hub.errors.StrictDataclassError",
        transient=False,
    ),
    _row(
        "user_error",
        "transformers 4.x-5.x: of a local folder, though it names the hub",
        pattern=r"Repo id must (?:be in the form|use alphanumeric chars)|Incorrect path_or_model_id"
        r"|^\.{0,2}/\S* does not appear to have a file named",
        transient=False,
    ),
    _row(
        "network",
        f"{HUB}, datasets 2.x-5.x, transformers 4.x-5.x",
        pattern=r"OfflineModeIsEnabled|[Oo]ffline mode is enabled|outgoing traffic has been disabled",
        transient=False,
    ),
    _row(
        "network",
        "requests, httpx, urllib, aiohttp, huggingface_hub, datasets 1.x-2.x: status line",
        pattern=r"\b(?:429 (?:Client Error: )?Too Many Requests|5\d\d (?:Server Error"
        r"|Service (?:Temporarily )?Unavailable|Internal Server Error|Bad Gateway|Gateway Time-?out)|429 Client Error"
        r"|HTTP Error (?:429|5\d\d): |(?:429|5\d\d), message=')|\(error (?:429|5\d\d)\)$",
        transient=True,
    ),
    _row(
        "network",
        "requests, httpx, urllib, aiohttp, huggingface_hub, datasets 1.x-2.x: status line",
        pattern=r"\b(?:40[134] Client Error|401 Unauthorized|403 Forbidden|404 Not Found)"
        r"|\bHTTP Error 40[134]: |\b40[134], message='|\(error 40[134]\)$|is not a valid model identifier listed on"
        r"|does not appear to have a file named .*[Cc]heckout 'https?:|doesn't exist on the Hub or cannot be accessed",
        transient=False,
    ),
    _row(
        "network",
        "huggingface_hub 0.x-2.x",
        "huggingface_hub.errors.RepositoryNotFoundError",
        "huggingface_hub.errors.RevisionNotFoundError",
        "huggingface_hub.errors.RemoteEntryNotFoundError",
        "huggingface_hub.errors.EntryNotFoundError",
        "huggingface_hub.errors.OfflineModeIsEnabled",
        "huggingface_hub.errors.DisabledRepoError",
        "huggingface_hub.utils.RepositoryNotFoundError",
        transient=False,
    ),
    _row("network", "OpenSSL: a setting", pattern=r"CERTIFICATE_VERIFY_FAILED", transient=False),
    _row(
        "network",
        "hf_xet 1.x, hf_transfer 0.1: what transfers huggingface_hub's large files",
        pattern=r"CAS service error|ReqwestMiddleware Error|An error occurred while downloading using `hf_transfer`",
        transient=True,
    ),
    _row(
        "network",
        "requests, urllib3, httpx: no answer",
        pattern=r"Read timed out|Max retries exceeded with url|Temporary failure in name resolution"
        r"|Name or service not known|nodename nor servname|Failed to establish a new connection|RemoteDisconnected"
        r"|ConnectTimeoutError|IncompleteRead|peer closed connection without sending|All connection attempts failed",
        transient=True,
    ),
    _row(
        "network",
        "huggingface_hub 0.x-2.x, datasets 2.x-5.x: the hub gave no answer",
        pattern=r"error happened while trying to locate the files? on the Hub",
        transient=True,
    ),
    # The same words for a 504, no connection and offline mode.
    _row("network", "transformers 4.x-5.x", pattern=r"[Ww]e couldn't connect to '|Couldn't reach '.*' on the Hub"),
    _row(
        "network",
        "requests, httpx (also as httpx2), aiohttp, botocore: no answer",
        "requests.exceptions.ConnectionError",
        "requests.exceptions.ConnectTimeout",
        "requests.exceptions.ReadTimeout",
        "requests.exceptions.Timeout",
        "requests.exceptions.ChunkedEncodingError",
        "requests.exceptions.SSLError",
        "requests.exceptions.ProxyError",
        "urllib3.exceptions.MaxRetryError",
        "urllib3.exceptions.ReadTimeoutError",
        "urllib3.exceptions.ProtocolError",
        "urllib.error.URLError",
        "httpx.TransportError",
        "httpx2.TransportError",
        "httpx.ConnectError",
        "httpx2.ConnectError",
        "httpx.ConnectTimeout",
        "httpx2.ConnectTimeout",
        "httpx.ReadTimeout",
        "httpx2.ReadTimeout",
        "httpx.ReadError",
        "httpx2.ReadError",
        "httpx.RemoteProtocolError",
        "httpx2.RemoteProtocolError",
        "httpcore.ConnectError",
        "socket.gaierror",
        "aiohttp.client_exceptions.ClientConnectorError",
        "botocore.exceptions.ConnectTimeoutError",
        "botocore.exceptions.ConnectionClosedError",
        "botocore.exceptions.EndpointConnectionError",
        "botocore.exceptions.ReadTimeoutError",
        transient=True,
    ),
    _row(
        "network",
        "huggingface_hub 0.x-2.x, requests, httpx",
        "huggingface_hub.errors.HfHubHTTPError",
        "huggingface_hub.errors.LocalEntryNotFoundError",
        "huggingface_hub.errors.FileMetadataError",
        "requests.exceptions.RequestException",
        "requests.exceptions.HTTPError",
        "httpx.HTTPError",
        "httpx2.HTTPError",
        "httpx.HTTPStatusError",
        "httpx2.HTTPStatusError",
        "urllib.error.HTTPError",
        "aiohttp.client_exceptions.ClientResponseError",
        "ConnectionError",
    ),
    _row(
        "network",
        "CPython: of a socket",
        "TimeoutError",
        pattern=r"^timed out|operation timed out|\[Errno (?:60|110)\]|[Cc]onnect",
        transient=True,
    ),
)

_PIPES = (
    # Of a pipe between processes: the other end died.  Over the network these come wrapped in the client's own types.
    _row(
        "unknown",
        "CPython (multiprocessing)",
        "BrokenPipeError",
        "ConnectionResetError",
        "EOFError",
        pattern=r"^\[Errno (?:32|104)\]|^$",
        consequence=True,
    ),
)

# Python's own types: any mistake raises them, and so does a program that wraps another library's error.
ANY_MISTAKE = _row(
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
    "datasets.exceptions.DatasetGenerationError",  # wraps whatever was raised, and says nothing of it
    transient=False,
)

_USER = (
    _row("timeout", "CPython", "subprocess.TimeoutExpired", "TimeoutError"),
    _row("user_error", "CPython: python -m, a folder as program", "runpy._Error", transient=False),
    ANY_MISTAKE,
    _row(
        "user_error",
        "json, pickle, zipfile, PyYAML, pydantic, Hydra 1.x, OmegaConf 2.x, peft, DeepSpeed, Lightning: by their types",
        "json.decoder.JSONDecodeError",
        "_pickle.UnpicklingError",
        "pickle.UnpicklingError",
        "zipfile.BadZipFile",
        "yaml.scanner.ScannerError",
        "yaml.parser.ParserError",
        "pydantic_core._pydantic_core.ValidationError",
        "pydantic.error_wrappers.ValidationError",
        "argparse.ArgumentError",
        "hydra.errors.ConfigCompositionException",
        "hydra.errors.InstantiationException",
        "hydra.errors.MissingConfigException",
        "hydra.errors.OverrideParseException",
        "omegaconf.errors.ConfigAttributeError",
        "omegaconf.errors.ConfigKeyError",
        "omegaconf.errors.MissingMandatoryValue",
        "omegaconf.errors.ValidationError",
        "peft.utils.error.NoMatchingPeftModuleError",
        "deepspeed.ops.op_builder.builder.CUDAMismatchException",
        "deepspeed.ops.op_builder.builder.MissingCUDAException",
        "lightning.fabric.utilities.exceptions.MisconfigurationException",
        "lightning_fabric.utilities.exceptions.MisconfigurationException",
        "pytorch_lightning.utilities.exceptions.MisconfigurationException",
        "datasets.exceptions.DatasetNotFoundError",
        "datasets.exceptions.DataFilesNotFoundError",
        "datasets.table.CastError",
        "jinja2.exceptions.TemplateError",
        "jinja2.exceptions.UndefinedError",
        "jinja2.exceptions.TemplateSyntaxError",
        transient=False,
    ),
    _row(
        "user_error",
        "torch 1.x-2.13, peft, transformers, safetensors",
        pattern=r"size mismatch for|shapes cannot be multiplied|mat1 and mat2|index out of range in self"
        r"|must match the size of tensor|Sizes of tensors must match|stack expects each tensor to be equal size"
        r"|Expected to have finished reduction in the prior iteration|Error\(s\) in loading state_dict"
        r"|[Tt]arget modules .* not found|does not have a padding token|header too (?:small|large)"
        r"|HeaderTooSmall|HeaderTooLarge|InvalidHeader|MetadataIncompleteBuffer|incomplete metadata"
        r"|failed finding central directory|invalid magic number|Expected all tensors to be on the same device"
        r"|expected scalar type|does not require grad and does not have a grad_fn|backward through the graph a second"
        r"|Cannot re-initialize CUDA in forked subprocess|unexpected keyword argument|Given groups="
        r"|Default process group has not been initialized|view size is not compatible|Expected input batch_size"
        r"|\bnot implemented for '\w+'|unexpected EOF, expected \d+ more bytes"
        r"|Error building extension '|CUDA_HOME environment variable is not set",
        transient=False,
    ),
)

COLLECTIVES = frozenset(["nccl", "rendezvous"])
OWN_FAULTS = frozenset(["gpu_oom", "host_oom", "cuda_error", "disk_full", "nan_loss"])

SIGNATURES: tuple[Signature, ...] = (
    *_NCCL,
    *_GPU_MEMORY,
    *_HOST_MEMORY,
    *_WORKERS,
    *_DISK,
    *_NAN,
    *_CUDA,
    *_COLLECTIVES,
    _row("host_oom", "Linux: ENOMEM", pattern=r"\[Errno 12\]|Cannot allocate memory"),
    *_RENDEZVOUS,
    *_PIPES,
    *_NETWORK,
    *_USER,
)


def match(type_name: str, bases: list[str], message: str) -> Signature | None:
    """The first row that fits an exception; None when none does.

    A name without its module (torchelastic's error file, rich) fits a row's type of that name."""
    names = {name.removeprefix("builtins.") for name in (type_name, *bases)}
    names.update(_builtin_bases(type_name.removeprefix("builtins.")))
    bare = type_name if "." not in type_name and not hasattr(builtins, type_name) else None
    for row in SIGNATURES:
        if row.types and not (row.types & names) and not (bare and any(_bare(name) == bare for name in row.types)):
            continue
        if row.pattern is None or row.pattern.search(message):
            return row
    return None


def row_of(
    name: str, bases: list[str], message: str, chain: Sequence[tuple[str, str, str]]
) -> tuple[Signature | None, int]:
    """The row that says most of an exception and what is behind it, and how deep in the chain it was found.

    Causes count for an exception that says nothing certain: a mistake's type, or one nobody knows.  What was merely
    being handled counts only for the latter: a NameError in the handler of an out-of-memory error is a NameError.
    A collective that fails while the rank's own error is handled is the clean-up: the peers have ended, or wait."""
    row = match(name, bases, message)
    if row is not None and row.kind in COLLECTIVES:
        for depth, (deeper_name, deeper_message, _) in enumerate(chain, 1):
            deeper = match(deeper_name, [], deeper_message)
            if deeper is not None and deeper.kind in OWN_FAULTS:
                return deeper, depth
    if row is not None and row is not ANY_MISTAKE and not _vague(row):
        return row, 0
    for depth, (deeper_name, deeper_message, link) in enumerate(chain, 1):
        if link == "context" and row is not None and not _vague(row):
            break
        deeper = match(deeper_name, [], deeper_message)
        if (
            deeper is not None
            and deeper.kind != "user_error"
            and not (row is not None and deeper.kind == row.kind and deeper.transient is None)
        ):
            return deeper, depth
    return row, 0


def _vague(row: Signature) -> bool:
    """A writer that failed, a process that was lost: why stands behind it, where it stands at all."""
    return row.kind == "unknown" or (row.kind == "disk_full" and row.transient is None)


def _builtin_bases(name: str) -> list[str]:
    cls = getattr(builtins, name, None)
    return [base.__name__ for base in cls.__mro__] if isinstance(cls, type) else []


def _bare(name: str) -> str:
    return name.rpartition(".")[2]
