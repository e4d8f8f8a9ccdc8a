# ruff: noqa: E501 - the lines of libraries stay whole
"""The fixed words of libraries, each in the form its library prints: kind, and whether a retry may help."""

from typing import Any

import pytest

from harness.classify import evidence_of, judge
from harness.record import Kind, Verdict

TRACE = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    main()\n'


def ended(log: str, exit_code: int | None = 1, **more: Any) -> Verdict:
    return judge(evidence_of({"stderr": log, "exit_code": exit_code, **more}))


def raised(error: str) -> str:
    return f"step 1 loss 2.0\n{TRACE}{error}\n"


OOM_TAIL = "GPU 0 has a total capacity of 79.25 GiB of which 1.03 GiB is free."
NCCL = "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1"

# (error, kind, transient); an exception's last line
EXCEPTIONS: list[tuple[str, str, bool | None]] = [
    (f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. {OOM_TAIL}", "gpu_oom", False),
    (("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 23.69 GiB total capacity; 22.00 GiB already "
     "allocated; 11.75 MiB free; 22.06 GiB reserved in total by PyTorch)"), "gpu_oom", False),
    (("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 23.69 GiB total capacity; 1.00 GiB already "
     "allocated; 11.75 MiB free; 1.06 GiB reserved in total by PyTorch)"), "gpu_oom", None),
    (("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB of "
     "which 1.00 GiB is free. Process 77 has 60.00 GiB memory in use. Including non-PyTorch memory, this process has "
     "18.00 GiB memory in use."), "gpu_oom", None),
    (("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 200.00 GiB. GPU 0 has a total capacity of 79.25 GiB "
     "of which 1.00 GiB is free. Process 77 has 60.00 GiB memory in use."), "gpu_oom", False),
    ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 3.00 GiB.", "gpu_oom", False),
    ("torch.OutOfMemoryError: XPU out of memory. Tried to allocate 3.00 GiB.", "gpu_oom", False),
    ("RuntimeError: NPU out of memory. Tried to allocate 3.00 GiB (NPU 0; 29.50 GiB total capacity)", "gpu_oom", False),
    ("RuntimeError: MPS backend out of memory (MPS allocated: 17.93 GB)", "gpu_oom", False),
    ("RuntimeError: Native API failed. Native API returns: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)", "gpu_oom", False),
    ("RuntimeError: [Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM Allocation failed for size::67108864 (64)MB", "gpu_oom", False),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "gpu_oom", False),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "gpu_oom", False),
    ("torch.AcceleratorError: CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in https://docs", "gpu_oom", False),
    ((f"{NCCL}, unhandled cuda error, NCCL version 2.21.5\nncclUnhandledCudaError: Call to CUDA function failed.\n"
     "Last error:\nCuda failure 2 'out of memory'"), "gpu_oom", False),
    (f"{NCCL}, unhandled cuda error, NCCL version 2.21.5\nLast error:\nFailed to CUDA calloc async 608 bytes", "gpu_oom", False),
    ("RuntimeError: Triton Error [CUDA]: out of memory", "gpu_oom", False),
    ("RuntimeError: No executable batch size found, reached zero.", "gpu_oom", False),
    ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`", "gpu_oom", False),
    ("ValueError: Free memory on device (3.2/79.15 GiB) on startup is less than desired GPU memory utilization (0.9)",
     "gpu_oom", None),
    (("RuntimeError: [enforce fail at alloc_cpu.cpp:83] . DefaultCPUAllocator: can't allocate memory: you tried to allocate "
     "9 bytes. Error code 12 (Cannot allocate memory)"), "host_oom", False),
    ("OSError: [Errno 12] Cannot allocate memory", "host_oom", None),
    ("MemoryError", "host_oom", False),
    (("numpy.core._exceptions._ArrayMemoryError: Unable to allocate 74.5 GiB for an array with shape (100000, 100000) and "
     "data type float64"), "host_oom", False),
    ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 74.5 GiB for an array with shape (1,)", "host_oom", False),
    ("MemoryError: std::bad_alloc", "host_oom", False),
    ("RuntimeError: std::bad_alloc", "host_oom", False),
    (("RuntimeError: DataLoader worker (pid 9) is killed by signal: Bus error. It is possible that dataloader's workers are "
     "out of shared memory."), "host_oom", None),
    ("RuntimeError: unable to write to file </torch_41_22_3>: No space left on device (28)", "host_oom", False),
    ("RuntimeError: unable to allocate shared memory(shm) for file </torch_41_22_3>: Success (0)", "host_oom", None),
    ("RuntimeError: unable to mmap 64 bytes from file </torch_41_22_3>: Cannot allocate memory (12)", "host_oom", None),
    ("OSError: [Errno 28] No space left on device: '/dev/shm/sem.mp-abc'", "host_oom", False),
    ((f"{NCCL}, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.3\nncclSystemError: System "
     "call failed.\nLast error:\nError while creating shared memory segment /dev/shm/nccl-Xy (size 9637888), error: No "
     "space left on device (28)"), "host_oom", False),
    ((f"{NCCL}, unhandled system error, NCCL version 2.21.5\nLast error:\nError: failed to extend /dev/shm/nccl-yz to 33030532 "
     "bytes"), "host_oom", False),
    (f"{NCCL}, unhandled system error, NCCL version 2.8\nLast error:\nposix_fallocate failed : No space left on device",
     "host_oom", False),
    ((f"{NCCL}, internal error - please report this issue to the NCCL developers, NCCL version 2.21.5\nncclInternalError: "
     "Internal check failed.\nLast error:\nsomething"), "nccl", None),
    ((f"{NCCL}, unhandled system error, NCCL version 2.21.5\nncclSystemError: System call (e.g. socket, malloc) or external "
     "library call failed or device error.\nLast error:\nCall to ibv_modify_qp failed with error Connection timed out"), "nccl", True),
    ((f"{NCCL}, unhandled system error, NCCL version 2.21.5\nLast error:\nCall to ibv_reg_mr failed with error Cannot allocate "
     "memory"), "nccl", False),
    ((f"{NCCL}, unhandled system error, NCCL version 2.21.5\nLast error:\nsocketStartConnect: Connect to 10.0.0.2<44205> "
     "failed : No route to host"), "nccl", True),
    ((f"{NCCL}, unhandled system error, NCCL version 2.21.5\nLast error:\nsocketPollConnect: Connect to 10.0.0.2<44205> "
     "returned 111(Connection refused) errno 115(Operation now in progress)"), "nccl", True),
    ((f"{NCCL}, invalid usage, NCCL version 2.21.5\nncclInvalidUsage: This usually reflects invalid usage of NCCL "
     "library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 1c000"), "nccl", False),
    (f"{NCCL}, invalid argument, NCCL version 2.21.5\nncclInvalidArgument: Invalid value for an argument.", "nccl", False),
    ("RuntimeError: NCCL error in: ../torch/lib/c10d/ProcessGroupNCCL.cpp:784, unhandled system error, NCCL version 2.7.8",
     "nccl", None),
    ("RuntimeError: NCCL communicator was aborted on rank 1. Original reason for failure was: x", "nccl", True),
    (("RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for send "
     "operation to complete"), "nccl", None),
    ("RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error", "nccl", None),
    ("RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:799] connect [127.0.1.1]:1: Connection refused", "nccl", True),
    ("RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 5000 ms", "nccl", None),
    ("RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: X", "nccl", False),
    ("torch.distributed.DistNetworkError: failed to recv, got 0 bytes", "nccl", True),
    (("torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d "
     "key-value store by key '0', but store->get('0') got error: Connection reset by peer"), "nccl", True),
    ("RuntimeError: CUDA out of memory. Tried to allocate more than 1EB memory.", "nccl", None),
    (("torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. The server "
     "socket has failed to bind to [::]:29500 (errno: 98 - Address already in use)."), "rendezvous", True),
    ("RuntimeError: Address already in use", "rendezvous", True),
    ("torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (a, 1).",
     "rendezvous", True),
    ("TimeoutError: The client socket has timed out after 60s while trying to connect to (a, 1).", "rendezvous", True),
    ("torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.", "rendezvous", True),
    ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", "rendezvous", True),
    ("torch.distributed.elastic.rendezvous.api.RendezvousClosedError", "rendezvous", True),
    (("torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See "
     "inner exception for details."), "rendezvous", True),
    (("RuntimeError: Timed out initializing process group in store based barrier on rank: 1, for key: k (world_size=2, "
     "worker_count=1, timeout=0:30:00)"), "rendezvous", True),
    ("torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0//cuda//0", "rendezvous", None),
    ("RuntimeError: Ping failed, invalid value returned from server. Expected: 1, Got: 1347703880", "rendezvous", False),
    (("ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected, but not "
     "set"), "user_error", False),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", "cuda_error", None),
    ("torch.AcceleratorError: CUDA error: device-side assert triggered", "cuda_error", False),
    ("RuntimeError: CUDA error: unspecified launch failure", "cuda_error", None),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "cuda_error", True),
    ("RuntimeError: CUDA error: misaligned address", "cuda_error", None),
    ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "cuda_error", False),
    ("RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version", "cuda_error", False),
    ("RuntimeError: CUDA error: unknown error", "cuda_error", None),
    ("RuntimeError: CUDA error: the launch timed out and was terminated", "cuda_error", None),
    ("RuntimeError: CUDA error: too many resources requested for launch", "cuda_error", False),
    (("RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling "
     "NumCudaDevices()? Error 802: system not yet initialized"), "cuda_error", None),
    (("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver / cuda "
     "driver combination"), "cuda_error", False),
    (("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 804: forward compatibility was attempted on non "
     "supported HW"), "cuda_error", False),
    ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", "cuda_error", False),
    ("pynvml.NVMLError_LibRmVersionMismatch: Driver/library version mismatch", "cuda_error", False),
    ("triton.compiler.errors.OutOfResources: out of resource: shared memory, Required: 131072, Hardware limit: 101376.",
     "cuda_error", False),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", "cuda_error", None),
    ("RuntimeError: CUDA error: invalid device ordinal", "user_error", False),
    ("OSError: [Errno 28] No space left on device", "disk_full", False),
    ("OSError: [Errno 122] Disk quota exceeded: 'a'", "disk_full", False),
    ("OSError: [Errno 27] File too large", "disk_full", False),
    (("safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: \"No "
     "space left on device\" })"), "disk_full", False),
    ("safetensors._safetensors_rust.SafetensorError: Error while serializing: I/O error: No space left on device (os error 28)",
     "disk_full", False),
    ("RuntimeError: [enforce fail at inline_container.cc:595] . unexpected pos 576 vs 470", "disk_full", None),
    ("RuntimeError: PytorchStreamWriter failed writing file data/0: file write failed", "disk_full", None),
    ("RuntimeError: basic_ios::clear: iostream error", "disk_full", None),
    ("huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/x", "network", True),
    ("huggingface_hub.errors.HfHubHTTPError: 500 Server Error: Internal Server Error for url: https://huggingface.co/x",
     "network", True),
    ("requests.exceptions.HTTPError: 503 Server Error: Service Unavailable for url: https://huggingface.co/x", "network", True),
    ("huggingface_hub.errors.RevisionNotFoundError: 404 Client Error. (Request ID: x)", "network", False),
    ("huggingface_hub.errors.RemoteEntryNotFoundError: 404 Client Error. (Request ID: x)", "network", False),
    ("huggingface_hub.errors.HfHubHTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/api/x", "network", False),
    ("OSError: org/x is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
     "network", False),
    ("huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://huggingface.co/x: offline mode is enabled.", "network", False),
    ("OSError: We couldn't connect to 'https://huggingface.co' to load the files", "network", None),
    (("requests.exceptions.ConnectionError: (MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Max retries "
     "exceeded with url: /x (Caused by NameResolutionError('Failed to resolve'))\"), '(Request ID: 1)')"), "network", True),
    ("httpx.ConnectError: [Errno -3] Temporary failure in name resolution", "network", True),
    ("httpx.ReadTimeout: The read operation timed out", "network", True),
    (("huggingface_hub.errors.GatedRepoError: 403 Client Error. (Request ID: x)\n\nCannot access gated repo for url "
     "https://huggingface.co/x."), "user_error", False),
    (("OSError: You are trying to access a gated repo.\nMake sure to have access to it at https://huggingface.co/x.\n401 Client "
     "Error. (Request ID: x)"), "user_error", False),
    ("TypeError: f() got an unexpected keyword argument 'x'", "user_error", False),
    ("ModuleNotFoundError: No module named 'flash_attn'", "user_error", False),
    ("FileNotFoundError: [Errno 2] No such file or directory: 'data.json'", "user_error", False),
    ("huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name'", "user_error", False),
    ("json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)", "user_error", False),
    ("RuntimeError: Error(s) in loading state_dict for M:\n\tsize mismatch for weight: copying a param", "user_error", False),
    ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)", "user_error", False),
    ("IndexError: index out of range in self", "user_error", False),
    ("ValueError: Target modules {'q'} not found in the base model.", "user_error", False),
    ("RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one.", "user_error", False),
    ("OSError: [Errno 24] Too many open files", "user_error", False),
    ("RuntimeError: unable to open shared memory object </torch_1_2_3> in read-write mode: Too many open files (24)",
     "user_error", False),
    ("safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooSmall", "user_error", False),
    ("safetensors._safetensors_rust.SafetensorError: Error while deserializing header: header too small", "user_error", False),
    ("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory", "user_error", False),
    ("RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.", "nan_loss", False),
    ("RuntimeError: The total norm of order 2.0 for gradients from `parameters` is non-finite, so it cannot be clipped.",
     "nan_loss", False),
    ("RuntimeError: probability tensor contains either `inf`, `nan` or element < 0", "nan_loss", False),
    ("Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.", "nan_loss", False),
    ("subprocess.TimeoutExpired: Command '['x']' timed out after 10 seconds", "timeout", None),
    ("RuntimeError: DataLoader worker (pid 9) is killed by signal: Killed.", "killed", None),
    ("RuntimeError: DataLoader worker (pid 9) is killed by signal: Segmentation fault.", "crash", None),
    ("RuntimeError: DataLoader worker (pid(s) 9, 10) exited unexpectedly", "unknown", None),
    ("KeyboardInterrupt", "killed", False),
    ("mylib.SomethingOdd: whatever", "unknown", None),
]  # fmt: skip


@pytest.mark.parametrize("error, kind, transient", EXCEPTIONS)
def test_an_exception(error: str, kind: str, transient: bool | None) -> None:
    verdict = ended(raised(error))
    assert (str(verdict.kind), verdict.transient) == (kind, transient), verdict
    if kind != "killed" or "worker" in error:
        assert verdict.evidence[0].line is not None


@pytest.mark.parametrize("error, kind, transient", [row for row in EXCEPTIONS if ": " in row[0]])
def test_the_same_in_the_process(error: str, kind: str, transient: bool | None) -> None:
    name, _, message = error.partition(": ")
    builtin = "." not in name
    told = {"exception_type": f"builtins.{name}" if builtin else name, "message": message, "exit_code": 1}
    verdict = judge(evidence_of(told))
    assert (str(verdict.kind), verdict.transient) == (kind, transient), verdict


C10D = "[rank2]:[E626 06:24:44.903801913 ProcessGroupNCCL.cpp:616] [Rank 2] "
# (log, exit code, kind, transient, rank)
LINES: list[tuple[str, str, int | None, str, bool | None, int | None]] = [
    ("bitsandbytes", "Error out of memory at line 380 in file /src/csrc/pythonInterface.c\n", 1, "gpu_oom", False, None),
    ("nccl-warn-oom", "node-0:1:2 [3] include/alloc.h:185 NCCL WARN Cuda failure 'out of memory'\n", 1, "gpu_oom", False, None),
    ("nccl-warn-calloc", "node-0:1:2 [3] NCCL WARN Failed to CUDA calloc 608 bytes\n", 1, "gpu_oom", False, None),
    ("nccl-warn-shm", "node-0:1:2 [3] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-8 to 9 bytes\n",
     1, "host_oom", False, None),
    ("bad-alloc", ("terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\nAborted (core "
     "dumped)\n"), 134, "host_oom", False, None),
    ("bus", "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n\0",
     1, "host_oom", None, None),
    ("slurm-oom", ("slurmstepd: error: Detected 1 oom_kill event in StepId=9.0. Some of the step tasks have been OOM Killed.\n"
     "srun: error: node-0: task 1: Out Of Memory\n"), 1, "host_oom", False, 1),
    ("slurm-oom-old", "slurmstepd: error: Detected 2 oom-kill event(s) in StepId=9.batch cgroup.\n", 1, "host_oom", False, None),
    ("slurm-preempt", "slurmstepd: error: *** JOB 3 ON node-0 CANCELLED AT 2021-03-15T18:00:46 DUE TO PREEMPTION ***\n", 143,
     "killed", True, None),
    ("slurm-node", ("slurmstepd: error: *** JOB 3 ON node-0 CANCELLED AT 2021-03-15T18:00:46 DUE TO NODE FAILURE, SEE "
     "SLURMCTLD LOG FOR DETAILS ***\n"), 1, "killed", True, None),
    ("slurm-requeue", "slurmstepd: error: *** JOB 3 ON node-0 CANCELLED AT 2021-03-15T18:00:46 DUE TO JOB REQUEUE ***\n", 143,
     "killed", True, None),
    ("slurm-time", "slurmstepd: error: *** STEP 3.0 ON node-0 CANCELLED AT 2021-03-15T18:00:46 DUE TO TIME LIMIT ***\n", 143,
     "timeout", None, None),
    ("slurm-scancel", "slurmstepd: error: *** JOB 3 ON node-0 CANCELLED AT 2021-03-15T18:00:46 ***\n", 143, "killed", True, None),
    ("slurm-segv", "srun: error: node-0: task 3: Segmentation fault (core dumped)\n", 139, "crash", None, 3),
    ("watchdog", C10D + "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, "
     "NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n", -6, "nccl", None, None),
    ("stuck", C10D + "ProcessGroupNCCL's watchdog got stuck for 600 seconds without making progress\n", -6, "nccl", None, None),
    ("heartbeat", ("[rank2]:[F626 06:24:44.903801913 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0 Rank 2] [PG ID 0 PG GUID 0 "
     "Rank 2] Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.\n"
     "[rank2]:[E626 06:24:44.903801913 ProcessGroupNCCL.cpp:1413] [PG ID 0 PG GUID 0 Rank 2] Heartbeat monitor timed out! "
     "Process will be terminated after dumping debug info. workMetaList_.size()=1\n"), -6, "nccl", None, None),
    ("ib", ("node-0:1:2 [4] NCCL WARN NET/IB : Got completion from peer 10.0.0.1<5> with error 12, opcode 0, len 0, vendor err "
     "129\n"), -6, "nccl", True, None),
    ("ib-name", "node-0:1:2 [4] NCCL WARN NET/IB: Got completion from peer 10.0.0.1<5> with status=IBV_WC_RETRY_EXC_ERR(12)\n", -6,
     "nccl", True, None),
    ("watchdog-cuda", C10D + "Process group watchdog thread terminated with exception: CUDA error: uncorrectable ECC error "
     "encountered\n", -6, "cuda_error", True, 2),
    ("assert", "../aten/src/ATen/native/cuda/Indexing.cu:1237: indexSelectSmallIndex: block: [0,0,0], thread: [1,0,0] Assertion "
     "`srcIndex < srcSelectDimSize` failed.\n" + raised("RuntimeError: CUDA error: device-side assert triggered"), 1,
     "cuda_error", False, None),
    ("nan-check", "../torch/csrc/distributed/c10d/NanCheck.cu:177: checkForNaN: block: [0,0,0], thread: [1,0,0] Assertion "
     "`!isnan(tailPtr[threadIdx.x])` failed.\n" + raised("RuntimeError: CUDA error: device-side assert triggered"), 1,
     "nan_loss", False, None),
    ("rocm", "Memory access fault by GPU node-2 (Agent handle: 0x1) on address 0x7. Reason: Unknown.\n", 134, "cuda_error", None, None),
    ("xid-in-log", "[ 12.3] NVRM: Xid (PCI:0000:65:00): 79, pid=1, GPU has fallen off the bus.\n", 1, "cuda_error", True, None),
    ("bus-lost", "NVRM: GPU 0000:65:00.0: GPU has fallen off the bus.\n", 1, "cuda_error", True, None),
    ("argparse", "usage: t.py [-h]\nt.py: error: unrecognized arguments: --x\n", 2, "user_error", False, None),
    ("no-file", "python: can't open file '/a/t.py': [Errno 2] No such file or directory\n", 2, "user_error", False, None),
    ("exit-2", "", 2, "user_error", False, None),
    ("nan-idiom", "Loss is nan, stopping training\n", 1, "nan_loss", False, None),
    ("agent-15", "[2024-04-20 09:09:38,110] torch.distributed.elastic.agent.server.api: [WARNING] Received Signals.SIGTERM death "
     "signal, shutting down workers\n" + raised("torch.distributed.elastic.multiprocessing.api.SignalException: Process 31 got "
     "signal: 15"), 1, "killed", True, None),
    ("agent-2", "W1201 api.py:753] Received 2 death signal, shutting down workers\n", 1, "killed", False, None),
    ("accelerate", raised("subprocess.CalledProcessError: Command '['python', 't.py']' died with <Signals.SIGKILL: 9>."), 1,
     "killed", None, None),
    ("accelerate-segv", raised("subprocess.CalledProcessError: Command '['python', 't.py']' died with <Signals.SIGSEGV: 11>."), 1,
     "crash", None, None),
    ("deepspeed", ("[2024-05-02 10:12:05,330] [ERROR] [launch.py:325:sigkill_handler] ['python', '-u', 't.py', '--local_rank=3'] "
     "exits with return code = -9\n"), 247, "killed", None, 3),
    ("spawn", raised("torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL"), 1, "killed",
     None, 1),
    ("faulthandler", "Timeout (0:10:00)!\nThread 0x1 (most recent call first):\n  File \"t.py\", line 3 in f\n", 1, "timeout", None,
     None),
    ("segv", "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1 (most recent call first):\n", -11, "crash", None, None),
    ("shell-segv", "run.sh: line 3: 4242 Segmentation fault      (core dumped) python t.py\n", 139, "crash", None, None),
    ("shell-killed", "run.sh: line 3: 4242 Killed                  python t.py\n", 137, "killed", None, None),
    ("sigkill", "", -9, "killed", None, None),
    ("sigterm", "", 143, "killed", True, None),
    ("sigint", "", 130, "killed", False, None),
    ("sigbus", "", -7, "host_oom", None, None),
    ("sigill", "", 132, "crash", False, None),
    ("sigfpe", "", -8, "crash", None, None),
    ("timeout-1", "step 1\n", 124, "timeout", None, None),
    ("no-text", "", 1, "unknown", None, None),
    ("swallowed", ("ERROR training failed: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.25 GiB "
     "of which 1.03 GiB is free.\n"), 1, "gpu_oom", False, None),
]  # fmt: skip


@pytest.mark.parametrize(
    "log, exit_code, kind, transient, rank", [row[1:] for row in LINES], ids=[row[0] for row in LINES]
)
def test_a_line(log: str, exit_code: int | None, kind: str, transient: bool | None, rank: int | None) -> None:
    verdict = ended(log, exit_code)
    assert (str(verdict.kind), verdict.transient, verdict.rank) == (kind, transient, rank), verdict


KEY = "KeyError: 'prompt'"
GOES_ON = "".join(f"step {n} loss 2.{n}\n" for n in range(50))
# What looks like a cause and is none; the real one is a KeyError, in the log's end.
TRAPS = {
    "data-line": "sample 17: {'text': 'RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB'}\n",
    "data-line-of-its-own": "{\"q\": \"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\"}\n",
    "environment": "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True NCCL_DEBUG=INFO NCCL_TIMEOUT=10\n",
    "nccl-info": "node-0:1:2 [1] NCCL INFO NET/IB : No device found.\n",
    "nccl-warn": "node-0:1:2 [1] misc/ibvwrap.cc:100 NCCL WARN Call to ibv_open_device failed\n",
    "destroy": "[rank1]:[W124 16:00:16.906100177 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been "
    "destroyed before we destruct ProcessGroupNCCL.\n",
    "wandb": "wandb: Network error (ConnectionError), entering retry loop.\n",
    "hub-retry": "HTTP Error 503 thrown while requesting HEAD https://huggingface.co/x\nRetrying in 1s [Retry 1/5].\n",
    "handled-oom": raised(f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. {OOM_TAIL}") + GOES_ON,
    "skipped-batch": f"WARNING: CUDA out of memory. Tried to allocate 2.00 GiB. {OOM_TAIL} Skipping batch.\n" + GOES_ON,
    "config": "TrainingArguments(\n  auto_find_batch_size=True,\n  skip_memory_metrics=True,\n)\n",
    "deprecated": "[W AllocatorConfig.cpp:28] Warning: PYTORCH_CUDA_ALLOC_CONF is deprecated\n",
}  # fmt: skip


@pytest.mark.parametrize("noise", TRAPS.values(), ids=list(TRAPS))
def test_a_trap(noise: str) -> None:
    verdict = ended(noise + raised(KEY))
    assert (verdict.kind, verdict.reason) == (Kind.USER_ERROR, KEY)
    assert ended(noise, 0).kind is Kind.NONE


def test_exit_0_beats_every_text() -> None:
    for error, _, _ in EXCEPTIONS:
        assert ended(raised(error), 0).kind is Kind.NONE


@pytest.mark.parametrize(
    "number, kind", [(13, "nccl"), (31, "nccl"), (43, "nccl"), (45, "nccl"), (48, "cuda_error"), (119, "cuda_error")]
)
def test_xids(number: int, kind: str) -> None:
    log = (
        C10D
        + "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=6) ran for 6\n"
    )
    kernel = f"NVRM: Xid (PCI:0000:1b:00): {number}, pid=4242, name=python, text\n"
    assert str(ended(log, -6, kernel_log=kernel).kind) == kind


@pytest.mark.parametrize(
    "kernel, oom_kill, exit_code, kind, transient",
    [
        ("Out of memory: Killed process 42 (python3) total-vm:1kB", 0, 137, "host_oom", None),
        ("oom-kill:constraint=CONSTRAINT_MEMCG,task=python3,pid=42,uid=0\nMemory cgroup out of memory: Killed process 42 (p)", 0,
         137, "host_oom", False),
        ("", 1, 137, "host_oom", False),
        ("", 0, 137, "killed", None),
        ("", 1, 1, "unknown", None),
    ],
)  # fmt: skip
def test_memory_kills(kernel: str, oom_kill: int, exit_code: int, kind: str, transient: bool | None) -> None:
    verdict = ended("step 1\n", exit_code, kernel_log=kernel, cgroup_oom_kill=oom_kill)
    assert (str(verdict.kind), verdict.transient) == (kind, transient)


@pytest.mark.parametrize("said", ["(pid 9) is killed by signal: Killed.", "(pid(s) 9) exited unexpectedly"])
def test_a_worker_that_was_killed_for_memory(said: str) -> None:
    log = raised(f"RuntimeError: DataLoader worker {said}")
    verdict = ended(log, cgroup_oom_kill=1)
    assert (verdict.kind, verdict.transient) == (Kind.HOST_OOM, False)
    assert ended(log, cgroup_oom_kill=0).kind is not Kind.HOST_OOM
