"""Throughput, FLOPs and MFU of recorded jobs, worked out by hand."""

from typing import Any

import pytest

from harness.journal import Event
from harness.record import Measurements
from tests.unit.journals import event, rank, step, tokens
from tests.unit.metrics.recorded import BLOCK, CHECKPOINTED, HEAD, LORA, journal, measure

PEAK = 312e12
ATTENTION = 2 * 2 * 2 * 64**2 * 8  # forward: rows, operations, scores and values, pairs of tokens, width
FULL = 6 * 128 * (BLOCK + HEAD) + 3 * ATTENTION
RATES = ("samples_per_s", "padded_tokens_per_s", "non_pad_tokens_per_s", "trainable_tokens_per_s")


def rates(measured: Measurements) -> list[Any]:
    return [getattr(measured, name) for name in RATES]


@pytest.mark.parametrize(
    "count, expected",
    [
        pytest.param({}, [20, 1280, 1280, 1260], id="fixed-lengths"),
        pytest.param({"non_pad": 100, "trainable": 98}, [20, 1280, 1000, 980], id="trap-padding"),
        pytest.param(
            {"padded": 512, "non_pad": 512, "trainable": 504, "samples": 8, "micro_batches": 4},
            [80, 5120, 5120, 5040],
            id="trap-grad-accum-missed",
        ),
        pytest.param({"trainable": 120, "non_pad_squares": 8 * 16**2}, [20, 1280, 1280, 1200], id="packing"),
    ],
)
def test_rates_of_one_rank(count: dict[str, Any], expected: list[float]) -> None:
    measured = measure(journal(count=count))
    assert rates(measured) == pytest.approx(expected)
    assert measured.non_pad_tokens_per_s_per_device == measured.non_pad_tokens_per_s


@pytest.mark.parametrize("ranks", [2, 8])
def test_trap_world_size_missed_or_doubled(ranks: int) -> None:
    """A rate of all ranks is their sum, one of a device is the sum over their number."""
    measured = measure(*(journal(number) for number in range(ranks)))
    assert rates(measured) == pytest.approx([20 * ranks, 1280 * ranks, 1280 * ranks, 1260 * ranks])
    assert measured.non_pad_tokens_per_s_per_device == pytest.approx(1280)
    assert measured.data_ranks == ranks


def test_uneven_ranks() -> None:
    measured = measure(journal(0), journal(1, count={"non_pad": 64}), journal(2, seconds=0.2))
    assert measured.non_pad_tokens_per_s == pytest.approx((128 + 64 + 128) / 0.2)
    assert measured.slowest_rank == 2
    assert measured.rank_step_time_median_s == pytest.approx({0: 0.1, 1: 0.1, 2: 0.2})
    assert measured.step_time_median_s == pytest.approx(0.2)


def test_a_dropped_last_batch_of_one_rank() -> None:
    measured = measure(journal(0), journal(1, steps=19))
    assert measured.steps_measured == 16  # 19 steps in common, 3 cut
    assert measured.non_pad_tokens_per_s == pytest.approx(2560)
    assert measured.tokens["non_pad"] == (20 + 19) * 128
    assert measured.flags["ranks_out_of_step"] == "rank 1 took 19 steps, rank 0 took 20"


def test_a_rank_that_saw_no_step_makes_no_sum() -> None:
    """Its share of the data is not 0 tokens."""
    measured = measure(journal(0), journal(1, steps=0))
    assert (measured.non_pad_tokens_per_s, measured.tokens["padded"], measured.mfu) == (None, None, None)
    assert measured.reasons["non_pad_tokens_per_s"] == "rank 1 saw no step"
    assert measured.flags["ranks_out_of_step"] == "rank 1 took 0 steps, rank 0 took 20"


def later(number: int, *, seconds: float) -> list[Event]:
    """Steps of a second segment, whose numbers begin anew."""
    pairs = ((step(n, seconds, segment=1), tokens(n, 64, segment=1)) for n in range(1, 21))
    return [event("segment", segment=1, batch_ran=2, accumulation=1, data_rank=number), *(e for p in pairs for e in p)]


def test_steps_of_different_segments_are_not_the_same_steps() -> None:
    """Rank 1 ended before its second segment began."""
    measured = measure(journal(0, extra=later(0, seconds=9.0)), journal(1))
    assert measured.step_time_median_s == pytest.approx(0.1)
    assert measured.non_pad_tokens_per_s == pytest.approx(2560)
    assert measured.tokens["non_pad"] == 2 * 20 * 128
    assert "no_common_segment" not in measured.flags


def test_ranks_without_a_common_segment() -> None:
    measured = measure(journal(0), rank(1, *later(1, seconds=0.1)))
    assert (measured.steps_measured, measured.non_pad_tokens_per_s, measured.tokens["samples"]) == (0, None, None)
    assert measured.reasons["tokens.samples"] == "the ranks stepped in no common segment"
    assert measured.flags["no_common_segment"].startswith("the ranks stepped in no common segment")


def test_ranks_that_share_data_count_once() -> None:
    """Two groups of two, as in tensor parallelism."""
    ranks = [journal(number, segment={"data_rank": number // 2}) for number in range(4)]
    measured = measure(*ranks)
    assert measured.data_ranks == 2
    assert measured.non_pad_tokens_per_s == pytest.approx(2 * 1280)
    assert measured.non_pad_tokens_per_s_per_device == pytest.approx(2 * 1280 / 4)
    assert measured.tokens["samples"] == 2 * 40
    assert measured.model_flops_per_step == pytest.approx(2 * FULL)


def test_who_does_not_tell_of_shared_data_counts() -> None:
    measured = measure(journal(0, segment={"data_rank": None}), journal(1, segment={"data_rank": None}))
    assert measured.data_ranks is None
    assert measured.non_pad_tokens_per_s == pytest.approx(2560)


def test_trap_total_volume_over_mean_step() -> None:
    """All samples of the window over one step's time would be 17 times too much."""
    assert measure(journal()).samples_per_s == pytest.approx(2 / 0.1)


def test_trap_mean_of_ratios() -> None:
    """128 tokens in 0.1 s and 128 in 0.3 s are 640 a second, not 853."""
    events = [e for n in range(1, 21) for e in (step(n, 0.1 if n % 2 else 0.3), tokens(n, 128))]
    assert measure(rank(0, *events)).padded_tokens_per_s == pytest.approx(17 * 128 / (9 * 0.3 + 8 * 0.1))


def test_a_rank_without_a_journal_makes_no_sum() -> None:
    ranks = [journal(number, extra=[event("start", world_size=4)]) for number in range(3)]
    measured = measure(*ranks)
    assert measured.non_pad_tokens_per_s is None
    assert measured.reasons["non_pad_tokens_per_s"] == "1 of 4 ranks left no journal"


@pytest.mark.parametrize(
    "shape, model, hardware",
    [
        pytest.param({}, FULL, 6 * 128 * (BLOCK + HEAD) + 3.5 * ATTENTION, id="full"),
        pytest.param({"attention": "eager"}, FULL, FULL, id="full-eager"),
        pytest.param(
            CHECKPOINTED,
            FULL,
            6 * 128 * (BLOCK + HEAD) + 3.5 * ATTENTION + 2 * 128 * (BLOCK - 128) + ATTENTION,
            id="full-checkpointed",
        ),
        pytest.param(
            LORA,
            4 * 128 * (BLOCK + HEAD) + 6 * 128 * 64 + 3 * ATTENTION,
            4 * 128 * (BLOCK + HEAD) + 6 * 128 * 64 + 3.5 * ATTENTION,
            id="trap-lora-at-6n",
        ),
        pytest.param(
            LORA | CHECKPOINTED,
            4 * 128 * (BLOCK + HEAD) + 6 * 128 * 64 + 3 * ATTENTION,
            4 * 128 * (BLOCK + HEAD) + 6 * 128 * 64 + 4.5 * ATTENTION + 2 * 128 * (BLOCK + 64 - 128),
            id="lora-checkpointed",
        ),
    ],
)
def test_flops_and_mfu(shape: dict[str, Any], model: float, hardware: float) -> None:
    measured = measure(journal(shape=shape))
    assert measured.model_flops_per_step == pytest.approx(model)
    assert measured.hardware_flops_per_step == pytest.approx(hardware)
    assert measured.model_flops_per_s_per_device == pytest.approx(model / 0.1)
    assert measured.peak_flops_per_s == PEAK
    assert measured.mfu == pytest.approx(model / 0.1 / PEAK)
    assert measured.hfu == pytest.approx(hardware / 0.1 / PEAK)


@pytest.mark.parametrize("ranks", [2, 8])
def test_mfu_is_of_a_device(ranks: int) -> None:
    measured = measure(*(journal(number) for number in range(ranks)))
    assert measured.model_flops_per_step == pytest.approx(ranks * FULL)
    assert measured.mfu == pytest.approx(FULL / 0.1 / PEAK)


@pytest.mark.parametrize("attention, pairs", [("sdpa", 2 * 64**2), ("flash_attention_2", 2 * 50**2)])
def test_padding_is_hardware_work_alone(attention: str, pairs: int) -> None:
    count = {"non_pad": 100, "non_pad_squares": 2 * 50**2}
    measured = measure(journal(count=count, shape={"attention": attention}))
    assert measured.model_flops_per_step == pytest.approx(6 * 100 * (BLOCK + HEAD) + 3 * 4 * 2 * 50**2 * 8)
    assert measured.hardware_flops_per_step == pytest.approx(6 * 128 * (BLOCK + HEAD) + 3.5 * 4 * pairs * 8)


def test_trap_packed_data_at_the_square_of_the_sum() -> None:
    """Eight documents of 16 tokens."""
    measured = measure(journal(count={"non_pad_squares": 8 * 16**2}))
    assert measured.model_flops_per_step == pytest.approx(6 * 128 * (BLOCK + HEAD) + 3 * 4 * 8 * 16**2 * 8)


@pytest.mark.parametrize(
    "device, shape, scenario, why",
    [
        ("NVIDIA A10G", {}, {}, "'NVIDIA A10G' are not known"),
        ("NVIDIA H100 80GB HBM3", {"compute_dtype": "float8"}, {}, "in float8 are not known"),
        (None, {}, {}, "of a CPU are not known"),
        ("NVIDIA A100-SXM4-80GB", {}, {"peak_flops": 1e4}, "at most (the scenario's measure"),
    ],
    ids=["unknown-card", "trap-mfu-with-fp8", "cpu", "over-1"],
)
def test_no_mfu_without_a_peak_that_can_be(
    device: str | None, shape: dict[str, Any], scenario: dict[str, Any], why: str
) -> None:
    measured = measure(journal(device=device, shape=shape), scenario=scenario)
    assert (measured.mfu, measured.hfu) == (None, None)
    assert why in measured.reasons["mfu"]
    assert measured.model_flops_per_s_per_device is not None


def test_an_mfu_over_1_keeps_both_numbers() -> None:
    why = measure(journal(), scenario={"peak_flops": 1e6}).reasons["mfu"]
    assert why.startswith(f"would be {FULL / 0.1 / 1e6:.3g}: {FULL / 0.1:.4g} FLOP/s a device, 1e+06 at most")


def test_an_hfu_over_1_makes_the_mfu_of_the_same_peak_null() -> None:
    """Padding may hide a wrong peak from the MFU alone."""
    measured = measure(journal(count={"non_pad": 12, "non_pad_squares": 72}), scenario={"peak_flops": FULL / 0.1 / 2})
    assert (measured.mfu, measured.hfu) == (None, None)
    assert measured.reasons["mfu"] == f"hfu {measured.reasons['hfu']}"
    assert measured.reasons["hfu"].startswith("would be 2.")


def test_the_scenarios_peak_wins() -> None:
    measured = measure(journal(device="NVIDIA A10G"), scenario={"peak_flops": 70e12})
    assert measured.mfu == pytest.approx(FULL / 0.1 / 70e12)
    assert measured.peak_source == "the scenario's measure: {peak_flops: ...}"


def test_ranks_on_different_cards_have_no_common_peak() -> None:
    measured = measure(journal(0), journal(1, device="NVIDIA L4"))
    assert measured.mfu is None
    assert measured.reasons["mfu"] == "the ranks run on different devices: NVIDIA A100-SXM4-80GB, NVIDIA L4"


@pytest.mark.parametrize(
    "shape, count, why",
    [
        (
            {"reason": "an encoder and a decoder see different tokens"},
            {},
            "an encoder and a decoder see different tokens",
        ),
        ({}, {"non_pad_squares": None}, "rank 0: step 1 has no count"),
        ({"heads": None}, {}, "the model's config does not tell heads"),
    ],
)
def test_flops_that_are_not_known(shape: dict[str, Any], count: dict[str, Any], why: str) -> None:
    measured = measure(journal(shape=shape, count=count))
    assert measured.model_flops_per_step is None
    assert measured.reasons["model_flops_per_step"] == why
    assert measured.reasons["mfu"] == why


def test_shares_of_the_data_are_those_of_the_measured_segment() -> None:
    """Rank 0 goes on alone, in a loop that tells of no share."""
    alone = [event("segment", segment=1, data_rank=None), step(1, segment=1), tokens(1, segment=1)]
    ranks = [journal(0, segment={"data_rank": 0}, extra=alone), journal(1, segment={"data_rank": 0})]
    measured = measure(*ranks)
    assert measured.data_ranks == 1
    assert measured.non_pad_tokens_per_s == pytest.approx(1280)
