"""The mistakes that benchmarks of training are known to make, one by one, and the tests that hold each of them."""

from importlib import import_module

import pytest

from harness.classify.evidence import JobEvidence
from harness.classify.verdict import judge
from harness.journal import Event
from harness.record import Kind
from tests.unit.journals import T0, error, event, rank, step, tokens
from tests.unit.metrics.recorded import BLOCK, HEAD, journal, measure

HERE = "unit.metrics.test_traps"
# What goes wrong -> modules below `tests`, and in each the tests that it would fail.
TRAPS: dict[str, dict[str, list[str]]] = {
    "a card's name is found within another's: L4 in L40S, H20 in H200, A10 in A100": {
        "unit.test_peaks": ["test_known_cards", "test_what_is_not_known_is_not_guessed", "test_no_name_fits_two_rows"]
    },
    "a sparse peak is taken for the dense one": {"unit.test_peaks": ["test_known_cards"]},
    "an MI250X is two devices": {"unit.test_peaks": ["test_known_cards"]},
    "padding counts as work": {
        "unit.metrics.test_work": ["test_rates_of_one_rank", "test_padding_is_hardware_work_alone"],
        "unit.test_flops": ["test_trap_padding_is_no_work_of_the_model"],
        "acceptance.test_tokens": ["test_every_token_is_counted_once", "test_padding_is_no_work"],
    },
    "accumulated micro-batches are missed": {
        "unit.metrics.test_work": ["test_rates_of_one_rank"],
        "acceptance.test_tokens": ["test_every_token_is_counted_once"],
    },
    "ranks are missed, counted twice, or averaged": {
        "unit.metrics.test_work": ["test_trap_world_size_missed_or_doubled", "test_ranks_that_share_data_count_once"],
        "acceptance.test_tokens": ["test_every_token_is_counted_once"],
    },
    "the first step, which compiles, is in the mean": {
        "unit.metrics.test_steady": ["test_trap_first_step_in_the_mean"],
        "unit.metrics.test_measured": ["test_the_first_steps_do_not_count"],
    },
    "all work of the window is divided by the time of one step": {
        "unit.metrics.test_work": ["test_trap_total_volume_over_mean_step"]
    },
    "a mean of ratios stands for a ratio of sums": {"unit.metrics.test_work": ["test_trap_mean_of_ratios"]},
    "LoRA counts as full fine-tuning, at 6 FLOPs a parameter": {
        "unit.test_flops": ["test_trap_lora_at_6n", "test_llama_7b_as_counted_on_the_real_modules"],
        "unit.metrics.test_work": ["test_flops_and_mfu"],
    },
    "a packed row counts as one document": {
        "unit.test_flops": ["test_trap_packed_data_at_the_square_of_the_sum"],
        "unit.metrics.test_work": ["test_trap_packed_data_at_the_square_of_the_sum"],
        HERE: ["test_documents_of_uneven_lengths_attend_each_to_itself"],
    },
    "an MFU is given for FP8, by the peak of another type": {
        "unit.metrics.test_work": ["test_no_mfu_without_a_peak_that_can_be"],
        "unit.test_peaks": ["test_what_is_not_known_is_not_guessed"],
    },
    "the monitor slows the job": {
        "acceptance.test_bare_loop": ["test_the_figure_is_the_programs_own"],
        "unit.test_telemetry": ["test_the_host"],  # what the sampler costs stands in the record
    },
    "a peak of memory while loading counts as training's": {
        "unit.metrics.test_sanity": ["test_memory_by_phase"],
        "unit.probe.test_memory": ["test_trap_a_peak_of_loading_is_not_that_of_training"],
    },
    "gradients of 0 are fast": {"unit.metrics.test_training": ["test_did_it_train"]},
    "the OOM of one rank is the others' collective time-out; NCCL's garbage sizes, and NCCL's own OOM": {
        HERE: [
            "test_the_oom_of_one_rank_is_the_cause_of_the_time_out_of_the_others",
            "test_memory_in_the_words_of_nccl",
        ]
    },
    "a device's OOM is taken for a passing error by the debugging hints in its text": {
        HERE: ["test_an_oom_with_hints_for_debugging_is_an_oom"]
    },
    "the word error in a log is a failure": {"unit.classify.test_collect": ["test_exit_0_whatever_the_log_says"]},
    "a child failed and the exit code is 0": {
        "unit.classify.test_verdict": ["test_trap_exit_code_0_with_a_failed_child"]
    },
    "a gate that measured nothing is green": {
        "unit.reports.test_summary": ["test_exit_code"],
        "unit.classify.test_verdict": ["test_exit_0_without_a_step_is_no_success"],
    },
    "the OOM that a neighbour on the GPU has caused is the scenario's": {
        HERE: ["test_the_oom_of_a_neighbour_is_not_the_scenarios"],
        "unit.test_telemetry": ["test_foreign_processes"],
    },
    "a kill for host memory says nothing": {
        "unit.classify.test_anchors": ["test_memory_kills"],
        "unit.classify.test_verdict": ["test_killed_for_memory_only_where_the_counter_says_so"],
    },
}


@pytest.mark.parametrize("trap", TRAPS)
def test_each_is_held_by_a_test(trap: str) -> None:
    for module, names in TRAPS[trap].items():
        held = import_module(f"tests.{module}")
        assert [name for name in names if not callable(getattr(held, name, None))] == [], module


def test_all_22_stand_here() -> None:
    assert len(TRAPS) == 22


def test_documents_of_uneven_lengths_attend_each_to_itself() -> None:
    """The work of two rows is that of four documents: neither their sum squared, nor four of the mean length."""
    lengths = (100, 20, 60, 76)
    squares = sum(length**2 for length in lengths)
    uneven = measure(journal(count={"padded": 256, "non_pad": 256, "non_pad_squares": squares}))
    even = measure(journal(count={"padded": 256, "non_pad": 256, "non_pad_squares": 4 * 64**2}))
    assert uneven.model_flops_per_step is not None
    assert even.model_flops_per_step is not None
    # Forward and backward, 2 operations, scores and values, 2 heads of width 4.
    assert uneven.model_flops_per_step - even.model_flops_per_step == 3 * 4 * 8 * (squares - 4 * 64**2)


def test_work_of_uneven_steps_and_ranks_is_their_sum() -> None:
    """FLOPs follow from all tokens of the window, not from one step's."""
    lengths = {number: [16 * (1 + (n + number) % 4) for n in range(1, 21)] for number in (0, 1)}

    def uneven(number: int) -> list[Event]:
        pairs = [
            (step(n), tokens(n, length, padded_squares=length**2, non_pad_squares=length**2))
            for n, length in enumerate(lengths[number], 1)
        ]
        return [each for pair in pairs for each in pair]

    measured = measure(*(journal(number, steps=0, extra=uneven(number)) for number in (0, 1)))
    token = 6 * (BLOCK + HEAD)
    work = sum(token * length + 3 * 4 * 8 * length**2 for number in (0, 1) for length in lengths[number][3:])
    assert measured.model_flops_per_step == pytest.approx(work / 17)
    assert measured.model_flops_per_s_per_device == pytest.approx(work / 1.7 / 2)


BAD = {"why": "exit", "exit_code": 1, "ended": T0 + 999}
ROOM = "GPU 0 has a total capacity of 79.25 GiB of which 1.03 GiB is free."
OOM = f"CUDA out of memory. Tried to allocate 2.15 GiB. {ROOM}"
OWN = "Including non-PyTorch memory, this process has 18.20 GiB memory in use."
TIMED_OUT = (
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000) ran for "
    "600023 milliseconds before timing out."
)
BACKEND = "torch.distributed.DistBackendError"


def judged(*errors: Event) -> tuple[Kind, int | None, bool | None]:
    """Kind, rank and whether a retry may pass, of a job whose ranks ended by these."""
    ranks = [rank(number, event("start"), error=each) for number, each in enumerate(errors)]
    verdict = judge(JobEvidence(end=BAD, ranks=ranks, world_size=len(ranks)))
    return verdict.kind, verdict.rank, verdict.transient


def test_the_oom_of_one_rank_is_the_cause_of_the_time_out_of_the_others() -> None:
    late = error(BACKEND, TIMED_OUT, t=600)
    assert judged(late, error("torch.OutOfMemoryError", OOM, t=11), late) == (Kind.GPU_OOM, 1, False)


@pytest.mark.parametrize(
    "name, message, kind",
    [
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate more than 1EB memory.", Kind.NCCL),
        (
            BACKEND,
            "NCCL error in: x.cpp:1\nFailed to CUDA malloc 2 bytes: Cuda failure 2 'out of memory'",
            Kind.GPU_OOM,
        ),
    ],
    ids=["a-desynchronised-collective", "its-own-buffers"],
)
def test_memory_in_the_words_of_nccl(name: str, message: str, kind: Kind) -> None:
    assert judged(error(name, message))[0] is kind


def test_an_oom_with_hints_for_debugging_is_an_oom() -> None:
    said = (
        "CUDA error: out of memory\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_..."
    )
    assert judged(error("torch.AcceleratorError", said, bases=["RuntimeError"])) == (Kind.GPU_OOM, 0, False)


def test_the_oom_of_a_neighbour_is_not_the_scenarios() -> None:
    """The same request would have fitted without the other process, so that a retry may help."""
    shared = f"{OOM} Process 4242 has 60.00 GiB memory in use. {OWN}"
    assert judged(error("torch.OutOfMemoryError", shared)) == (Kind.GPU_OOM, 0, None)
    alone = f"{OOM} {OWN.replace('18.20', '78.20')}"
    assert judged(error("torch.OutOfMemoryError", alone)) == (Kind.GPU_OOM, 0, False)
