"""The Markdown of a session and its exit code."""

import pytest

from harness.reports.results import CaseResult
from harness.reports.summary import escape, exit_code, fail_on_choices, to_markdown
from tests.unit.reports.test_tables import result

GOOD = result("tiny", "passed", "none")
OOM = result("large", "xfailed", "gpu_oom", "too large")
SKIP = result("eight", "skipped", "not_run", "needs 8 GPUs")
MET = result("met", "passed", "gpu_oom", "too large", expected="gpu_oom")
FITS = result("fits", "failed", "none", "", expected="gpu_oom")
AGAIN = result("again", "passed", "none", attempts="2", retried="attempt 1: nccl: peer *gone*")
BAD = result("bad", "failed", "user_error", "no such column", record="s/bad/record.json")


@pytest.mark.parametrize(
    "results, fail_on, code",
    [
        pytest.param([GOOD], [], 0, id="good"),
        pytest.param([GOOD, OOM, SKIP], [], 0, id="good-and-limits"),
        pytest.param([GOOD, BAD], [], 1, id="failure"),
        pytest.param([GOOD, result("x", "error", "unknown")], [], 1, id="error"),
        pytest.param([GOOD, result("x", "unfinished", "unknown")], [], 1, id="unfinished"),
        pytest.param([OOM, SKIP], [], 3, id="nothing-passed"),
        pytest.param([SKIP], [], 3, id="all-skipped"),
        pytest.param([OOM], [], 3, id="all-xfailed"),
        pytest.param([], [], 3, id="no-case"),
        pytest.param([CaseResult("test_plain", "passed")], [], 3, id="other-tests-only"),
        pytest.param([GOOD, OOM], ["gpu_oom"], 1, id="fail-on-kind"),
        pytest.param([GOOD, OOM], ["nccl"], 0, id="fail-on-other-kind"),
        pytest.param([GOOD, SKIP], ["skipped"], 1, id="fail-on-skipped"),
        pytest.param([GOOD, OOM], ["xfailed"], 1, id="fail-on-xfailed"),
        pytest.param([BAD, SKIP], [], 1, id="failure-before-nothing"),
        pytest.param([MET], [], 0, id="expected"),
        pytest.param([MET, FITS], [], 1, id="fits"),
        pytest.param([MET], ["gpu_oom"], 0, id="fail-on-a-kind-that-was-expected"),
        pytest.param([MET, OOM], ["gpu_oom"], 1, id="fail-on-a-kind-that-was-not"),
    ],
)
def test_exit_code(results: list[CaseResult], fail_on: list[str], code: int) -> None:
    assert exit_code(results, fail_on) == code


def test_markdown() -> None:
    text = to_markdown([GOOD, OOM, SKIP, BAD])
    assert text.startswith(
        "## Fine-tuning benchmarks: 1 passed, 1 failed, 1 xfailed, 1 skipped\n\n**1 failed or did not finish.**\n"
    )
    assert "| tiny | passed | `none` | - | - | - |" in text
    assert "### Failures\n\n- **bad** `user_error`: no such column (`s/bad/record.json`)" in text
    assert "### Limits of the machine (xfailed)\n\n- **large** `gpu_oom`: too large" in text
    assert "### Skipped\n\n- 1 case: needs 8 GPUs" in text


def test_markdown_tells_of_gpus_that_were_shared_or_held_down() -> None:
    text = to_markdown([GOOD, result("shared", "passed", "none", contended="true", foreign_pids="7")])
    assert "| shared\\* | passed |" in text
    assert "| tiny | passed |" in text
    said = "- **shared** contended: process 7 computed on its GPUs, too"
    assert f"### GPUs that were shared or held down (marked \\*)\n\n{said}\n" in text
    assert "held down" not in to_markdown([GOOD])


def test_markdown_tells_of_expectations_and_retries() -> None:
    text = to_markdown([MET, FITS, AGAIN])
    assert "### Failures\n\n- **fits** `none`: \\[XPASS\\(strict\\)\\] expected gpu\\_oom, the job trained" in text
    assert "### Ended badly, as expected (passed)\n\n- **met** `gpu_oom`: too large" in text
    assert "### Retried\n\n- **again** passed on attempt 2; attempt 1: nccl: peer \\*gone\\*" in text
    plain = to_markdown([GOOD])
    assert "expected" not in plain
    assert "Retried" not in plain


def test_markdown_says_when_nothing_was_measured() -> None:
    assert "**Nothing was measured**" in to_markdown([SKIP])
    assert "**Nothing was measured**" in to_markdown([])


def test_markdown_says_what_it_was_told_to_fail_on() -> None:
    assert "**1 ended in a way that counts as failure here (`gpu_oom`).**" in to_markdown([GOOD, OOM], ["gpu_oom"])


def test_hostile_text_stays_text() -> None:
    hostile = result("a|b<script>", "failed", "x`y|z", "<img src=x> | [link](http://x) @someone\n# heading\x1b[31m")
    text = to_markdown([hostile])
    assert "<script>" not in text
    assert "<img" not in text
    assert "@someone" not in text
    assert "\n# heading" not in text
    rows = [line for line in text.splitlines() if line.startswith("| a")]
    assert [row.replace("\\|", "").count("|") for row in rows] == [8]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("a_b*c", "a\\_b\\*c"),
        ("<b>&amp;", "&lt;b&gt;&amp;amp;"),
        ("@team #1", "&#64;team \\#1"),
        ("back\\slash | bar", "back\\\\slash \\| bar"),
        ("x" * 30, "xxxxxxx..."),
    ],
)
def test_escape(text: str, expected: str) -> None:
    assert escape(text, 20 if len(text) < 30 else 10) == expected


def test_many_cases_are_cut() -> None:
    text = to_markdown([result(f"case-{number}", "passed", "none") for number in range(1200)])
    assert "200 more cases are not shown." in text


def test_fail_on_choices() -> None:
    assert {"gpu_oom", "skipped", "xfailed", "unknown"} < set(fail_on_choices())
    assert "none" not in fail_on_choices()
