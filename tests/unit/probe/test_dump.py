"""The dump: all that was tracked, with the error, in one document."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness.probe.dump import document, first_error, write_dump
from harness.probe.layout import JobPaths
from tests.unit import journals
from tests.unit.forward.recorded import append, sample

JOB_ID = "7649af9f-840d-4ff2-a6ee-9a2e34d3a797"
OOM = "CUDA out of memory. Tried to allocate 2.15 GiB."


def launched(root: Path, **fields: Any) -> JobPaths:
    job = JobPaths(root)
    told = {"job_id": JOB_ID, "case_id": "tiny", "labels": {"team": "launch"}, "aim": {"repo": "/runs"}}
    job.root.mkdir(exist_ok=True)
    job.job.write_text(json.dumps(told | fields))
    return job


def sequence(dump: dict[str, Any], name: str, **context: Any) -> dict[str, Any]:
    [found] = [s for s in dump["sequences"] if (s["name"], s["context"]) == (name, context)]
    return {key: value for key, value in found.items() if key not in ("name", "context")}


def test_what_it_holds(tmp_path: Path) -> None:
    job = launched(tmp_path)
    append(
        job.events(0),
        journals.event("labels", labels={"team": "program", "seed": 3}),
        journals.step(1, epoch=0.5),
        journals.step(2, epoch=1.0, loss="NaN"),
        journals.event("log", 3.0, step=2, epoch=1.0, logs={"eval_loss": 4.5}),
    )
    append(job.events(1), journals.step(1))
    append(job.system_journal(), sample(0), sample(1))
    dump = document(job, None)
    assert dump["labels"] == {"team": "launch", "seed": 3}
    assert (dump["run_hash"], dump["repo"]) == ("7649af9f840d4ff2a6ee9a2e", "/runs")
    assert (dump["job_id"], dump["case_id"], dump["job"], dump["error"]) == (JOB_ID, "tiny", str(tmp_path), None)
    assert sequence(dump, "loss", rank=0) == {
        "steps": [1, 2],
        "values": [4.9, None],
        "epochs": [0.5, 1.0],
        "times": [journals.T0 + 1, journals.T0 + 2],
    }
    assert sequence(dump, "loss", rank=1)["epochs"] == [None]
    assert sequence(dump, "eval_loss", rank=0, subset="log")["values"] == [4.5]
    assert sequence(dump, "__system__memory_percent")["values"] == [50.0, 50.0]
    json.dumps(dump, allow_nan=False)


def test_a_job_without_aim_has_no_run(tmp_path: Path) -> None:
    assert document(launched(tmp_path, aim=None), None)["run_hash"] is None


def test_a_run_that_never_was_is_not_named(tmp_path: Path) -> None:
    job = launched(tmp_path)
    job.forwarder.write_text('{"state": "failed"}')
    assert document(job, None)["run_hash"] is None


def test_an_empty_folder(tmp_path: Path) -> None:
    dump = document(JobPaths(tmp_path / "absent"), {"kind": "killed"})
    assert (dump["labels"], dump["sequences"], dump["error"]) == ({}, [], {"kind": "killed"})


@pytest.mark.parametrize(
    "ranks, expected",
    [
        pytest.param([[journals.error("torch.OutOfMemoryError", OOM)]], ("gpu_oom", 0, 3), id="one rank"),
        pytest.param(
            [
                [journals.error("RuntimeError", "[gloo/transport/tcp/pair.cc] Connection closed by peer", t=40.0)],
                [journals.error("torch.OutOfMemoryError", OOM, t=50.0)],
            ],
            ("gpu_oom", 1, 3),
            id="an error about another's end is none of its own",
        ),
        pytest.param(
            [[journals.error("ValueError", "late", t=9.0)], [journals.error("ValueError", "early", t=8.0)]],
            ("user_error", 1, 3),
            id="the first in time",
        ),
        pytest.param([[journals.error("torch.OutOfMemoryError", OOM, t=2.0), journals.step(4)]], None, id="outlived"),
        pytest.param([[journals.error("ValueError", "told", where="log")]], None, id="only logged"),
        pytest.param([[journals.error("builtins.KeyboardInterrupt", "")]], ("killed", 0, 3), id="Ctrl-C"),
        pytest.param([[journals.error("my.Error", "what?")]], ("unknown", 0, 3), id="nobody knows it"),
        pytest.param(
            [
                [
                    journals.error(
                        "my.Error",
                        "wrapped",
                        chain=[{"type": "torch.OutOfMemoryError", "message": OOM, "link": "cause"}],
                    )
                ]
            ],
            ("gpu_oom", 0, 3),
            id="behind another",
        ),
        pytest.param(
            [
                [
                    journals.error(
                        "builtins.ValueError",
                        "cannot train",
                        chain=[{"type": "torch.OutOfMemoryError", "message": OOM, "link": "cause"}],
                    )
                ]
            ],
            ("gpu_oom", 0, 3),
            id="a mistake's type around it",
        ),
        pytest.param([[journals.step(1)]], None, id="none"),
    ],
)
def test_the_error(tmp_path: Path, ranks: list[Any], expected: tuple[str, int, int] | None) -> None:
    job = JobPaths(tmp_path)
    for number, events in enumerate(ranks):
        append(job.events(number), *events, torn='{"e": "exc')
    found = first_error(job)
    assert (found and (found["kind"], found["rank"], found["step"])) == expected


def test_it_is_written_whole_and_for_whom_the_umask_lets(tmp_path: Path) -> None:
    path = tmp_path / "new" / "dump ü.json"
    before = os.umask(0o027)
    try:
        write_dump({"error": None}, path)
        write_dump({"error": "\udcff"}, path)
    finally:
        os.umask(before)
    assert json.loads(path.read_text()) == {"error": "\udcff"}
    assert path.stat().st_mode & 0o777 == 0o640
    assert os.listdir(path.parent) == [path.name]


def test_where_it_cannot_be_written_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_dump({}, tmp_path / "taken")
    assert os.listdir(tmp_path) == ["taken"]
