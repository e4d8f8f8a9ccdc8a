"""The attempts of a case, by the names of their folders."""

from pathlib import Path

from harness.probe.layout import JobPaths, attempt, attempts


def test_attempts_are_numbers_in_order(tmp_path: Path) -> None:
    assert attempts(tmp_path / "not-there") == attempts(tmp_path) == []
    for number in (2, 10, 1):
        attempt(tmp_path, number).root.mkdir()
    for name in ("attempt-", "attempt-x", "attempt--3", "attempt-4.old", "my-attempt-5"):
        (tmp_path / name).mkdir()
    (tmp_path / "attempt-6").write_text("a file")
    assert attempts(tmp_path) == [1, 2, 10]
    assert attempt(tmp_path, 10) == JobPaths(tmp_path / "attempt-10")
