"""The scenarios that ship: which there are, and that the words people select them by reach no others."""

from pathlib import Path

import pytest

from harness.scenario import Case, load_scenarios

TINY = {f"tiny-{method}-bs2-seq64-{processes}proc" for method in ("full", "lora") for processes in (1, 2)}


@pytest.fixture(scope="module")
def shipped() -> list[Case]:
    found = load_scenarios(Path(__file__).parents[3] / "benchmarks" / "scenarios")
    assert [entry for entry in found if not isinstance(entry, Case)] == []
    return [entry for entry in found if isinstance(entry, Case)]


def selected(cases: list[Case], word: str) -> set[str]:
    """By -k's rule: a substring of the id, a keyword or a mark."""
    return {case.id for case in cases if any(word in text for text in (case.id, *case.keywords, *case.marks))}


def test_tiny_is_four_cases(shipped: list[Case]) -> None:
    assert selected(shipped, "tiny") == TINY


def test_tiny_runs_anywhere(shipped: list[Case]) -> None:
    for case in shipped:
        if case.id in TINY:
            scenario = case.scenario
            assert not scenario.on_gpu
            assert scenario.model is not None
            assert scenario.model.dtype == "float32"
            assert scenario.model.shape is not None
            assert (scenario.model.shape["num_hidden_layers"], scenario.model.shape["hidden_size"]) == (2, 64)
            assert scenario.training["max_steps"] == 20


def test_llama7b_has_both_spellings_and_the_promised_sizes(shipped: list[Case]) -> None:
    found = selected(shipped, "llama7b")
    assert found == selected(shipped, "llama-7b")
    assert "llama7b-lora-bs4-seq2048-1gpu" in found
    for method in ("lora", "full"):
        ids = [case_id.split("-") for case_id in found if f"-{method}-" in case_id]
        assert {parts[-1] for parts in ids} == {"1gpu", "2gpu", "4gpu", "8gpu"}
        assert len({parts[2] for parts in ids}) >= 2
    assert all(case.scenario.needs.gpu_memory_bytes for case in shipped if case.id in found)
