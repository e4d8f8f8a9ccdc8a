"""Labelled cases in the corpus' format, of launchers, log prefixes and library versions that it does not hold."""

from pathlib import Path

import pytest

from harness.classify import evidence_of, judge
from tests.unit.classify.test_corpus import read

CASES = sorted((Path(__file__).parent / "cases").glob("*.yaml"))


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in CASES])
def test_case(path: Path) -> None:
    case = read(path)
    verdict = judge(evidence_of(case))
    found = {"kind": str(verdict.kind), "transient": verdict.transient, "root_rank": verdict.rank}
    assert {key: found[key] for key in case["expected"]} == case["expected"], verdict


def test_cases_are_found_and_named_by_their_files() -> None:
    assert CASES
    assert all(read(path)["id"] == path.stem for path in CASES)
