"""Memory, phases, what the program says of itself, and figures that cannot be."""

from typing import Any

import pytest

from harness import metrics
from harness.probe.memory import no_memory
from harness.record import Measurements
from tests.unit.journals import T0, event, rank
from tests.unit.metrics.recorded import journal, measure

GIB = 2**30


def peaks(phase: str, allocated: int, reserved: int, **fields: Any) -> dict[str, Any]:
    return event(
        "memory",
        phase=phase,
        allocated_peak_bytes=allocated,
        active_peak_bytes=allocated + 1,
        reserved_peak_bytes=reserved,
        total_bytes=80 * GIB,
        alloc_retries=0,
        ooms=0,
        since="phase",
        reason=None,
        **fields,
    )


@pytest.mark.parametrize(
    "loading, steady",
    [
        pytest.param(2 * GIB, 8 * GIB, id="lora"),
        pytest.param(4 * GIB, 40 * GIB, id="full"),
        # Trap: a peak of loading (a copy on the way to the device) is not the training's.
        pytest.param(20 * GIB, 6 * GIB, id="trap-peak-not-reset-after-load"),
    ],
)
def test_memory_by_phase(loading: int, steady: int) -> None:
    events = [peaks("model_load", loading, loading + GIB), peaks("steady", steady, steady + GIB)]
    measured = measure(journal(extra=events))
    assert measured.memory[0].allocated_peak_bytes == {"model_load": loading, "steady": steady}
    assert measured.memory[0].reserved_peak_bytes["steady"] == steady + GIB
    assert (measured.memory[0].covers, measured.memory[0].total_bytes) == ("phase", 80 * GIB)
    assert measured.peak_allocated_bytes == max(loading, steady)
    assert measured.peak_active_bytes == max(loading, steady) + 1


@pytest.mark.parametrize("ranks", [2, 8])
def test_the_rank_that_holds_most_is_named(ranks: int) -> None:
    measured = measure(*(journal(n, extra=[peaks("steady", (n + 1) % ranks, 9)]) for n in range(ranks)))
    assert (measured.largest_memory_rank, measured.peak_allocated_bytes) == (ranks - 2, ranks - 1)


def test_a_phase_that_comes_again_keeps_its_larger_peak() -> None:
    measured = measure(journal(extra=[peaks("steady", 5, 7), peaks("teardown", 1, 7), peaks("steady", 3, 9)]))
    assert measured.memory[0].allocated_peak_bytes == {"steady": 5, "teardown": 1}
    assert measured.memory[0].reserved_peak_bytes == {"steady": 9, "teardown": 7}


def test_retries_and_ooms_of_all_ranks_add_up_and_are_flagged() -> None:
    retried = [peaks("steady", 5, 7) | {"alloc_retries": 2, "ooms": 1}]
    measured = measure(journal(0, extra=retried), journal(1, extra=retried))
    assert (measured.alloc_retries, measured.allocator_ooms) == (4, 2)
    assert "4 times" in measured.flags["alloc_retries"]


@pytest.mark.parametrize("counts, flagged", [((3, 3, 3, 3), None), ((3, 3, 5, 5), "2 times"), ((0, 1, 1, 4), None)])
def test_retries_before_the_steps_and_after_cost_them_nothing(counts: tuple[int, ...], flagged: str | None) -> None:
    """Torch counts them from the start of the process."""
    phases = zip(("model_load", "first_step", "steady", "teardown"), counts, strict=True)
    measured = measure(journal(extra=[peaks(phase, 5, 7) | {"alloc_retries": count} for phase, count in phases]))
    assert measured.alloc_retries == counts[-1]
    assert (flagged or "") in measured.flags.get("alloc_retries", "")
    assert ("alloc_retries" in measured.flags) == (flagged is not None)


def test_memory_on_cpu_is_null_and_says_why() -> None:
    told: dict[str, Any] = no_memory("teardown")
    measured = measure(journal(extra=[event("memory", **told)]))
    for name in ("peak_allocated_bytes", "peak_active_bytes", "peak_reserved_bytes", "alloc_retries", "allocator_ooms"):
        assert getattr(measured, name) is None
        assert measured.reasons[name] == "the rank used no CUDA device"
    assert measured.memory[0].reason == "the rank used no CUDA device"


def phases(*events: dict[str, Any], wall: metrics.Wall) -> Measurements:
    measured = metrics.measure([rank(0, *events)], [], metrics.Job(wall))
    assert measured is not None
    return measured


MARKS = [
    event("start", 3.0, process_started=T0 + 2.5),
    event("phase", 3.0, name="import"),
    event("phase", 9.0, name="model_load"),
    event("phase", 12.0, name="data"),
    event("phase", 13.0, name="first_step"),
    event("phase", 15.0, name="steady"),
    event("phase", 30.0, name="save"),
    event("phase", 32.0, name="teardown"),
    event("end", 33.0, exit_code=0),
]
WALL = metrics.Wall(started=T0, ended=T0 + 34.0, lease_wait_s=4.0)


def test_phases_add_up_to_the_wall_time() -> None:
    measured = phases(*MARKS, wall=WALL)
    assert measured.wall_s == 38.0
    assert measured.phases_s == pytest.approx(
        {
            "lease": 4.0,
            "launch": 2.5,
            "import": 6.5,
            "model_load": 3.0,
            "data": 1.0,
            "first_step": 2.0,
            "steady": 15.0,
            "save": 2.0,
            "teardown": 1.0,
            "shutdown": 1.0,
            "other": 0.0,
        }
    )
    assert sum(seconds or 0 for seconds in measured.phases_s.values()) == pytest.approx(measured.wall_s, rel=0.02)


@pytest.mark.parametrize(
    "command, queue, launch",
    [pytest.param(1.0, 1.0, 1.5, id="torchrun"), pytest.param(2.51, 2.5, 0.0, id="a-single-rank")],
)
def test_an_engine_holds_a_job_before_it_starts(command: float, queue: float, launch: float) -> None:
    wall = metrics.Wall(started=T0, ended=T0 + 34.0, lease_wait_s=4.0, command_started=T0 + command)
    measured = phases(*MARKS, wall=wall)
    assert measured.phases_s["queue"] == pytest.approx(queue)
    assert measured.phases_s["launch"] == pytest.approx(launch)
    assert sum(seconds or 0 for seconds in measured.phases_s.values()) == pytest.approx(measured.wall_s)


def test_a_negative_phase_is_null_with_both_numbers() -> None:
    late = [event("start", 3.0, process_started=T0 - 60.0), *MARKS[1:]]
    measured = phases(*late, wall=WALL)
    assert (measured.phases_s["launch"], measured.phases_s["other"]) == (None, None)
    assert measured.reasons["phases_s.launch"] == "would be -60.000 s: from 1000000.000 to 999940.000"
    assert measured.reasons["phases_s.other"] == "another phase is not known"


def test_a_clock_that_is_set_back_does_not_reach_the_phases_within_a_process() -> None:
    set_back = [*MARKS[:5], *({**mark, "t": mark["t"] - 10} for mark in MARKS[5:])]
    measured = phases(*set_back, wall=WALL)
    assert measured.phases_s["first_step"] == pytest.approx(2.0)


def test_phases_that_take_more_than_the_attempt() -> None:
    measured = phases(*MARKS, wall=metrics.Wall(started=T0, ended=T0 + 20.0, lease_wait_s=0.0))
    assert (measured.phases_s["shutdown"], measured.phases_s["other"]) == (None, None)
    assert measured.reasons["phases_s.shutdown"].startswith("would be -13.000 s: from ")


def test_phases_that_overlap() -> None:
    """The monotonic clock of the rank says 15 s, the wall clock 5."""
    stepped = [*MARKS[:5], *({**mark, "t": mark["t"] - 10} for mark in MARKS[5:])]
    measured = phases(*stepped, wall=metrics.Wall(started=T0, ended=T0 + 24.0, lease_wait_s=0.0))
    assert measured.phases_s["other"] is None
    assert measured.reasons["phases_s.other"] == "would be -10.000 s: the phases take 34.000 s of 24.000"


def test_a_rank_that_was_killed_has_no_shutdown() -> None:
    measured = phases(*MARKS[:-1], wall=WALL)
    assert "shutdown" not in measured.phases_s
    assert measured.phases_s["teardown"] == pytest.approx(2.0)
    assert measured.phases_s["other"] == pytest.approx(0.0)


def test_what_the_program_says_of_itself_stands_beside_ours() -> None:
    logs = {"train_samples_per_second": 10.0, "train_tokens_per_second": 640.0, "num_tokens": 5120.0, "loss": 1.0}
    measured = measure(journal(extra=[event("log", step=20, logs=logs | {"total_flos": 1e9})]))
    told = {each.name: [each.value, each.ours, each.ratio] for each in measured.reported}
    assert told["train_samples_per_second"] == pytest.approx([10, 20, 0.5])
    assert told["train_tokens_per_second"] == pytest.approx([640, 1280, 0.5])
    assert told["num_tokens"] == [5120, 2560, 2]  # counted twice, say
    assert measured.model_flops_per_step is not None
    assert told["total_flos"][1] == pytest.approx(20 * measured.model_flops_per_step)
    assert all(each.why for each in measured.reported)


def test_what_the_program_says_without_ours() -> None:
    measured = measure(
        journal(count={"padded": None}, extra=[event("log", step=20, logs={"num_input_tokens_seen": 5})])
    )
    assert [(each.value, each.ours, each.ratio) for each in measured.reported] == [(5.0, None, None)]


DATA = {"data": {"samples": 20, "sequence_length": 64}}


@pytest.mark.parametrize("epoch, possible", [(2.0, True), (0.5, False), (None, True)])
def test_more_tokens_than_the_data_holds(epoch: float | None, possible: bool) -> None:
    recorded = journal()
    for each in recorded.of("step"):
        each["epoch"] = None if epoch is None else epoch * each["step"] / 20
    measured = measure(recorded, scenario=DATA)
    assert (measured.non_pad_tokens_per_s is not None) == possible
    assert (measured.mfu is not None) == possible
    assert measured.tokens["non_pad"] == 2560
    if not possible:
        why = "2560 tokens were counted, and the data holds 768"
        assert measured.reasons["non_pad_tokens_per_s"] == f"would be 1280: {why}"
        assert measured.reasons["mfu"] == why


@pytest.mark.parametrize("kind", ["script", "fms"])
def test_a_program_that_adds_tokens_to_the_data_keeps_its_rates(kind: str) -> None:
    recorded = journal()
    for each in recorded.of("step"):
        each["epoch"] = 0.5 * each["step"] / 20
    assert measure(recorded, scenario={**DATA, "trainer": {"kind": kind}}).non_pad_tokens_per_s is not None


def test_more_tokens_than_slots() -> None:
    measured = measure(journal(count={"non_pad": 200}))
    assert measured.non_pad_tokens_per_s is None
    assert measured.reasons["non_pad_tokens_per_s"] == "would be 2000: 4000 tokens were counted in 2560 slots"
    assert measured.padded_tokens_per_s == pytest.approx(1280)


ASKED = {"model": {"shape": {"num_hidden_layers": 1, "hidden_size": 8, "vocab_size": 10}, "dtype": "bfloat16"}}


@pytest.mark.parametrize(
    "shape, kind, said",
    [
        ({}, "script", None),
        ({"layers": 2}, "script", "num_hidden_layers: 1 asked for, 2 built"),
        ({"hidden": None}, "script", None),
        ({}, "hf", "dtype: bfloat16 asked for, float32 built"),
    ],
    ids=["as-asked", "layers", "config-does-not-say", "dtype"],
)
def test_a_model_that_is_not_the_scenarios(shape: dict[str, Any], kind: str, said: str | None) -> None:
    recorded = journal(shape=shape)
    recorded.of("model")[0]["dtype"] = "float32"
    measured = measure(recorded, scenario=ASKED | {"trainer": {"kind": kind}})
    assert measured.flags.get("model_disagrees") == said
    assert measured.built is not None
    assert (measured.built.heads, measured.built.dtype) == (2, "float32")


@pytest.mark.parametrize(
    "asked, said",
    [
        ({}, None),
        ({"gpus": None, "processes": 1}, None),
        ({"gpus": 2, "processes": None}, "2 ranks were asked for, and 1 were seen"),
        ({"gpus": None, "processes": 4}, "4 ranks were asked for, and 1 were seen"),
    ],
)
def test_another_number_of_ranks(asked: dict[str, Any], said: str | None) -> None:
    assert measure(journal(), scenario=asked).flags.get("ranks_differ") == said


def test_step_times_that_rise_are_flagged() -> None:
    recorded = journal()
    for each in recorded.of("step"):
        each["seconds"] *= 1 + each["step"] / 40
    measured = measure(recorded)
    assert measured.steady_state == "drifting"
    assert measured.flags["drifting"].startswith("drifting: median of the first half")


def test_steps_left_out_for_logging_make_no_late_cut() -> None:
    """17 of 40 steps are cut off, and half of the others log: the cut is no later for it."""
    recorded = journal(steps=40)
    for each in recorded.of("step"):
        number = each["step"]
        each["seconds"] = 0.3 if number <= 17 else 0.1
        each["overhead"] = ["log"] if number % 2 else []
    measured = measure(recorded)
    assert (measured.first_cut, measured.steps_measured) == (17, 12)
    assert measured.steady_state == "steady"


def test_retries_of_a_process_that_another_followed_are_not_taken_off() -> None:
    counted = [event("memory", phase="steady", alloc_retries=5), event("memory", phase="steady", alloc_retries=2)]
    assert "7 times" in measure(journal(extra=counted)).flags["alloc_retries"]
