"""Which of the shipped cases an expression selects."""

import re
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
GPUS = (1, 2, 4, 8)


def ids(name: str, method: str, batches: tuple[int, ...], gpus: tuple[int, ...] = GPUS) -> set[str]:
    return {f"{name}-{method}-bs{batch}-seq2048-{count}gpu" for batch in batches for count in gpus}


TINY_LORA = {"tiny-lora-bs2-seq64-1proc", "tiny-lora-bs2-seq64-2proc"}
TINY = TINY_LORA | {"tiny-full-bs2-seq64-1proc", "tiny-full-bs2-seq64-2proc"}
LORA_7B = ids("llama7b", "lora", (1, 4, 16))
FULL_7B = ids("llama7b", "full", (1, 4))
LORA_8B = ids("llama3-8b", "lora", (1, 4))
SHIPPED = TINY | LORA_7B | FULL_7B | LORA_8B
ONE = "llama7b-lora-bs4-seq2048-1gpu"


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["-k", "tiny"], TINY),
        (["-k", "llama7b"], LORA_7B | FULL_7B),
        (["-k", "llama-7b"], LORA_7B | FULL_7B),
        (["-k", "LLaMA7B"], LORA_7B | FULL_7B),
        (["-k", "llama7b and lora"], LORA_7B),
        (["-k", "llama7b and not full"], LORA_7B),
        (["-k", "8gpu"], {case for case in SHIPPED if case.endswith("-8gpu")}),
        (["-k", "llama7b and (1gpu or 2gpu)"], {case for case in LORA_7B | FULL_7B if re.search("-[12]gpu", case)}),
        (["-m", "lora"], LORA_7B | LORA_8B | TINY_LORA),
        (["-m", "full and not lora"], SHIPPED - LORA_7B - LORA_8B - TINY_LORA),
        (["-k", ONE], {ONE}),
        (["-k", "tiny", "-m", "lora"], TINY_LORA),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_expressions_select_cases(pytester: pytest.Pytester, arguments: list[str], expected: set[str]) -> None:
    result = pytester.runpytest_subprocess(BENCHMARKS, "--collect-only", "-q", "-p", "no:cacheprovider", *arguments)
    assert result.ret == 0
    assert {line[:-1].partition("[")[2] for line in result.outlines if "::test_finetune[" in line} & SHIPPED == expected


def test_tiny_is_exactly_four_cases(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_subprocess(BENCHMARKS, "--collect-only", "-q", "-p", "no:cacheprovider", "-k", "tiny")
    result.stdout.re_match_lines([r"4/\d+ tests collected .*"])


def test_a_full_node_id_selects_one(pytester: pytest.Pytester) -> None:
    nodeid = f"{BENCHMARKS / 'test_finetune.py'}::test_finetune[{ONE}]"
    result = pytester.runpytest_subprocess(nodeid, "--collect-only", "-q", "-p", "no:cacheprovider")
    result.stdout.re_match_lines([r"1 test collected .*"])
