"""Journals of the sampler, made up, and the figures that come of them."""

from typing import Any

import pytest
from pydantic import TypeAdapter

from harness.telemetry import Event, GpuSpan, Reading, Telemetry, joules_per_million, summarise

UUID, OTHER = "GPU-a", "GPU-b"


def start(interval_s: float = 1.0, **reasons: str) -> Event:
    limits = {"cgroup_version": 2, "memory_limit_bytes": 4096, "cpu_limit": 1.5, "reasons": reasons}
    return {"e": "start", "m": 0.0, "pid": 1, "interval_s": interval_s, **limits}


def described(uuid: str = UUID, whole: str | None = None, **unavailable: str) -> Event:
    facts = {"whole_uuid": whole or uuid, "index": 0, "name": "H100", "memory_source": "device", "reason": None}
    return {"e": "gpu", "m": 0.0, "uuid": uuid, **facts, "unavailable": unavailable}


def polled(m: float, uuid: str = UUID, **fields: Any) -> Event:
    return {"e": "gpu_sample", "m": m, "uuid": uuid, "processes": [], **fields}


def steady(seconds: int, watts: float, counted: float | None = None, uuid: str = UUID) -> list[Event]:
    """A second apart; the counter may run at another pace than the power."""
    counted = watts if counted is None else counted
    return [polled(float(m), uuid, power_w=watts, energy_j=1e6 + counted * m) for m in range(seconds + 1)]


def sampled(m: float, **fields: Any) -> Event:
    return {"e": "sample", "m": m, "tree": {"processes": 1, **fields}, "host": {}, "cgroup": {}, "sampler": {}}


def gpu_of(told: Telemetry, number: int = 0) -> GpuSpan:
    span = told.gpus[number].window
    assert span is not None
    return span


def test_energy_by_both_ways() -> None:
    told = summarise([start(), described(), *steady(30, 300.0)], (5.0, 25.0), window_tokens=4_000_000)
    energy = gpu_of(told).energy
    assert energy.counter_j == energy.joules == pytest.approx(6000)
    assert energy.integrated_j == pytest.approx(6000)
    assert energy.disagreement == pytest.approx(0.0)
    assert (energy.flags, energy.reasons) == ((), {})
    assert told.window is not None
    assert told.window.joules_per_million_tokens == pytest.approx(1500)
    assert told.job.energy is not None
    assert told.job.energy.counter_j == pytest.approx(9000)
    assert (told.job.joules_per_million_tokens, told.job.reasons) == (
        None,
        {"host": "the sampler left no sample", "joules_per_million_tokens": "the tokens are not known"},
    )


@pytest.mark.parametrize(
    ("counted", "window", "flags"),
    [
        pytest.param(300.0, (5.0, 25.0), [], id="good"),
        pytest.param(288.0, (5.0, 25.0), [], id="four-percent"),
        pytest.param(280.0, (5.0, 25.0), ["the energy counter and integrated power disagree by 6.7%"], id="disagree"),
        pytest.param(0.0, (5.0, 25.0), ["the energy counter and integrated power disagree by 100.0%"], id="stuck"),
        pytest.param(300.0, (5.0, 14.0), ["9.0 s are too short for an energy: at least 10 s"], id="short"),
    ],
)
def test_flags_of_an_energy(counted: float, window: tuple[float, float], flags: list[str]) -> None:
    told = summarise([start(), described(), *steady(30, 300.0, counted)], window)
    assert gpu_of(told).energy.flags == tuple(flags)
    assert told.window is not None
    assert told.window.energy is not None
    assert told.window.energy.flags == tuple(flags)


def test_a_window_between_two_samples_counts_in_proportion() -> None:
    told = summarise([start(), described(), *steady(30, 100.0)], (5.25, 20.5))
    assert gpu_of(told).energy.counter_j == pytest.approx(1525)
    assert gpu_of(told).energy.integrated_j == pytest.approx(1525)
    assert gpu_of(told).samples == 15


def test_the_drivers_own_readings_are_closer() -> None:
    """Polls see 100 W, and the spikes between them are in the ring alone."""
    events = steady(30, 100.0, 200.0)
    for event in events[1:]:
        m = event["m"]
        event["power_buffer"] = {"n": 50, "from_m": m - 1, "to_m": m, "joules": 200.0, "peak_w": 900.0, "mean_w": 200.0}
    span = gpu_of(summarise([start(), described(), *events], (5.0, 25.0)))
    assert span.energy.integrated_j == pytest.approx(4000)
    assert span.energy.flags == ()
    assert (span.power_peak_w, span.power_mean_w) == (900.0, 100.0)


def test_the_mean_of_one_sample_is_the_sample_whatever_the_peak() -> None:
    events = [polled(5.0, power_average_w=100.0, power_instant_w=700.0)]
    span = gpu_of(summarise([start(), described(), *events], (0.0, 10.0)))
    assert (span.power_mean_w, span.power_peak_w) == (100.0, 700.0)


def test_a_gap_is_not_covered_by_polls_but_by_the_counter() -> None:
    events = [event for event in steady(30, 300.0) if not 10 < event["m"] < 18]
    span = gpu_of(summarise([start(), described(), *events], (0.0, 30.0)))
    assert span.coverage == pytest.approx(22 / 30)
    assert span.energy.counter_j == pytest.approx(9000)
    assert span.energy.integrated_j is None
    assert span.energy.reasons["integrated_j"] == "22.0 s of 30.0 s are covered by samples"


def test_a_window_that_samples_do_not_quite_reach() -> None:
    span = gpu_of(summarise([start(), described(), *steady(30, 300.0)], (10.0, 31.0)))
    assert span.energy.counter_j == pytest.approx(6300)
    assert span.energy.flags == (
        "counter_j: 4.8% of the span is not covered, taken at the mean",
        "integrated_j: 4.8% of the span is not covered, taken at the mean",
    )


def test_a_window_without_a_sample() -> None:
    told = summarise([start(), described(), *steady(30, 300.0)], (50.0, 70.0))
    span = gpu_of(told)
    assert (span.samples, span.coverage, span.power_mean_w) == (0, 0.0, None)
    assert span.reasons["power_mean_w"] == "the span holds no sample of the GPU"
    assert span.energy.joules is None
    assert told.window is not None
    assert told.window.energy is not None
    assert told.window.energy.reasons["counter_j"].startswith("GPU GPU-a: there are no two samples")


def test_a_driver_that_is_loaded_anew() -> None:
    events = steady(30, 300.0)
    for event in events[15:]:
        event["energy_j"] -= 1e6
    energy = gpu_of(summarise([start(), described(), *events], (5.0, 25.0))).energy
    assert energy.counter_j is None
    assert energy.joules == pytest.approx(6000)
    assert energy.reasons["counter_j"] == "the counter fell: the driver was loaded anew"


def test_what_is_refused_is_null_with_the_reason() -> None:
    events = [polled(float(m), power_w=300.0) for m in range(30)]
    told = summarise([start(), described(energy_j="Not Supported", temperature_c="No"), *events], (5.0, 25.0))
    span = gpu_of(told)
    assert (span.energy.counter_j, span.energy.reasons["counter_j"]) == (None, "Not Supported")
    assert (span.temperature_peak_c, span.reasons["temperature_peak_c"]) == (None, "No")
    nulls = {name for name in vars(span) if getattr(span, name) is None}
    assert nulls == set(span.reasons)


def test_each_whole_gpu_counts_once() -> None:
    known = [described("MIG-1", "GPU-a"), described("MIG-2", "GPU-a"), described("GPU-b")]
    events = [event for uuid in ("MIG-1", "MIG-2", "GPU-b") for event in steady(20, 100.0, uuid=uuid)]
    told = summarise([start(), *known, *events], (0.0, 20.0))
    assert told.window is not None
    assert told.window.energy is not None
    assert told.window.energy.counter_j == pytest.approx(4000)
    assert told.window.energy.flags == ("the figures of MIG devices are of whole GPUs, other jobs' share included",)
    assert [gpu.shared for gpu in told.gpus] == [True, True, False]


def test_the_energy_of_a_job_is_unknown_with_that_of_one_gpu() -> None:
    unread = described(OTHER) | {"reason": "NVML: Not Found"}
    told = summarise([start(), described(), unread, *steady(20, 100.0)], (0.0, 20.0))
    assert told.window is not None
    assert told.window.energy is not None
    assert told.window.energy.joules is None
    assert told.window.energy.reasons["counter_j"] == "GPU GPU-b: NVML: Not Found"


def test_means_peaks_and_the_start() -> None:
    events = [
        polled(
            float(m),
            utilization_percent=100 if m >= 10 else 0,
            memory_used_bytes=m * 10,
            sm_clock_mhz=1000 + m,
            temperature_c=40 + m,
            throttle_reasons=["sw_power_cap", "idle"] if 10 <= m < 15 else ["idle"],
            throttled_power_s=float(min(max(m - 10, 0), 5)),
            pcie_tx_bytes=m * 7,
        )
        for m in range(21)
    ]
    told = summarise([start(), described(), *events], (10.0, 20.0))
    span = gpu_of(told)
    assert (span.utilization_mean_percent, span.memory_used_mean_bytes, span.memory_used_peak_bytes) == (100, 150, 200)
    assert (span.temperature_mean_c, span.temperature_peak_c, span.sm_clock_mean_mhz) == (55, 60, 1015)
    assert span.throttled_share == pytest.approx(0.45)
    assert span.throttled_power_s == 5.0
    assert span.pcie_tx_bytes == pytest.approx(70)
    assert (told.gpus[0].start_temperature_c, told.gpus[0].start_sm_clock_mhz) == (40, 1000)


@pytest.mark.parametrize(
    ("processes", "contended", "pids"),
    [
        pytest.param([[]], False, (), id="nobody"),
        pytest.param([[[7, 1, True]]], False, (), id="own"),
        pytest.param([[[7, 1, True], [8, None, False]], [[8, 1, False], [9, 1, False]]], True, (8, 9), id="foreign"),
        pytest.param([None], None, (), id="not-told"),
        pytest.param([[[7, 1, None]]], None, (), id="a-containers"),
        pytest.param([[[7, 1, True]], [[6, 1, None]]], False, (), id="one-that-ended"),
        pytest.param([[], [[6, 1, None]], [[6, 1, None]]], None, (), id="one-that-is-hidden"),
    ],
)
def test_foreign_processes(processes: list[Any], contended: bool | None, pids: tuple[int, ...]) -> None:
    events = [polled(float(m), processes=found) for m, found in enumerate(processes)]
    told = summarise([start(), described(), *events])
    assert (told.contended, told.gpus[0].contended, told.gpus[0].foreign_pids) == (contended, contended, pids)


def test_xids_losses_and_stalls() -> None:
    events = [
        {"e": "xid", "m": 1.0, "uuid": UUID, "xid": 79},
        {"e": "gpu_lost", "m": 2.0, "uuid": UUID, "reason": "GPU is lost"},
        {"e": "gpu_stalled", "m": 3.0, "uuid": OTHER, "call": "power", "seconds": 6.0},
        {"e": "xid", "m": 4.0, "uuid": None, "xid": 31},
    ]
    one, other = summarise([start(), described(), described(OTHER), *events]).gpus
    assert (one.xids, one.lost, one.stalls) == ((79, 31), "GPU is lost", 0)
    assert (other.xids, other.lost, other.stalls) == ((31,), None, 1)


def test_the_host() -> None:
    def line(m: int) -> Event:
        tree = {"processes": 3, "rss_bytes": 100 * m, "pss_bytes": None, "cpu_s": 1.5 * m, "read_bytes": 10 * m}
        host = {"cpu_percent": 50.0, "memory_available_bytes": 1000 - m, "cpu_energy_j": 20.0 * m}
        host |= {"memory_pressure_s": 7.0 * m, "cpu_pressure_s": 0.5 * m}
        cgroup = {"memory_bytes": 5 * m, "cpu_pressure_s": 0.25 * m, "cpu_throttled_s": 0.1 * m}
        sampler = {"busy_fraction": 0.02 if m == 3 else 0.01}
        return {"e": "sample", "m": float(m), "tree": tree, "host": host, "cgroup": cgroup, "sampler": sampler}

    told = summarise([start(), *map(line, range(21))], (10.0, 20.0))
    assert told.window is not None
    host = told.window.host
    assert host is not None
    assert (host.samples, host.coverage, host.cpu_mean_cores, host.host_cpu_mean_percent) == (11, 1.0, 1.5, 50.0)
    assert host.cpu_s == 15.0
    assert (host.rss_mean_bytes, host.rss_peak_bytes, host.read_bytes) == (1500, 2000, 100)
    assert (host.memory_available_least_bytes, host.cgroup_memory_peak_bytes) == (980, 100)
    assert (host.memory_pressure_s, host.cpu_pressure_s) == (70.0, 2.5)  # the machine's, the group's
    assert host.cpu_throttled_s == pytest.approx(1.0)
    assert host.cpu_energy_j == 200.0
    assert host.pss_peak_bytes is None
    nulls = {name for name in vars(host) if getattr(host, name) is None}
    assert nulls == set(host.reasons)
    assert (told.sampler_busy_peak, told.gpus, told.contended) == (0.02, (), None)
    assert (told.memory_limit_bytes, told.cpu_limit, told.cgroup_version) == (4096, 1.5, 2)
    assert told.job.energy is None
    assert told.job.reasons["energy"] == "the job had no GPU"


def test_gaps_of_the_sampler() -> None:
    gap = {"e": "gap", "m": 9.0, "from_m": 5.0, "seconds": 4.0}
    told = summarise([start(), sampled(1.0), gap, sampled(9.0), gap | {"seconds": 2.5}])
    assert (told.gaps, told.gap_s) == (2, 6.5)


def test_what_counts_from_the_samplers_start_does_not_fall() -> None:
    lines = [sampled(float(m)) | {"host": {"cpu_energy_j": 10.0 * m}} for m in range(5)]
    anew = [sampled(m + 9.0) | {"host": {"cpu_energy_j": 10.0 * m}} for m in range(5)]
    host = summarise([start(), *lines, start(), *anew]).job.host
    assert host is not None
    assert host.cpu_energy_j == 80.0


def test_nothing_at_all_and_odd_lines() -> None:
    odd: list[Event] = [
        {"e": "sample"},
        {"e": "gpu_sample", "uuid": UUID},
        {"e": "gpu_sample", "m": 1.0, "uuid": UUID, "processes": [[1]]},
        {"e": "start", "interval_s": "x"},
        {"e": "gap"},
        {"e": "of another version", "m": 1.0},
        {},
    ]
    for events in ([], odd):
        told = summarise(events)
        assert (told.window, told.contended, told.gaps) == (None, None, 0)


def test_figures_outlive_json() -> None:
    """The record is JSON."""
    told = summarise([start(), described(), *steady(30, 300.0), sampled(1.0)], (5.0, 25.0), window_tokens=10)
    adapter = TypeAdapter(Telemetry)
    assert adapter.validate_json(adapter.dump_json(told)) == told


def test_joules_per_million_tokens() -> None:
    assert joules_per_million(500.0, 2_000_000) == 250.0
    assert joules_per_million(None, 5) is joules_per_million(5.0, None) is joules_per_million(5.0, 0) is None


def test_what_may_grow_without_end_is_cut() -> None:
    events = [polled(float(m), processes=[[m, None, False]]) for m in range(500)]
    events += [{"e": "xid", "m": 1.0, "uuid": UUID, "xid": 63} for _ in range(500)]
    [gpu] = summarise([start(), described(), *events]).gpus
    assert (gpu.foreign_pids, len(gpu.xids)) == (tuple(range(20)), 100)


def test_means_over_what_lies_between_two_polls() -> None:
    """80 % over the second before m = 6, which is half in the window; the poll at m = 8 spans two seconds."""
    busy = {5.0: (10, 1.0), 6.0: (80, 1.0), 7.0: (None, None), 8.0: (20, 2.0)}
    events = [polled(m, sm_active_percent=share, gpm_s=seconds) for m, (share, seconds) in busy.items()]
    span = gpu_of(summarise([start(), described(tensor_active_percent="Not Supported"), *events], (5.5, 8.0)))
    assert span.sm_active_mean_percent == pytest.approx((80 * 0.5 + 20 * 2) / 2.5)
    assert (span.tensor_active_mean_percent, span.reasons["tensor_active_mean_percent"]) == (None, "Not Supported")
    assert span.reasons["memory_bandwidth_mean_percent"] == "the span holds too few samples of it"


def test_all_gpus_together() -> None:
    def line(m: int, uuid: str, share: int) -> Event:
        reasons = ["sw_thermal"] if uuid == OTHER else []
        fields = {"memory_used_bytes": share * 10, "pcie_tx_bytes": m * share, "throttle_reasons": reasons}
        return polled(float(m), uuid, utilization_percent=share, power_w=2.0 * share, temperature_c=share, **fields)

    events = [line(m, uuid, share) for m in range(21) for uuid, share in ((UUID, 40), (OTHER, 60))]
    told = summarise([start(), described(), described(OTHER, ecc_uncorrected="No"), *events], (0.0, 20.0))
    assert told.window is not None
    together = told.window.gpus
    assert together is not None
    assert (together.gpus, together.samples, together.coverage) == (2, 21, 1.0)
    assert (together.utilization_mean_percent, together.power_mean_w, together.temperature_peak_c) == (50, 200, 60)
    assert (together.memory_used_mean_bytes, together.memory_used_peak_bytes) == (1000, 600)
    assert (together.throttled_share, together.pcie_tx_bytes) == (1.0, 2000)
    assert together.reasons["ecc_uncorrected"] == "GPU GPU-a: the span holds too few samples of it"
    assert {name for name in vars(together) if getattr(together, name) is None} == set(together.reasons)


def test_a_figure_of_all_gpus_is_unknown_with_that_of_one() -> None:
    unread = described(OTHER) | {"reason": "NVML: Not Found"}
    together = summarise([start(), described(), unread, *steady(20, 100.0)], (0.0, 20.0)).job.gpus
    assert together is not None
    assert (together.samples, together.coverage, together.power_mean_w) == (0, 0.0, None)
    assert together.reasons["power_mean_w"] == "GPU GPU-b: NVML: Not Found"


def test_mig_devices_of_one_gpu_draw_its_power_once() -> None:
    known = [described("MIG-1", "GPU-a"), described("MIG-2", "GPU-a")]
    events = [event | {"memory_used_bytes": 5} for uuid in ("MIG-1", "MIG-2") for event in steady(20, 100.0, uuid=uuid)]
    together = summarise([start(), *known, *events]).job.gpus
    assert together is not None
    assert (together.gpus, together.power_mean_w, together.memory_used_mean_bytes) == (2, 100, 10)


@pytest.mark.parametrize(
    ("known", "ranks", "joined"),
    [
        pytest.param([described()], {"GPU-a": [1, 0]}, [(0, 1)], id="several-on-one"),
        pytest.param([described(), described(OTHER)], {"GPU-b": [0]}, [(), (0,)], id="by-uuid"),
        pytest.param([described("MIG-1", "GPU-a")], {"GPU-a": [0]}, [(0,)], id="the-whole-gpus-uuid"),
        pytest.param([described("MIG-1", "GPU-a")], {"GPU-1": [0]}, [(0,)], id="a-mig-uuid-as-torch-writes-it"),
        pytest.param([described("MIG-1", "GPU-a"), described("MIG-2", "GPU-a")], {"GPU-a": [0]}, [(), ()], id="which"),
    ],
)
def test_ranks_are_joined_to_gpus(known: list[Event], ranks: dict[str, list[int]], joined: list[Any]) -> None:
    reading = Reading()
    for event in known:
        reading.take(event)
    assert [gpu.ranks for gpu in reading.told(ranks=ranks).gpus] == joined
