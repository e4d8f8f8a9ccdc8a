"""The corpus of labelled failures: every case is told by its kind, and by transience and rank where it is labelled."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.classify import evidence_of, judge

CORPUS = Path(__file__).parent.parent.parent / "corpus"
CASES = sorted(CORPUS.glob("*.yaml"))
# case -> why its label is contested
CONTESTED: dict[str, str] = {}


def read(path: Path) -> dict[str, Any]:
    document = yaml.safe_load(path.read_bytes())
    assert isinstance(document, dict)
    return document


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            path,
            id=path.stem,
            marks=[pytest.mark.xfail(strict=True, reason=CONTESTED[path.stem])] if path.stem in CONTESTED else [],
        )
        for path in CASES
    ],
)
def test_case(path: Path) -> None:
    case = read(path)
    verdict = judge(evidence_of(case))
    expected = case["expected"]
    found = {"kind": str(verdict.kind), "transient": verdict.transient, "root_rank": verdict.rank}
    assert {key: found[key] for key in expected} == expected, verdict


def test_the_corpus_is_whole() -> None:
    assert len(CASES) == 91
    assert all(read(path)["id"] == path.stem for path in CASES)
    assert len(CONTESTED) <= 3
