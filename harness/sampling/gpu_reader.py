"""What the sampler asks of GPUs, whoever made them: its events, and the Protocol that a vendor's reader fills.

Readers raise nothing of their vendor's: what they cannot tell is null, and why stands in the `gpu` event."""

from dataclasses import dataclass, field
from typing import Any, Protocol

# event -> field -> what it holds; every line also has t, m and e.
GPU_EVENTS: dict[str, dict[str, str]] = {
    "gpu": {
        "uuid": "UUID of the GPU or MIG device; the other events of it name it so",
        "whole_uuid": "UUID of the whole GPU; another than uuid for a MIG device, whose power, energy, clocks and "
        "temperature are the whole GPU's",
        "index": "the driver's index of the whole GPU; this and the rest null where nothing can be read of it",
        "name": "name of the GPU",
        "driver": "version of the driver",
        "memory_total_bytes": "memory of the GPU or MIG device; of the host where the GPU shares the host's",
        "memory_source": "what its memory figures are of: device, device_with_reserved (an older driver: used holds "
        "the reserved), host (the GPU has no memory of its own)",
        "power_limit_w": "limit of power that is enforced",
        "max_sm_clock_mhz": "highest clock of its multiprocessors",
        "compute_capability": "as text, such as 9.0",
        "unavailable": "field of `gpu_sample` -> why it is null; written again when a field joins them",
        "reason": "why nothing is read of it; null when something is",
    },
    "gpu_sample": {
        "uuid": "as in `gpu`",
        "utilization_percent": "share of time in which a kernel ran, over the driver's own last period (1/6 to 1 s)",
        "memory_utilization_percent": "share of that time in which its memory was read or written",
        "memory_used_bytes": "memory in use, of whatever process",
        "memory_reserved_bytes": "memory that driver and firmware keep",
        "memory_free_bytes": "memory that can be had",
        "processes": "processes that compute on it: a list of [pid, bytes, own]; bytes null where the driver does not "
        "tell; own: true of this job, false not, null when nobody can tell (it has ended, or the driver names the "
        "host's pids in a container)",
        "power_w": "power as the driver gives it: over the last second on Ampere and later, but A100: instant",
        "power_average_w": "power averaged over the last second",
        "power_instant_w": "power now",
        "sm_clock_mhz": "clock of the multiprocessors",
        "memory_clock_mhz": "clock of the memory",
        "throttle_reasons": "what holds the clocks down now: a list of idle, application_clocks, sw_power_cap, "
        "hw_slowdown, sync_boost, sw_thermal, hw_thermal, hw_power_brake, display_clocks",
        "temperature_c": "temperature of the GPU",
        "memory_temperature_c": "temperature of its memory",
        "energy_j": "energy since the driver was loaded",
        "throttled_power_s": "time in which the power limit held the clocks down, since the driver was loaded",
        "throttled_thermal_s": "time in which heat did",
        "pcie_tx_bytes": "bytes sent over PCIe so far",
        "pcie_rx_bytes": "bytes received over PCIe so far",
        "pcie_replays": "PCIe packets that were sent again so far",
        "nvlink_tx_bytes": "bytes sent over all NVLinks so far",
        "nvlink_rx_bytes": "bytes received over all NVLinks so far",
        "ecc_uncorrected": "memory errors that could not be corrected, since the driver was loaded",
        "power_buffer": "the driver's own readings since the poll before: {n, from_m, to_m, joules, mean_w, peak_w}, "
        "the joules by trapezoids from the reading before; null when there is none yet",
        "utilization_buffer": "the same of utilization_percent: {n, mean_percent, peak_percent}",
        "sm_active_percent": "share of the multiprocessors that were busy, a mean over gpm_s; this and the next three "
        "on Hopper and later",
        "sm_occupancy_percent": "warps that were resident as a share of those that fit, a mean over gpm_s",
        "tensor_active_percent": "share of time in which the tensor cores worked, a mean over gpm_s",
        "memory_bandwidth_percent": "memory traffic as a share of the peak, a mean over gpm_s",
        "gpm_s": "seconds before this line that the four are means of; null at the first poll",
        "poll_s": "wall time that reading this GPU took",
    },
    "gpu_lost": {
        "uuid": "as in `gpu`; nothing is read of it from here on",
        "reason": "what the driver said",
    },
    "gpu_stalled": {
        "uuid": "as in `gpu`; null when the driver itself does not open",
        "call": "what was asked for and has not been answered; samples of all GPUs wait for it",
        "seconds": "for how long so far",
    },
    "gpu_error": {"message": "type and text of a failure in the sampler itself; GPUs are sampled no more"},
    "xid": {
        "uuid": "as in `gpu`; null when the driver does not say which",
        "xid": "number in NVIDIA's catalogue of Xid errors",
    },
}


@dataclass
class Unit:
    """A GPU or MIG device that is read: what is known of it, and what was refused and is not asked again."""

    uuid: str
    facts: dict[str, Any] = field(default_factory=dict)  # the fields of `gpu`, but for uuid, unavailable and reason
    unavailable: dict[str, str] = field(default_factory=dict)  # field of gpu_sample -> why it is null
    reason: str | None = None  # why nothing is read of it
    handle: Any = None  # the vendor's
    whole: Any = None
    memory: dict[str, Any] = field(default_factory=dict)  # what a reader keeps between two polls


class Lost(Exception):
    """A GPU that has left; the text is what the driver said."""


class GpuReader(Protocol):
    """One vendor's GPUs.  Any call may block for long, or for ever."""

    doing: tuple[str | None, str]  # the unit and the call that runs now

    def open(self) -> list[Unit]:
        """The GPUs that were asked for, also those that cannot be read."""

    def poll(self, unit: Unit) -> dict[str, Any]:
        """The fields of `gpu_sample`, but for uuid, processes' `own`, and poll_s.  Raises Lost."""

    def wait_for_xid(self, timeout_s: float) -> tuple[str | None, int] | None:
        """UUID and number of the next error; None when none came.  Raises Lost when there is no more to wait for."""
