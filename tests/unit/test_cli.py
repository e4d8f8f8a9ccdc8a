"""The commands, their texts and exit codes."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from harness.cli import app
from harness.scenario.yaml12 import read
from tests.unit.reports.test_junit_file import WHOLE

SCRIPT = (
    "name: mine\nprocesses: 2\ntrainer: {kind: script, target: train.py, args: [--lr, '1e-4', --token, hf_secret]}\n"
)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_summary_prints_markdown_and_tells_by_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "junit.xml").write_bytes(WHOLE)
    result = run("summary", str(tmp_path / "junit.xml"))
    assert result.exit_code == 1
    assert result.stdout.startswith("## Fine-tuning benchmarks: 1 passed, 1 failed, 1 error, 1 unfinished")


def test_summary_of_a_good_session_and_fail_on(tmp_path: Path) -> None:
    good = '<testcase name="a"><properties><property name="verdict" value="none"/></properties></testcase>'
    oom = '<testcase name="b"><properties><property name="verdict" value="gpu_oom"/></properties>'
    oom += '<skipped type="pytest.xfail"/></testcase>'
    path = tmp_path / "junit.xml"
    path.write_text(f"<testsuite>{good}{oom}</testsuite>")
    assert run("summary", str(path)).exit_code == 0
    assert run("summary", str(path), "--fail-on", "nccl,gpu_oom").exit_code == 1
    assert run("summary", str(path), "--fail-on", "nccl", "--fail-on", "xfailed").exit_code == 1
    path.write_text(f"<testsuite>{oom}</testsuite>")
    assert run("summary", str(path)).exit_code == 3


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param([], id="no-path"),
        pytest.param(["absent.xml"], id="absent"),
        pytest.param([".", "--fail-on", "rain"], id="unknown-kind"),
        pytest.param(["."], id="no-session"),
    ],
)
def test_summary_usage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("summary", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""


def test_validate_prints_what_it_would_start(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(SCRIPT)
    (tmp_path / "train.py").touch()
    result = run("validate", str(tmp_path))
    assert result.exit_code == 0
    assert "mine-2proc" in result.stdout
    assert f"starts  python {tmp_path}/train.py --lr 1e-4" in result.stdout
    assert "hf_secret" not in result.stdout
    assert "needs   2 process(es) on CPU" in result.stdout
    assert result.stdout.endswith("1 case, no errors\n")


def test_validate_prints_what_is_expected_and_retried(tmp_path: Path) -> None:
    expect = "{kind: gpu_oom, when: {gpu_memory_below: 80GiB, gpu_name: '*A100*', gpus_below: 3}}"
    (tmp_path / "mine.yaml").write_text(f"{SCRIPT}expect: {expect}\nretries: {{nccl: 2, any: 1}}\n")
    (tmp_path / "plain.yaml").write_text(SCRIPT.replace("mine", "plain") + "expect: none\n")
    printed = run("validate", str(tmp_path)).stdout
    where = "a GPU has less than 80.00 GiB and each GPU is a *A100* and there are fewer than 3 GPUs"
    assert f"  expects gpu_oom where {where}\n  retries nccl 2, any 1, transient verdicts only\n" in printed
    assert "  expects none\n" in printed
    assert printed.count("retries") == 1


def test_validate_tells_of_a_stack_and_makes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.txt").write_text("nothing-of-this-name\n")
    stack = "stack: {requirements: a.txt, no_deps: b.txt}\n"
    (tmp_path / "mine.yaml").write_text(
        f"name: x\nprocesses: 1\nmodel: tiny-llama\ntraining: {{max_stepz: 1}}\n{stack}"
    )
    result = run("validate", str(tmp_path))
    assert result.exit_code == 0
    assert "needs   1 process(es) on CPU, an environment of a.txt and b.txt\n" in result.stdout
    assert not (tmp_path / "cache").exists()


def test_validate_names_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(SCRIPT)
    (tmp_path / "bad.yaml").write_text("name: bad\ngpuz: 1\n")
    result = run("validate", str(tmp_path))
    assert result.exit_code == 1
    assert f"error: {tmp_path}/bad.yaml:2: gpuz: unknown key; did you mean 'gpus'?" in result.stderr
    assert "mine-2proc" in result.stdout


def test_validate_looks_up_training_arguments(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    scenario = "name: x\nprocesses: 1\nmodel: {name: tiny-llama}\ntraining: {learning_rat: 1e-4}\n"
    (tmp_path / "x.yaml").write_text(scenario)
    result = run("validate", str(tmp_path))
    assert result.exit_code == 1
    assert "learning_rate" in result.stderr


def test_validate_an_empty_folder_is_no_success(tmp_path: Path) -> None:
    assert run("validate", str(tmp_path)).exit_code == 1
    assert run("validate", str(tmp_path / "absent")).exit_code == 2


def test_no_command_shows_the_help() -> None:
    assert "summary" in run().output


def test_the_example_workflow_uses_what_there_is() -> None:
    root = Path(__file__).parents[2]
    workflow = read((root / "examples" / "ci" / "tiny-bench.yml").read_bytes())
    steps = [step.get("run", "") for step in workflow["jobs"]["bench"]["steps"]]
    (command,) = [line.strip() for step in steps for line in step.splitlines() if "harness summary" in line]
    words = command.partition(" > ")[0].split()
    assert words[:2] == ["harness", "summary"]
    assert run(*words[1:2], "absent.xml", *words[3:]).exit_code == 2  # absent, and not: no such option
    assert "absent.xml: No such file" in run(*words[1:2], "absent.xml", *words[3:]).stderr


def test_summary_of_a_hostile_plan_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "cases.json").write_text("[" * 200_000)
    result = run("summary", str(tmp_path))
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "no plan of a session" in result.stderr
