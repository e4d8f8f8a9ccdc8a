"""What a session leaves that is ended early: by SIGTERM, by Ctrl-C, or by SIGKILL."""

import os
import signal
import subprocess
import time
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from harness.cli import app
from tests.unit.plugin.conftest import Bench


@pytest.fixture
def night(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A quick case and a long one."""
    monkeypatch.setenv("FAKE_SLOW_S", "60")
    bench.scenario("a-quick", "gpu_oom")
    bench.scenario("b-long", "slow")
    return bench


def until(condition: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, "pytest ended too early"
        assert time.monotonic() < deadline
        time.sleep(0.05)


def quick_is_reported(bench: Bench) -> bool:
    junit = bench.session / "junit.xml"
    return (bench.session / "b-long-1proc/attempt-1").is_dir() and junit.exists() and b"a-quick" in junit.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("to", ["process", "group"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_session_with_its_reports(
    night: Bench, workers: str, number: signal.Signals, to: str
) -> None:
    process = night.start(workers)
    until(lambda: quick_is_reported(night), process)
    (os.kill if to == "process" else os.killpg)(process.pid, number)
    assert process.wait(60) == pytest.ExitCode.INTERRUPTED
    junit = night.junit()
    assert list(junit.cases) == ["a-quick-1proc"]
    assert junit.verdict("a-quick-1proc") == "gpu_oom"
    assert (night.session / "b-long-1proc" / "interrupted").is_file(), "the case was not told"
    assert '"exit_status": 2' in (night.session / "session.json").read_text()
    summary = CliRunner().invoke(app, ["summary", str(night.path / "results")])
    assert summary.exit_code == 1
    assert "b-long-1proc" in summary.stdout


@pytest.mark.slow
def test_a_killed_session_leaves_what_was_finished(night: Bench) -> None:
    process = night.start("-n0")
    until(lambda: quick_is_reported(night), process)
    process.kill()
    process.wait(60)
    assert list(night.junit().cases) == ["a-quick-1proc"]
    for path in ("results", "junit.xml"):
        summary = CliRunner().invoke(app, ["summary", str(night.path / path)])
        assert summary.exit_code == 1
        assert "no end was recorded" in summary.stdout


def test_an_older_report_does_not_outlive_the_start(bench: Bench) -> None:
    bench.scenario("case", "breaks")
    (bench.path / "junit.xml").write_text("of last night")
    bench.run()
    assert "of last night" not in (bench.path / "junit.xml").read_text()


def test_the_users_own_junit_is_kept_and_copied(bench: Bench, workers: str) -> None:
    bench.scenario("case", "user_error")
    bench.run(workers, "--junit-xml=deep/own.xml")
    assert not (bench.path / "junit.xml").exists()
    own = bench.path / "deep" / "own.xml"
    assert own.read_bytes() == (bench.session / "junit.xml").read_bytes()
    assert "last line of the log" in bench.junit(own).system_out("case-1proc")


def test_junit_logging_of_the_user_is_respected(bench: Bench) -> None:
    bench.scenario("case", "user_error")
    bench.run("-o", "junit_logging=no")
    assert bench.junit().system_out("case-1proc") == ""


def test_a_file_that_cannot_be_collected_is_in_the_report(bench: Bench, workers: str) -> None:
    bench.scenario("case")
    (bench.folder / "test_broken.py").write_text("import nothing_of_that_name\n")
    bench.run(workers, "--continue-on-collection-errors")
    text = (bench.path / "junit.xml").read_text()
    assert "collection failure" in text
    assert "test_finetune[case-1proc]" in text
