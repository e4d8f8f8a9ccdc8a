"""The exit codes of `harness exec`: one for every kind of verdict.

1 to 4 are for what will fail again; from 203 on stands what machines and limits do.  129 to 192 are left to shells,
which tell signals by them, and 241 to 255, which are negative numbers wrapped."""

from collections.abc import Mapping
from types import MappingProxyType

from harness.record import Kind

USAGE = 2  # nothing was launched: wrong usage, or the machine lacks what the command needs

EXIT_CODES: Mapping[Kind, int] = MappingProxyType(
    {
        Kind.NONE: 0,
        Kind.USER_ERROR: 1,
        Kind.NO_TRAINING: 3,
        Kind.NAN_LOSS: 4,
        Kind.UNKNOWN: 203,
        Kind.GPU_OOM: 204,
        Kind.HOST_OOM: 205,
        Kind.NCCL: 206,
        Kind.RENDEZVOUS: 207,
        Kind.CUDA_ERROR: 208,
        Kind.DISK_FULL: 209,
        Kind.NETWORK: 210,
        Kind.TIMEOUT: 211,
        Kind.KILLED: 212,
        Kind.CRASH: 213,
    }
)
