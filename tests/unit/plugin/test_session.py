"""The folder of a session, its options and labels, and what is chosen before any case runs."""

import os
from pathlib import Path
from typing import Any

import pytest

from harness.plugin.distribution import points_at_cases
from harness.plugin.options import Options
from harness.plugin.session import case_directories, check_results
from tests.unit.plugin.conftest import Bench


def test_labels_of_the_option_win_over_the_file_and_the_scenario(bench: Bench, workers: str) -> None:
    bench.scenario("good", labels={"a": "scenario", "b": "scenario", "c": "scenario"})
    (bench.path / "labels.yaml").write_text("b: file\nc: file\nn: 3\nyes: no\nexperiment: night\n")
    bench.run(
        workers, "--labels-file", "labels.yaml", "--label", "c=one", "--label", "c=two=2", "--label", "identifier=x"
    )
    properties = bench.junit().properties("good-1proc")
    assert {key[6:]: value for key, value in properties.items() if key.startswith("label.")} == {
        "a": "scenario",
        "b": "file",
        "c": "two=2",
        "n": "3",
        "yes": "no",
        "experiment": "night",
        "identifier": "x",
    }


@pytest.mark.parametrize(
    "content, arguments, text",
    [
        pytest.param(None, ["--labels-file", "l.yaml"], "No such file", id="missing"),
        pytest.param("a: [1", ["--labels-file", "l.yaml"], "l.yaml:", id="malformed"),
        pytest.param(
            "- a\n- b\n", ["--labels-file", "l.yaml"], "expected a mapping of labels, found a list", id="list"
        ),
        pytest.param("a: {b: c}\n", ["--labels-file", "l.yaml"], "label 'a': expected a text or a number", id="nested"),
        pytest.param("a: 1\na: 2\n", ["--labels-file", "l.yaml"], "stands twice", id="twice"),
        pytest.param("a b: 1\n", ["--labels-file", "l.yaml"], "label key 'a b'", id="key-in-file"),
        pytest.param(None, ["--label", "novalue"], "expected a key and a value", id="no-value"),
        pytest.param(None, ["--label", "=x"], "label key ''", id="no-key"),
        pytest.param(None, ["--time-limit", "soon"], "soon", id="time-limit"),
        pytest.param(None, ["--time-limit", "0"], "give more time than none", id="no-time"),
        pytest.param(None, ["--gpus", "-1"], "'-1' is no number of GPUs", id="gpus"),
    ],
)
def test_wrong_options_are_usage_errors_before_launch(
    bench: Bench, content: str | None, arguments: list[str], text: str
) -> None:
    bench.scenario("good")
    if content is not None:
        (bench.path / "l.yaml").write_text(content)
    result = bench.run(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert text in result.stderr.str()
    assert not (bench.path / "results").exists()


def test_two_tests_over_the_same_scenarios_have_folders_of_their_own(bench: Bench, workers: str) -> None:
    bench.scenario("good")
    (bench.folder / "test_finetune.py").write_text(
        "def test_finetune(tuning):\n    tuning.check()\ndef test_other(tuning):\n    tuning.check()\n"
    )
    bench.run(workers).assert_outcomes(passed=2)
    assert sorted(path.parent.name for path in bench.session.glob("*/record.json")) == ["good-1proc", "good-1proc-2"]


def test_case_directories_never_meet() -> None:
    cases = [("n1", "a"), ("n2", "a"), ("n3", "a-2"), ("n4", "a"), ("n5", "b")]
    assert case_directories(cases) == {"n1": "a", "n2": "a-3", "n3": "a-2", "n4": "a-4", "n5": "b"}


def test_results_go_where_asked(bench: Bench, workers: str) -> None:
    bench.scenario("good")
    bench.run(workers, "--results", "elsewhere/deep").assert_outcomes(passed=1)
    assert (bench.path / "elsewhere/deep/latest/good-1proc/record.json").is_file()
    assert not (bench.path / "results").exists()


def test_latest_moves_and_a_folder_of_that_name_stays(bench: Bench) -> None:
    bench.scenario("good")
    bench.run()
    first = bench.session
    bench.run()
    assert bench.session != first
    (bench.path / "results" / "latest").unlink()
    (bench.path / "results" / "latest").mkdir()
    bench.run().assert_outcomes(passed=1)
    assert not (bench.path / "results" / "latest").is_symlink()
    assert not list((bench.path / "results").glob(".latest*"))


def test_collect_only_makes_nothing(bench: Bench) -> None:
    bench.scenario("good")
    result = bench.run("--collect-only")
    result.stdout.fnmatch_lines(["harness: 1 case *"])
    assert not (bench.path / "results").exists()
    assert not (bench.path / "junit.xml").exists()


def test_deselecting_all_cases_makes_nothing(bench: Bench) -> None:
    bench.scenario("good")
    assert bench.run("-k", "nothing").ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert not (bench.path / "results").exists()


def test_scenarios_may_come_from_a_marked_folder(bench: Bench) -> None:
    (bench.folder / "more").mkdir()
    bench.scenario("good")
    (bench.folder / "scenarios" / "good.yaml").rename(bench.folder / "more" / "good.yaml")
    text = 'import pytest\n@pytest.mark.scenarios("more")\ndef test_finetune(tuning):\n    tuning.check()\n'
    (bench.folder / "test_finetune.py").write_text(text)
    bench.run().assert_outcomes(passed=1)


@pytest.mark.parametrize("exists", [True, False])
def test_no_scenarios_at_all_is_a_failure(bench: Bench, exists: bool) -> None:
    if not exists:
        (bench.folder / "scenarios").rmdir()
    bench.run().assert_outcomes(failed=1)


def test_a_bad_file_fails_whatever_fixtures_need_the_case(bench: Bench, workers: str) -> None:
    bench.file("broken.yaml", "name: [")
    (bench.folder / "conftest.py").write_text(
        "import pytest\n@pytest.fixture\ndef mine(tuning_case):\n    return tuning_case.scenario.name\n"
    )
    (bench.folder / "test_finetune.py").write_text("def test_finetune(mine, tuning):\n    tuning.check()\n")
    bench.run(workers).assert_outcomes(failed=1)
    assert bench.junit().outcome("invalid:broken.yaml") == "failure"


@pytest.mark.parametrize(
    "argument, expected",
    [
        ("benchmarks", True),
        ("benchmarks/test_finetune.py", True),
        ("benchmarks/test_finetune.py::test_finetune[a-1proc]", True),
        (".", False),
        ("tests", False),
        ("absent", False),
    ],
)
def test_n_auto_looks_at_the_arguments(tmp_path: Path, argument: str, expected: bool) -> None:
    (tmp_path / "benchmarks" / "scenarios").mkdir(parents=True)
    (tmp_path / "benchmarks" / "scenarios" / "a.yaml").touch()
    (tmp_path / "tests").mkdir()
    assert points_at_cases([argument], tmp_path) is expected


@pytest.mark.parametrize("dist", ["loadgroup", "each"])
def test_distributions_that_would_break_cases_are_refused(bench: Bench, dist: str) -> None:
    bench.scenario("good")
    result = bench.run("-n2", "--dist", dist)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"--dist {dist} cannot run fine-tuning cases" in result.stderr.str()
    assert not list(bench.session.glob("*/record.json"))


@pytest.mark.parametrize("dist", ["loadscope", "loadfile", "worksteal"])
def test_other_distributions_work(bench: Bench, dist: str) -> None:
    bench.scenario("one")
    bench.scenario("two")
    bench.run("-n2", "--dist", dist).assert_outcomes(passed=2)


def test_cases_run_beside_plain_tests(bench: Bench, workers: str) -> None:
    bench.scenario("good")
    (bench.folder / "test_plain.py").write_text(
        "import pytest\n@pytest.mark.parametrize('n', range(5))\ndef test_plain(n):\n    pass\n"
    )
    bench.run(workers).assert_outcomes(passed=6)


def test_it_runs_without_any_configuration(bench: Bench, workers: str) -> None:
    (bench.path / "pyproject.toml").unlink()
    bench.scenario("good")
    bench.run(workers, "-W", "error", "--rootdir=.").assert_outcomes(passed=1)


@pytest.mark.parametrize("plugin", ["junitxml", "terminal", "xdist", "benchmark"])
def test_it_runs_without_other_plugins(bench: Bench, plugin: str) -> None:
    bench.scenario("good")
    # Not through Bench.run: -n is no option without xdist.
    arguments = ["benchmarks", "-p", f"no:{plugin}", "-p", "no:cacheprovider"]
    assert bench.pytester.runpytest_subprocess(*arguments, timeout=60).ret == 0
    assert bench.junit().verdict("good-1proc") == "none"


def test_secrets_in_labels_are_not_written(bench: Bench) -> None:
    secret = "hf_abcdefghijklmnopqrstuvwxyz0123456789"
    bench.scenario("large", gpus=8, labels={"token": secret})
    bench.run("--label", f"other={secret}")
    written = [path for path in bench.path.rglob("*") if path.is_file() and path.suffix in (".json", ".xml")]
    assert written
    assert not [path for path in written if secret in path.read_text()]


@pytest.mark.parametrize("what", ["file", "below-file", "dangling", "device"])
def test_results_that_cannot_be_made_are_a_usage_error(bench: Bench, workers: str, what: str) -> None:
    bench.scenario("good")
    (bench.path / "file").touch()
    (bench.path / "dangling").symlink_to("nowhere")
    place = {"device": "/dev/null", "below-file": "file/deep"}.get(what, what)
    result = bench.run(workers, "--results", place)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"--results {bench.path / place}: " in result.stderr.str()
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()
    assert not (bench.path / "nowhere").exists()


@pytest.mark.slow
def test_workers_without_a_folder_say_it_in_every_case(bench: Bench) -> None:
    bench.scenario("good")
    (bench.path / "results").touch()
    result = bench.run("-n2")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert f"--results {bench.path / 'results'}: it is no folder" in result.stdout.str()
    assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()


def test_a_read_only_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    options = Options(session="s", results=tmp_path / "a" / "b", labels={}, gpus=None, time_limit_s=None)
    with pytest.raises(pytest.UsageError, match=r"a/b: (Permission denied|Read-only file system)"):
        check_results(options)


def test_without_configuration_a_value_of_an_option_moves_nothing(bench: Bench, tmp_path_factory: Any) -> None:
    (bench.path / "pyproject.toml").unlink()
    bench.scenario("good")
    away = tmp_path_factory.mktemp("away")
    bench.run("--results", str(away)).assert_outcomes(passed=1)
    assert bench.junit().verdict("good-1proc") == "none"
    assert not (away.parent / "junit.xml").exists()


@pytest.mark.parametrize("arguments", [[], ["--results", "kept"]])
def test_results_are_never_collected(bench: Bench, arguments: list[str]) -> None:
    bench.scenario("good")
    bench.run(*arguments)
    folder = bench.path / (arguments or ["", "results"])[1]
    for path in (folder / "test_mine.py", next(folder.glob("2*")) / "test_left.py"):
        path.write_text("raise SystemExit\n")
    result = bench.pytester.runpytest_subprocess(".", "-n0", "-p", "no:cacheprovider", *arguments, timeout=60)
    result.assert_outcomes(passed=1)


def test_a_folder_named_results_that_is_somebodys_is_collected(bench: Bench) -> None:
    bench.scenario("good")
    (bench.path / "results").mkdir()
    (bench.path / "results" / "test_mine.py").write_text("def test_mine():\n    pass\n")
    bench.pytester.runpytest_subprocess(".", "-n0", "-p", "no:cacheprovider", timeout=60).assert_outcomes(passed=2)


def test_sessions_of_other_invocations_are_not_collected(bench: Bench) -> None:
    bench.scenario("good")
    bench.run()
    (bench.session / "test_left.py").write_text("raise SystemExit\n")
    arguments = [".", "-n0", "-p", "no:cacheprovider", "--results=elsewhere"]
    bench.pytester.runpytest_subprocess(*arguments, timeout=60).assert_outcomes(passed=1)
