"""What a case's program reads from disk, and what is used as it is."""

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.assets import NOTHING, prepare
from harness.record import Asset
from harness.scenario import Data, Model, Scenario, Trainer

SHAPE = {"model_type": "llama"}
ROWS = Data(samples=2, seed=5, format="text", file="jsonl")


def scenario(trainer: dict[str, Any] | None, **fields: Any) -> Scenario:
    return Scenario(name="n", processes=1, trainer=Trainer(**(trainer or {})), **fields)


def script(*args: str) -> dict[str, Any]:
    return {"kind": "script", "target": "train.py", "args": list(args)}


def test_nothing_is_made_where_nothing_is_wanted(tmp_path: Path) -> None:
    environ = {"HARNESS_CACHE": str(tmp_path / "cache")}
    assert prepare(scenario(script()), "/no/such/python", {}, environ) is NOTHING
    assert not (tmp_path / "cache").exists()
    assert NOTHING.offline is False


def test_what_is_there_is_passed_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "rows.jsonl").write_text("{}\n")
    made = prepare(
        scenario(
            script("{model_dir}", "{data_file}"),
            model=Model(path=str(tmp_path / "model")),
            data=Data(path=str(tmp_path / "rows.jsonl")),
        ),
        "/no/such/python",
        {},
        {"HARNESS_CACHE": str(tmp_path / "cache")},
    )
    assert made.values == {
        "model_dir": str(tmp_path / "model"),
        "data_file": str(tmp_path / "rows.jsonl"),
        "data_dir": str(tmp_path),
    }
    digest = hashlib.sha256(b"{}\n").hexdigest()
    assert made.used == {
        "model": Asset(path=str(tmp_path / "model"), source="local", sha256=None),
        "data": Asset(path=str(tmp_path / "rows.jsonl"), source="local", sha256=digest),
    }
    assert not made.offline
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "training, data, seed",
    [({}, None, 0), ({}, ROWS, 5), ({"seed": 7}, ROWS, 7)],
)
def test_the_seed_of_the_weights(tmp_path: Path, training: dict[str, Any], data: Data | None, seed: int) -> None:
    python = tmp_path / "python"
    python.write_text(f"""#!/bin/sh\necho "$3" > {tmp_path}/request\necho '{{"parameters": 1}}'\n""")
    python.chmod(0o700)
    args = ["{model_dir}", *(["{data_file}"] if data else []), "{training}"]
    asked = scenario(script(*args), model=Model(shape=SHAPE), training=training, data=data)
    prepare(asked, str(python), {}, {**os.environ, "HARNESS_CACHE": str(tmp_path / "cache")})
    assert f'"seed": {seed},' in (tmp_path / "request").read_text()


def test_synthetic_data_goes_to_the_placeholder(tmp_path: Path) -> None:
    data = Data(samples=3, sequence_length=8, format="preference", file="jsonl")
    environ = {**os.environ, "HARNESS_CACHE": str(tmp_path)}
    made = prepare(scenario(script("{data_dir}"), data=data), sys.executable, {}, environ)
    file = Path(made.values["data_file"])
    assert len(file.read_text().splitlines()) == 3
    assert list(Path(made.values["data_dir"]).iterdir()) == [file]
    assert made.seconds is not None
    assert (list(made.used), made.used["data"].source) == (["data"], "made")
