"""Writing junit.xml where a place is full, missing, or no file."""

import errno
import os
from pathlib import Path

import pytest

from harness.plugin import junit
from tests.unit.plugin.conftest import Bench


def test_one_place_that_fails_does_not_cost_the_other(bench: Bench) -> None:
    bench.scenario("good")
    (bench.path / "junit.xml").mkdir()
    result = bench.run()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"could not be written: {bench.path}/junit.xml: *"])
    assert bench.junit(bench.session / "junit.xml").verdict("good-1proc") == "none"
    assert not list(bench.path.glob(".junit.xml*"))
    assert not list(bench.session.glob(".*"))


@pytest.mark.parametrize("place", ["file/junit.xml", "/proc/no/junit.xml", "folder", "pipe"])
def test_an_impossible_junit_xml_is_a_usage_error(bench: Bench, place: str) -> None:
    bench.scenario("good")
    (bench.path / "file").touch()
    (bench.path / "folder").mkdir()
    os.mkfifo(bench.path / "pipe")
    result = bench.run(f"--junit-xml={place}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()
    assert "Traceback" not in result.stderr.str()
    assert not list(bench.session.glob("*/record.json"))


def test_without_room_for_two_versions_the_file_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "junit.xml"
    path.write_bytes(b"old and longer")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        junit._replace(path, b"new")
        assert path.read_bytes() == b"new"
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(OSError, match="No space"):
            junit._replace(path, b"the newest")
    assert path.read_bytes() == b"new"
    assert [each.name for each in tmp_path.iterdir()] == ["junit.xml"]


def test_devices_are_not_replaced() -> None:
    junit._replace(Path("/dev/null"), b"x")
    with pytest.raises(OSError, match="no regular file"):
        junit._replace(Path("/dev/zero"), b"x")
