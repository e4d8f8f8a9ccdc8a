"""The properties of a case."""

import xml.etree.ElementTree as ET

import pytest

from harness.record import Attempt, Kind, Lease, Record, Verdict
from harness.reports.properties import not_run, of_record, printable
from harness.telemetry import summarise
from tests.unit.reports.records import make_measurements, make_record


def test_a_case_that_ran_has_verdict_record_figures_and_labels() -> None:
    assert of_record(make_record(), "session/case/record.json") == [
        ("verdict", "none"),
        ("verdict_reason", "trained 20 steps"),
        ("case", "tiny-1proc"),
        ("record", "session/case/record.json"),
        ("non_pad_tokens_per_s_per_device", "12345.7"),
        ("step_time_median_s", "0.25"),
        ("steps_measured", "17"),
        ("host_peak_rss_bytes", "1073741824"),
        ("label.experiment", "tiny"),
        ("label.team", "a"),
    ]


def test_an_expectation_and_earlier_attempts() -> None:
    def attempt(number: int, verdict: Verdict | None) -> Attempt:
        lease = Lease(wait_s=0.0)
        return Attempt(number=number, directory=f"attempt-{number}", started=1.0, lease=lease, verdict=verdict)

    nccl = Verdict(kind=Kind.NCCL, reason="peer\x1b gone", transient=True)
    record = make_record(expected=Kind.GPU_OOM, attempts=[attempt(1, nccl), attempt(2, None), attempt(3, nccl)])
    assert of_record(record, "x")[4:7] == [
        ("expected", "gpu_oom"),
        ("attempts", "3"),
        ("retried", "attempt 1: nccl: peer gone; attempt 2: cut off"),
    ]
    once = make_record(attempts=[attempt(1, nccl)])
    assert not {"expected", "attempts", "retried"} & dict(of_record(once, "x")).keys()


def test_figures_and_flags() -> None:
    flags = {"model_disagrees": "num_hidden_layers: 32 asked for, 2 built", "drifting": "drifting: x"}
    record = make_record(measurements=make_measurements(mfu=0.4125, steady_state="drifting", flags=flags))
    told = dict(of_record(record, "x"))
    assert (told["mfu"], told["steady_state"], told["flags"]) == ("0.4125", "drifting", "drifting, model_disagrees")


def test_the_conditions_of_its_gpus() -> None:
    events: list[dict[str, object]] = [{"e": "start", "m": 0.0, "interval_s": 1.0}]
    for m in range(21):
        for uuid, degrees, clock in (("GPU-a", 34, 345), ("GPU-b", 51, 1980)):
            fields = {"temperature_c": degrees + m, "sm_clock_mhz": clock, "energy_j": 100.0 * m, "power_w": 100.0}
            reasons = ["sw_power_cap"] if uuid == "GPU-b" and m >= 10 else []
            processes = [[77, None, False]] if uuid == "GPU-b" and m == 3 else []
            line = {"e": "gpu_sample", "m": float(m), "uuid": uuid, "throttle_reasons": reasons, "processes": processes}
            events.append(line | fields)
    telemetry = summarise(events, (0.0, 20.0), window_tokens=2_000_000)
    told = dict(of_record(make_record(telemetry=telemetry), "x"))
    names = ["contended", "foreign_pids", "throttled_share", "gpu_start_temperature_c", "gpu_start_sm_clock_mhz"]
    assert [told[name] for name in names] == ["true", "77", "0.525", "51", "345"]
    assert told["joules_per_million_tokens"] == "2000"
    alone = [event for event in events if event.get("uuid") != "GPU-b"]
    told = dict(of_record(make_record(telemetry=summarise(alone)), "x"))
    assert (told["contended"], told["throttled_share"]) == ("false", "0")
    assert not {"foreign_pids", "joules_per_million_tokens"} & set(told)


def test_a_record_without_measurements_or_verdict() -> None:
    record = make_record(measurements=None, verdict=None)
    names = [name for name, _ in of_record(record, "x")]
    assert names == ["verdict", "verdict_reason", "case", "record", "label.experiment", "label.team"]
    assert dict(of_record(record, "x"))["verdict"] == "unknown"


def test_a_case_that_was_not_launched() -> None:
    assert not_run("needs 8 GPUs", {"b": "2", "a": "1"}) == [
        ("verdict", "not_run"),
        ("verdict_reason", "needs 8 GPUs"),
        ("label.a", "1"),
        ("label.b", "2"),
    ]


def test_properties_fit_xml_whatever_a_program_said() -> None:
    record: Record = make_record(verdict=Verdict(kind=Kind.USER_ERROR, reason="".join(map(chr, range(0x110)))))
    for _, value in of_record(record, "x"):
        element = ET.Element("property", value=value)
        assert ET.fromstring(ET.tostring(element)).get("value") is not None


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a\x1b[31mred\x1b[0m", "ared"),
        ("a\r\nb\rc", "a\nb\nc"),
        ("tab\tnew\nline", "tab\tnew\nline"),
        ("\x00\x07\x08\x7f\x9b\ud800\ufffe", ""),
        ("é 漢 \U0001f600", "é 漢 \U0001f600"),
    ],
)
def test_printable(text: str, expected: str) -> None:
    assert printable(text) == expected
