"""`harness diagnose`: what it reads, what it prints, and its exit codes."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from harness.cli import app
from harness.cli.diagnose import rank_of
from tests.unit.classify.test_corpus import CASES
from tests.unit.classify.test_logs import CLOSED, OOM, summary, trace


def run(*arguments: str | Path, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["diagnose", *map(str, arguments)], input=stdin)


def document(result: Result) -> dict[str, Any]:
    told = json.loads(result.stdout)
    assert isinstance(told, dict)
    return told


def make_job(folder: Path) -> Path:
    """A job directory of two ranks: rank 1 out of memory, seen in its log alone; rank 0 lost its peer."""
    for rank, error in ((0, CLOSED), (1, OOM)):
        (folder / f"rank-{rank}").mkdir(parents=True)
        (folder / f"rank-{rank}" / "stderr.log").write_text(trace(error))
    (folder / "node-0").mkdir()
    (folder / "node-0" / "launcher.log").write_text(summary((0, -15), (1, 1), closed=(0,)))
    (folder / "job.json").write_text(json.dumps({"world_size": 2, "time_limit_s": 60, "scenario": {}}))
    (folder / "end.json").write_text(json.dumps({"why": "exit", "exit_code": 1}))
    return folder


def test_a_log(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(trace(CLOSED, "[rank0]: ") + trace(OOM, "[rank1]: "))
    result = run(log)
    assert result.exit_code == 0
    assert result.stdout.startswith("gpu_oom: rank 1 asked for 2.15 GiB, 1.03 GiB of 79.25 GiB free\n")
    assert f"{log}:8: torch.OutOfMemoryError: CUDA out of memory." in result.stdout
    assert "set aside:\n  rank 0, nccl, " in result.stdout


def test_as_json(tmp_path: Path) -> None:
    result = run("--json", "-", stdin=trace(OOM, "[rank1]: ").encode())
    told = document(result)
    assert {key: told[key] for key in ("kind", "transient", "root_rank")} == {
        "kind": "gpu_oom",
        "transient": False,
        "root_rank": 1,
    }
    assert told["evidence"][0] == {"file": "stdin", "line": 4, "text": told["evidence"][0]["text"]}
    assert {"reason", "secondary", "hint"} <= set(told)


@pytest.mark.parametrize("case", [False, True], ids=["job", "case"])
def test_a_job_directory_and_a_case(tmp_path: Path, case: bool) -> None:
    if case:
        (tmp_path / "attempt-1").mkdir()
    job = make_job(tmp_path / ("attempt-2" if case else "job"))
    told = document(run("--json", tmp_path if case else job))
    assert (told["kind"], told["root_rank"]) == ("gpu_oom", 1)
    assert told["evidence"][0]["file"] == "rank-1/stderr.log"


def test_the_logs_of_ranks_are_one_job(tmp_path: Path) -> None:
    for rank, error in ((0, CLOSED), (1, OOM)):
        (tmp_path / f"rank{rank}.log").write_text(trace(error))
    assert document(run("--json", tmp_path / "rank0.log", tmp_path / "rank1.log"))["root_rank"] == 1


def test_a_log_folder_of_torchrun_by_its_last_attempt(tmp_path: Path) -> None:
    for attempt, error in ((0, OOM), (1, "KeyError: 'x'")):
        folder = tmp_path / "none_abc" / f"attempt_{attempt}" / "1"
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(trace(error))
    told = document(run("--json", tmp_path))
    assert (told["kind"], told["root_rank"]) == ("user_error", 1)


def test_evidence_as_yaml() -> None:
    told = document(run("--json", CASES[0]))
    assert told["kind"] == "gpu_oom"


def test_an_exit_code_beside_a_log(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("step 1\n")
    assert document(run("--json", "--exit-code", "124", tmp_path / "a.log"))["kind"] == "timeout"
    assert document(run("--json", "--exit-code", "0", tmp_path / "a.log"))["kind"] == "none"


def test_nothing_decides(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("step 1\n")
    result = run(tmp_path / "a.log")
    assert result.exit_code == 1
    assert result.stdout.startswith("unknown: ")


@pytest.mark.parametrize(
    "name, text, told",
    [
        ("absent.log", None, "No such file"),
        ("a.yaml", "[", "correct the YAML"),
        ("a.yaml", "- 1\n", "no mapping named evidence"),
        ("a.yaml", "evidence: {log: x}\n", "unknown field log"),
        ("a.yaml", "evidence: {exit_code: '1'}\n", "exit_code is no whole number"),
        ("a.yaml", "evidence: {stderr_repeat: [{text: '{x}', count: 2}]}\n", "stderr_repeat"),
        (".", None, "holds no job"),
    ],
)
def test_usage(tmp_path: Path, name: str, text: str | None, told: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    result = run(tmp_path / name)
    assert result.exit_code == 2
    assert told in result.stderr
    assert result.stdout == ""


def test_no_path_is_wrong_usage() -> None:
    assert run().exit_code == 2


@pytest.mark.parametrize("as_json", [[], ["--json"]], ids=["text", "json"])
def test_nothing_secret_and_nothing_that_moves_the_cursor(
    tmp_path: Path, as_json: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "topsecretvalue")
    log = tmp_path / "a.log"
    log.write_bytes(trace("ValueError: hf_abcdefghijklmnop topsecretvalue \x1b]0;title\x07 \x08 \x9b2J").encode())
    shown = run(*as_json, log).stdout
    assert "hf_abcdefg" not in shown
    assert "topsecret" not in shown
    assert "[redacted]" in shown
    assert not set(shown) & {"\x1b", "\x07", "\x08", "\x9b"}


@pytest.mark.parametrize(
    "name, rank",
    [
        ("rank-3/stderr.log", 3),
        ("/x/node-0.rank3.log", 3),
        ("rank_12.txt", 12),
        ("/l/none_ab/attempt_0/1/stderr.log", 1),
        ("slurm-123.out", None),
        ("/data/frank3/train.log", None),
    ],
)
def test_the_rank_of_a_file(name: str, rank: int | None) -> None:
    assert rank_of(name) == rank


@pytest.mark.slow
def test_a_log_of_200_megabytes_in_little_memory(tmp_path: Path) -> None:
    script = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "diagnose_cost.py"))
    path = tmp_path / "train.log"
    script["write_log"](path, 200_000_000)
    assert path.stat().st_size >= 200_000_000
    told = document(run("--json", path))
    assert (told["kind"], told["root_rank"]) == ("gpu_oom", 1)
    _, peak = script["diagnose"](path)
    assert peak < 150 * 2**20
