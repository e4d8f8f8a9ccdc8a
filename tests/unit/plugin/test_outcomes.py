"""What each end of a case becomes in pytest, junit.xml and the terminal, in one process and with workers."""

import json

import pytest
from junitparser import JUnitXml, TestCase

from harness.reports.reading import read_results
from harness.reports.summary import exit_code
from tests.unit.plugin.conftest import CONFIGURATION, Bench

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


@pytest.mark.parametrize(
    "arguments, xfailed",
    [
        pytest.param([], {"gpu_oom", "nccl"}, id="default"),
        pytest.param(["--xfail-kinds", "network,nccl"], {"network", "nccl"}, id="option"),
        pytest.param(["--xfail-kinds", "none"], set(), id="none"),
        pytest.param(["-o", "harness_xfail_kinds=network gpu_oom"], {"network", "gpu_oom"}, id="ini"),
        pytest.param(["-o", "harness_xfail_kinds=none"], set(), id="ini-none"),
        pytest.param(["-o", "harness_xfail_kinds=network", "--xfail-kinds=nccl"], {"nccl"}, id="option-before-ini"),
        pytest.param(["--xfail-kinds", "network", "--runxfail"], set(), id="runxfail"),
    ],
)
def test_which_kinds_xfail_is_chosen(bench: Bench, workers: str, arguments: list[str], xfailed: set[str]) -> None:
    kinds = ("gpu_oom", "nccl", "network", "user_error")
    for kind in kinds:
        bench.scenario(kind, kind)
    bench.scenario("met", "network", expect="network")
    bench.run(workers, *arguments)
    junit = bench.junit()
    shown = {kind: junit.outcome(f"{kind}-1proc") for kind in kinds}
    assert shown == {kind: "pytest.xfail" if kind in xfailed else "failure" for kind in kinds}
    assert junit.outcome("met-1proc") == "passed"
    # From the report and, without it, from the records: the same.
    told = {kind: "xfailed" if kind in xfailed else "failed" for kind in kinds} | {"met": "passed"}
    for path in (bench.path / "junit.xml", bench.session):
        results = read_results(path).results
        assert {result.case.removesuffix("-1proc"): result.outcome for result in results} == told
        (bench.session / "junit.xml").unlink(missing_ok=True)


def test_kinds_may_stand_in_pyproject(bench: Bench) -> None:
    (bench.path / "pyproject.toml").write_text(CONFIGURATION + 'harness_xfail_kinds = ["network"]\n')
    bench.scenario("a", "network")
    bench.scenario("b", "gpu_oom")
    bench.run().assert_outcomes(xfailed=1, failed=1)
    assert bench.junit().outcome("a-1proc") == "pytest.xfail"


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["--xfail-kinds", "gpu_oom,rain"], "--xfail-kinds: rain: no kind of bad verdict; choose from user_error, "),
        (["--xfail-kinds", "none,nccl"], "--xfail-kinds: none: no kind of bad verdict; choose from user_error, "),
        (["--xfail-kinds", ","], "--xfail-kinds: names no kind; choose from user_error, "),
        (["-o", "harness_xfail_kinds=rain"], "harness_xfail_kinds: rain: no kind of bad verdict; choose from "),
        (["-o", "harness_retry_wait=soon"], "harness_retry_wait: 'soon' is no time; write seconds"),
        (["-o", "harness_sampler_interval=10ms"], "harness_sampler_interval: 0.01 s is too short; the least is 0.1 s"),
    ],
)
def test_kinds_that_are_none_are_a_usage_error(bench: Bench, workers: str, arguments: list[str], text: str) -> None:
    bench.scenario("good")
    result = bench.run(workers, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert text in result.stderr.str()
    assert not (bench.path / "results").exists()


SMALL = {"kind": "gpu_oom", "when": {"gpu_memory_below": "80GiB"}}
LARGE = {"kind": "gpu_oom", "when": {"gpu_memory_at_least": "80GiB"}}


def test_expectations(bench: Bench, workers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_GPUS", "1")
    bench.scenario("met", "gpu_oom", expect=LARGE, gpus=1)
    bench.scenario("fits", "none", expect=LARGE, gpus=1)
    bench.scenario("other", "nccl", expect=LARGE, gpus=1)
    bench.scenario("elsewhere", "gpu_oom", expect=SMALL, gpus=1)
    bench.scenario("on-cpu", "gpu_oom", expect=LARGE)
    bench.scenario("must-train", "gpu_oom", expect="none")
    bench.scenario("trains", "none", expect="none")
    result = bench.run(workers)
    result.assert_outcomes(passed=2, failed=3, xfailed=2)
    junit = bench.junit()
    shown = {
        case.rpartition("-")[0]: (junit.outcome(case), junit.verdict(case), junit.properties(case).get("expected"))
        for case in junit.cases
    }
    assert shown == {
        "met": ("passed", "gpu_oom", "gpu_oom"),
        "fits": ("failure", "none", "gpu_oom"),
        "other": ("failure", "nccl", "gpu_oom"),
        "elsewhere": ("pytest.xfail", "gpu_oom", None),
        "on-cpu": ("pytest.xfail", "gpu_oom", None),
        "must-train": ("failure", "gpu_oom", "none"),
        "trains": ("passed", "none", "none"),
    }
    assert junit.properties("met-1gpu")["verdict_reason"] == OOM.partition(": ")[2]
    assert junit.message("fits-1gpu").startswith("[XPASS(strict)] expected gpu_oom, the job trained")
    assert junit.message("other-1gpu").startswith("expected gpu_oom, got nccl: it was nccl")
    assert junit.message("must-train-1proc").startswith("expected training, got gpu_oom: rank 1 asked for")
    result.stdout.fnmatch_lines_random(
        [
            "gpu_oom  met-1gpu * passed * as expected: rank 1 asked for 2.15 GiB*",
            "none     fits-1gpu * failed * [[]XPASS(strict)] expected gpu_oom, the job trained",
            "nccl     other-1gpu * failed * expected gpu_oom, got nccl: it was nccl",
        ]
    )


def test_expectations_are_none_of_runxfails_business(bench: Bench) -> None:
    bench.scenario("met", "gpu_oom", expect="gpu_oom")
    bench.scenario("fits", "none", expect="gpu_oom")
    bench.run("--runxfail").assert_outcomes(passed=1, failed=1)


def test_a_test_that_does_not_look_does_not_miss_what_was_expected(bench: Bench) -> None:
    (bench.folder / "test_finetune.py").write_text("def test_finetune(tuning):\n    pass\n")
    bench.scenario("met", "gpu_oom", expect="gpu_oom")
    bench.scenario("fits", "none", expect="gpu_oom")
    bench.run().assert_outcomes(passed=2)
    results = {result.case: result.outcome for result in read_results(bench.path / "junit.xml").results}
    assert results == {"met-1proc": "passed", "fits-1proc": "failed"}


def test_a_case_that_was_tried_again_says_so(bench: Bench, workers: str) -> None:
    bench.scenario("passes", retries=1)
    bench.scenario("fails", "nccl", retries=1)
    bench.scenario("once")
    result = bench.run(workers)
    result.assert_outcomes(passed=2, xfailed=1)
    junit = bench.junit()
    for case in ("passes-1proc", "fails-1proc"):
        told = junit.properties(case)
        assert (told["attempts"], told["retried"]) == ("2", "attempt 1: nccl: rank 0: peer gone")
    assert not {"attempts", "retried"} & set(junit.properties("once-1proc"))
    result.stdout.fnmatch_lines(
        [
            "retried: passes-1proc passed on attempt 2; attempt 1: nccl: rank 0: peer gone",
            "retried: fails-1proc xfailed on attempt 2; attempt 1: nccl: rank 0: peer gone",
        ]
    )


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
