"""The exit codes: complete, distinct, out of others' ranges, and as documented."""

import re
from pathlib import Path

from harness.exits import EXIT_CODES, USAGE
from harness.record import Kind

DOCS = Path(__file__).parents[2] / "docs" / "kubernetes.md"


def test_every_kind_has_a_code_of_its_own() -> None:
    assert set(EXIT_CODES) == set(Kind)
    codes = [*EXIT_CODES.values(), USAGE]
    assert len(set(codes)) == len(codes)
    assert EXIT_CODES[Kind.NONE] == 0


def test_no_code_means_something_else_to_a_shell() -> None:
    assert all(0 <= code < 126 or 192 < code < 241 for code in EXIT_CODES.values())


def test_the_table_of_the_docs() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", DOCS.read_text(), re.MULTILINE)
    codes = {str(kind): code for kind, code in EXIT_CODES.items()} | {"usage": USAGE, "not_run": USAGE}
    assert {kind: int(code) for code, kind in rows} == codes
    assert [int(code) for code, _ in rows] == sorted(codes.values())
