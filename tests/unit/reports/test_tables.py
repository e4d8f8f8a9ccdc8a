"""The table at the end of a session."""

import pytest

from harness.reports.results import CaseResult, measured_any
from harness.reports.tables import align, figure_cells, format_step, one_line, result_table


def result(case: str, outcome: str, verdict: str, reason: str = "", **figures: str) -> CaseResult:
    properties = {"case": case, "verdict": verdict, "verdict_reason": reason, **figures}
    return CaseResult(f"test_finetune[{case}]", outcome, properties)  # type: ignore[arg-type]


def test_the_table_groups_by_verdict_and_aligns() -> None:
    lines = result_table(
        [
            result("llama7b-full", "xfailed", "gpu_oom", "rank 0 asked for 2 GiB"),
            result(
                "tiny",
                "passed",
                "none",
                "fine",
                non_pad_tokens_per_s_per_device="12345.7",
                step_time_median_s="0.0312",
                mfu="0.4125",
                peak_allocated_bytes=str(3 * 2**30),
            ),
            result("a", "skipped", "not_run", "needs 8 GPUs"),
            result("b", "skipped", "not_run", "needs 8 GPUs"),
        ]
    )
    assert lines == [
        "verdict  case          outcome  tokens/s/device    MFU  step median   peak memory  reason",
        "none     tiny          passed            12,346  41.2%      31.2 ms  3.00 GiB GPU",
        "gpu_oom  llama7b-full  xfailed                -      -            -             -  rank 0 asked for 2 GiB",
        "not_run: 2 cases skipped: needs 8 GPUs",
    ]


def test_the_table_tells_of_expectations_and_retries() -> None:
    lines = result_table(
        [
            result("met", "passed", "gpu_oom", "too large", expected="gpu_oom"),
            result("fits", "failed", "none", "", expected="gpu_oom"),
            result("must", "failed", "nccl", "peer gone", expected="none"),
            result("again", "passed", "none", attempts="2", retried="attempt 1: nccl: peer gone"),
        ]
    )
    assert [" ".join(line.split()) for line in lines[1:]] == [
        "none again passed - - - -",
        "none fits failed - - - - [XPASS(strict)] expected gpu_oom, the job trained",
        "gpu_oom met passed - - - - as expected: too large",
        "nccl must failed - - - - expected training, got nccl: peer gone",
        "retried: again passed on attempt 2; attempt 1: nccl: peer gone",
    ]


def test_a_case_whose_gpus_were_shared_or_held_down_is_marked_and_the_mark_explained() -> None:
    began = {"gpu_start_temperature_c": "34", "gpu_start_sm_clock_mhz": "345"}
    lines = result_table(
        [
            result("alone", "passed", "none", contended="false", throttled_share="0.04", **began),
            result("both", "passed", "none", contended="true", foreign_pids="7", throttled_share="0.45", **began),
            result("hot", "xfailed", "gpu_oom", throttled_share="0.05"),
            result("again", "passed", "none", attempts="2", retried="attempt 1: nccl: peer gone", contended="true"),
        ]
    )
    began_at = "began at 34 degrees C, 345 MHz"
    assert [" ".join(line.split()) for line in lines[1:]] == [
        "none again* passed - - - -",
        "none alone passed - - - -",
        "none both* passed - - - -",
        "gpu_oom hot* xfailed - - - -",
        "* again: contended: others computed on its GPUs, too",
        f"* both: contended: process 7 computed on its GPUs, too; throttled for 45% of the time; {began_at}",
        "* hot: throttled for 5% of the time",
        "retried: again passed on attempt 2; attempt 1: nccl: peer gone",
    ]


def test_not_every_mark_is_explained() -> None:
    lines = result_table([result(f"case-{n:03}", "passed", "none", throttled_share="1") for n in range(30)])
    assert [line for line in lines if line.startswith("* ")][19:] == [
        "* case-019: throttled for 100% of the time",
        "* 10 more, in their records",
    ]


def test_a_case_that_did_not_finish_is_none_that_did_not_meet_an_expectation() -> None:
    assert result("cut", "unfinished", "unknown", "no end", expected="gpu_oom").reason == "no end"


@pytest.mark.parametrize(
    "state, shown",
    [
        ("steady", "250 ms"),
        ("too_few_steps", "250 ms"),
        ("drifting", "250 ms (drifting)"),
        ("bimodal", "250 ms (bimodal)"),
    ],
)
def test_a_median_without_a_steady_state_says_so(state: str, shown: str) -> None:
    cells = figure_cells(result("a", "passed", "none", step_time_median_s="0.25", steady_state=state))
    assert cells[2] == shown


def test_no_results_no_table() -> None:
    assert result_table([]) == []


def test_align_leaves_the_last_column() -> None:
    assert align([("a", "1", "x"), ("bbb", "22", "")], {1}) == ["a     1  x", "bbb  22"]


@pytest.mark.parametrize(
    "seconds, text", [(None, "-"), (0.00312, "3.12 ms"), (0.5, "500 ms"), (0.9999, "1.00 s"), (12.345, "12.3 s")]
)
def test_format_step(seconds: float | None, text: str) -> None:
    assert format_step(seconds) == text


def test_one_line_is_one_line() -> None:
    assert one_line("a\n b\t\x1b[2Jc", 10) == "a b c"
    assert one_line("x" * 20, 10) == "xxxxxxx..."


@pytest.mark.parametrize(
    "outcome, verdict, measured",
    [
        ("passed", "none", True),
        ("passed", "gpu_oom", True),  # expected, and met
        ("passed", "not_run", False),
        ("passed", "", False),  # a test that is no case
        ("skipped", "not_run", False),
        ("xfailed", "gpu_oom", False),
        ("failed", "none", False),
    ],
)
def test_what_counts_as_measured(outcome: str, verdict: str, measured: bool) -> None:
    assert measured_any([result("a", outcome, verdict)]) is measured


def test_a_figure_that_is_no_number_is_none() -> None:
    assert result("a", "passed", "none", step_time_median_s="fast").figure("step_time_median_s") is None
