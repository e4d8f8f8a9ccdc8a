"""What pytest makes of a verdict: with and without an expectation, whatever kinds xfail."""

import pytest

from harness.reports.policy import XFAIL_KINDS, outcome_of, unmet
from harness.scenario import Expect, When, expected_kind

GIB = 2**30
SMALL = Expect(kind="gpu_oom", when=When(gpu_memory_below_bytes=80 * GIB))
A10, H200 = [("NVIDIA A10", 24 * GIB)], [("NVIDIA H200", 141 * GIB)]


@pytest.mark.parametrize(
    "verdict, expect, gpus, xfail_kinds, outcome",
    [
        pytest.param("none", None, A10, XFAIL_KINDS, "passed", id="trained"),
        pytest.param("gpu_oom", None, A10, XFAIL_KINDS, "xfailed", id="limit"),
        pytest.param("nccl", None, A10, XFAIL_KINDS, "xfailed", id="nccl"),
        pytest.param("network", None, A10, XFAIL_KINDS, "failed", id="other"),
        pytest.param("gpu_oom", None, A10, (), "failed", id="limit-none-xfails"),
        pytest.param("nccl", None, A10, ("network",), "failed", id="nccl-others-xfail"),
        pytest.param("network", None, A10, ("network",), "xfailed", id="network-xfails"),
        pytest.param("none", None, A10, ("network",), "passed", id="trained-others-xfail"),
        pytest.param("gpu_oom", SMALL, A10, XFAIL_KINDS, "passed", id="met"),
        pytest.param("gpu_oom", SMALL, A10, (), "passed", id="met-none-xfails"),
        pytest.param("none", SMALL, A10, XFAIL_KINDS, "failed", id="fits"),
        pytest.param("none", SMALL, A10, (), "failed", id="fits-none-xfails"),
        pytest.param("nccl", SMALL, A10, XFAIL_KINDS, "failed", id="another"),
        pytest.param("user_error", SMALL, A10, XFAIL_KINDS, "failed", id="another-that-fails-anyhow"),
        pytest.param("gpu_oom", SMALL, H200, XFAIL_KINDS, "xfailed", id="limit-elsewhere"),
        pytest.param("gpu_oom", SMALL, H200, (), "failed", id="limit-elsewhere-none-xfails"),
        pytest.param("none", SMALL, H200, XFAIL_KINDS, "passed", id="trained-elsewhere"),
        pytest.param("nccl", SMALL, H200, XFAIL_KINDS, "xfailed", id="nccl-elsewhere"),
        pytest.param("gpu_oom", SMALL, [], XFAIL_KINDS, "xfailed", id="on-cpu"),
        pytest.param("crash", Expect(kind="crash"), [], XFAIL_KINDS, "passed", id="always"),
        pytest.param("none", Expect(kind="none"), A10, XFAIL_KINDS, "passed", id="must-train-and-does"),
        pytest.param("gpu_oom", Expect(kind="none"), A10, XFAIL_KINDS, "failed", id="must-train-and-does-not"),
    ],
)
def test_outcomes(
    verdict: str, expect: Expect | None, gpus: list[tuple[str, int]], xfail_kinds: tuple[str, ...], outcome: str
) -> None:
    expected = expected_kind(expect, gpus)
    assert outcome_of(verdict, expected, xfail_kinds) == outcome
    # Words of an expectation for those failures alone that one has caused.
    assert (unmet(verdict, expected, "why") is not None) is (expected is not None and outcome == "failed")


@pytest.mark.parametrize(
    "verdict, expected, words",
    [
        ("none", "gpu_oom", "[XPASS(strict)] expected gpu_oom, the job trained"),
        ("nccl", "gpu_oom", "expected gpu_oom, got nccl: why"),
        ("gpu_oom", "none", "expected training, got gpu_oom: why"),
    ],
)
def test_what_is_said_of_an_unmet_expectation(verdict: str, expected: str, words: str) -> None:
    assert unmet(verdict, expected, "why") == words
