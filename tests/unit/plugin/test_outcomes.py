"""What each end of a case becomes in pytest, junit.xml and the terminal, in one process and with workers."""

import json

import pytest
from junitparser import JUnitXml, TestCase

from harness.reports.reading import read_results
from harness.reports.summary import exit_code
from tests.unit.plugin.conftest import Bench

OOM = "gpu_oom: rank 1 asked for 2.15 GiB, 1.03 GiB of 79.25 GiB free, step 3, backward"


def test_every_end_of_a_case(bench: Bench, workers: str) -> None:
    for tag in ("none", "gpu_oom", "nccl", "user_error", "breaks"):
        bench.scenario(f"a-{tag}", tag)
    bench.scenario("large", gpus=8)
    bench.file("broken.yaml", "name: broken\ngpuz: 8\n")
    result = bench.run(workers)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    junit = bench.junit()
    assert {case: (junit.outcome(case), junit.verdict(case)) for case in junit.cases} == {
        "a-none-1proc": ("passed", "none"),
        "a-gpu_oom-1proc": ("pytest.xfail", "gpu_oom"),
        "a-nccl-1proc": ("pytest.xfail", "nccl"),
        "a-user_error-1proc": ("failure", "user_error"),
        "a-breaks-1proc": ("error", "unknown"),
        "large-8gpu": ("pytest.skip", "not_run"),
        "invalid:broken.yaml": ("failure", "not_run"),
    }
    assert junit.message("a-gpu_oom-1proc") == OOM
    assert junit.properties("large-8gpu")["verdict_reason"] == "needs 8 GPUs, this machine has 0"
    assert "gpuz" in junit.message("invalid:broken.yaml")
    assert "did you mean 'gpus'" in junit.properties("invalid:broken.yaml")["verdict_reason"]
    assert (bench.session / "junit.xml").read_bytes() == (bench.path / "junit.xml").read_bytes()


def test_a_case_carries_figures_record_labels_and_the_log(bench: Bench, workers: str) -> None:
    bench.scenario("good", labels={"team": "a", "site": "scenario"})
    bench.scenario("bad", "user_error")
    bench.run(workers, "--label", "site=option")
    junit = bench.junit()
    properties = junit.properties("good-1proc")
    session = bench.session.name
    expected = {
        "verdict": "none",
        "verdict_reason": "it was none",
        "case": "good-1proc",
        "record": f"{session}/good-1proc/record.json",
        "non_pad_tokens_per_s_per_device": "12345.7",
        "step_time_median_s": "0.25",
        "steps_measured": "17",
        "host_peak_rss_bytes": "1073741824",
        "label.experiment": "good",
        "label.identifier": session,
        "label.site": "option",
        "label.team": "a",
    }
    assert properties == expected
    assert (bench.path / "results" / properties["record"]).is_file()
    assert "last line of the log" in junit.system_out("bad-1proc")
    assert "\x1b" not in junit.system_out("bad-1proc")
    assert junit.message("bad-1proc").startswith("user_error: rank 0: ValueError: no such column")


def test_an_xfail_keeps_its_log(bench: Bench, workers: str) -> None:
    bench.scenario("oom", "gpu_oom")
    bench.run(workers)
    assert "last line of the log" in bench.junit().system_out("oom-1proc")


def test_runxfail_makes_limits_failures(bench: Bench, workers: str) -> None:
    bench.scenario("oom", "gpu_oom")
    result = bench.run(workers, "--runxfail")
    result.assert_outcomes(failed=1)
    assert bench.junit().outcome("oom-1proc") == "failure"
    assert bench.junit().verdict("oom-1proc") == "gpu_oom"


def test_junitparser_reads_the_report(bench: Bench) -> None:
    bench.scenario("good")
    bench.scenario("oom", "gpu_oom")
    bench.run()
    cases = [case for suite in JUnitXml.fromfile(str(bench.path / "junit.xml")) for case in suite]
    assert all(isinstance(case, TestCase) for case in cases)
    assert {case.name: (case.is_passed, case.is_skipped) for case in cases} == {
        "test_finetune[good-1proc]": (True, False),
        "test_finetune[oom-1proc]": (False, True),
    }


def test_a_case_that_is_tried_again_has_its_properties_once(bench: Bench) -> None:
    pytest.importorskip("pytest_rerunfailures")
    bench.scenario("bad", "user_error")
    result = bench.run("--reruns", "2")
    result.assert_outcomes(failed=1)
    assert bench.junit().verdict("bad-1proc") == "user_error"
    assert bench.junit().outcome("bad-1proc") == "failure"


def test_a_test_that_fails_on_a_good_job_keeps_the_verdict(bench: Bench) -> None:
    bench.scenario("good")
    (bench.folder / "test_finetune.py").write_text("def test_finetune(tuning):\n    assert tuning.record is None\n")
    bench.run().assert_outcomes(failed=1)
    assert bench.junit().verdict("good-1proc") == "none"


def test_a_test_that_launches_nothing_measured_nothing(bench: Bench) -> None:
    bench.scenario("good")
    (bench.folder / "test_finetune.py").write_text("def test_finetune(tuning_case):\n    assert tuning_case.id\n")
    result = bench.run()
    assert bench.junit().verdict("good-1proc") == "not_run"
    result.stdout.fnmatch_lines(["NOTHING WAS MEASURED*"])


def test_a_dead_worker_is_a_failure_with_properties(bench: Bench) -> None:
    for tag in ("dies", "dies_late", "none"):
        bench.scenario(f"a-{tag}", tag)
    result = bench.run("-n2")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    junit = bench.junit()
    assert {case: (junit.outcome(case), junit.verdict(case)) for case in junit.cases} == {
        "a-none-1proc": ("passed", "none"),
        "a-dies-1proc": ("failure", "killed"),
        "a-dies_late-1proc": ("failure", "unknown"),
    }
    assert "died while the case ran" in junit.properties("a-dies-1proc")["verdict_reason"]
    assert junit.properties("a-dies_late-1proc")["label.experiment"] == "a-dies_late"


def test_the_terminal_tells_what_comes_and_what_came(bench: Bench, workers: str) -> None:
    bench.scenario("good")
    bench.scenario("large", gpus=8)
    result = bench.run(workers)
    result.stdout.fnmatch_lines_random(
        [
            "harness: 2 cases (1 on CPU in 1 process, 1 on 8 GPUs); this machine can lease 0 GPUs and 2 CPU slots",
            "harness: to skip 1 case (large-8gpu): needs 8 GPUs, this machine has 0",
            f"harness: results in {bench.session}",
            "none     good-1proc  passed            12,346    -       250 ms  1.00 GiB host",
            "not_run: 1 case skipped: needs 8 GPUs, this machine has 0",
        ]
    )
    result.stdout.no_fnmatch_line("*NOTHING WAS MEASURED*")


@pytest.mark.parametrize("tag", ["gpu_oom", "skipped"])
def test_an_empty_night_is_loud(bench: Bench, tag: str) -> None:
    bench.scenario("case", tag, **({"gpus": 8} if tag == "skipped" else {}))
    result = bench.run()
    assert result.ret == 0
    result.stdout.fnmatch_lines(["NOTHING WAS MEASURED: *"])


def test_quiet_prints_no_harness_lines_before_the_end(bench: Bench) -> None:
    bench.scenario("good")
    bench.run("-q").stdout.no_fnmatch_line("harness:*")


def test_session_json_says_who_asked_for_what(bench: Bench, workers: str) -> None:
    bench.scenario("good")
    bench.scenario("large", gpus=8)
    bench.run(workers, "--label", "token=hf_abcdefghijklmnopqrstuvwxyz0123456789")
    session = json.loads((bench.session / "session.json").read_text())
    assert session["session"] == bench.session.name
    assert session["counts"] == {"cases": 2, "to_run": 1, "to_skip": 1, "bad_scenarios": 0}
    assert session["outcomes"] == {"passed": 1, "skipped": 1}
    assert session["exit_status"] == 0
    assert "hf_abcdefghijklmnopqrstuvwxyz0123456789" not in (bench.session / "session.json").read_text()


def test_locks_that_cannot_be_used_are_said_without_a_traceback(bench: Bench) -> None:
    bench.scenario("case", "lockless")
    result = bench.run()
    result.assert_outcomes(errors=1)
    assert bench.junit().properties("case-1proc")["verdict_reason"].endswith("/locks: no folder; set HARNESS_LOCK_DIR")
    result.stdout.no_fnmatch_line("*fake_runner*")
    result.stdout.no_fnmatch_line("Traceback*")


@pytest.mark.parametrize("how", ["forgetful", "setup-only"])
def test_a_test_that_does_not_look_is_shown_as_failed(bench: Bench, how: str) -> None:
    bench.scenario("bad", "user_error")
    if how == "forgetful":
        (bench.folder / "test_finetune.py").write_text("def test_finetune(tuning):\n    pass\n")
    bench.run(*(["--setup-only"] if how == "setup-only" else []))
    (result,) = read_results(bench.path / "results").results
    assert (result.outcome, result.verdict) == ("failed", "user_error")
    assert exit_code([result]) == 1
