"""Checkpoints and data files: what is in them, that they are made once, and what becomes of a maker that fails."""

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.assets import script
from harness.assets.making import TOKENIZER, AssetsError, Maker
from harness.cache import locked
from harness.record import Kind
from harness.scenario import MODELS

SHAPE = {**MODELS["tiny-llama"].shape, "num_hidden_layers": 1}
DATA = {"format": "text", "file": "jsonl", "samples": 20, "sequence_length": 16, "lengths": "fixed", "seed": 0}


def maker(tmp_path: Path, python: str = sys.executable, deadline: float | None = None, **environ: str) -> Maker:
    surroundings = {**os.environ, "HARNESS_CACHE": str(tmp_path / "cache"), **environ}
    return Maker(python, {"transformers": "1"}, surroundings, deadline)


def interpreter(tmp_path: Path, text: str) -> str:
    """A stack's interpreter that does as the text of a shell script says."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return str(path)


def test_data_is_made_once(tmp_path: Path) -> None:
    asset = maker(tmp_path).data(DATA)
    path = Path(asset.path)
    assert path.parent.parent == tmp_path / "cache" / "data"
    assert asset.sha256 is not None
    assert path.parent.name == f"text-{asset.sha256[:32]}"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert (len(rows), {len(row["text"].split()) for row in rows}) == (20, {16})
    path.write_text("mine")
    assert maker(tmp_path).data(DATA) == asset
    assert path.read_text() == "mine"


@pytest.mark.parametrize(
    "field, value", [("format", "messages"), ("samples", 21), ("sequence_length", 17), ("seed", 1)]
)
def test_other_data_is_another_file(tmp_path: Path, field: str, value: Any) -> None:
    assert maker(tmp_path).data({**DATA, field: value}).path != maker(tmp_path).data(DATA).path


def test_parquet_holds_the_rows_of_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(script, "ROWS_AT_ONCE", 7)
    data = {**DATA, "format": "messages"}
    plain = maker(tmp_path).data(data)
    assert script.write_parquet({"source": plain.path, "to": str(tmp_path / "rows.parquet")}) == {"rows": 20}
    rows = [json.loads(line) for line in Path(plain.path).read_text().splitlines()]
    assert parquet.read_table(tmp_path / "rows.parquet").to_pylist() == rows


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    with files_of_at_most(4096), pytest.raises(AssetsError) as raised:
        maker(tmp_path).data({**DATA, "samples": 1000})
    assert raised.value.verdict.kind is Kind.DISK_FULL
    assert "writing synthetic data" in raised.value.verdict.reason
    assert [path for path in (tmp_path / "cache" / "data").iterdir() if path.suffix != ".lock"] == []


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(AssetsError) as raised:
        maker(tmp_path).data(DATA)
    assert raised.value.verdict.kind is Kind.USER_ERROR
    assert str(tmp_path / "cache") in raised.value.verdict.reason


@pytest.mark.parametrize(
    "does, kind, transient, reason",
    [
        pytest.param("kill -9 $$", Kind.KILLED, None, "ended with signal 9 and no answer", id="killed"),
        pytest.param("echo out; echo why >&2; exit 3", Kind.UNKNOWN, None, "ended with exit code 3", id="no-answer"),
        pytest.param(
            """echo '{"error": {"type": "builtins.OSError", "message": "[Errno 28] No space left on device"}}'""",
            Kind.DISK_FULL,
            False,
            "writing a checkpoint: ",
            id="disk-full",
        ),
        pytest.param(
            """echo '{"error": {"type": "builtins.ValueError", "message": "vocab_size: 9 is small"}}'""",
            Kind.USER_ERROR,
            False,
            "writing a checkpoint: ValueError: vocab_size: 9 is small",
            id="refused",
        ),
    ],
)
def test_a_maker_that_fails(tmp_path: Path, does: str, kind: Kind, transient: bool | None, reason: str) -> None:
    with pytest.raises(AssetsError) as raised:
        maker(tmp_path, interpreter(tmp_path, does)).model("m", SHAPE, "float32", 0)
    assert raised.value.verdict.kind is kind
    assert reason in raised.value.verdict.reason
    assert "why" in raised.value.tail or kind is not Kind.UNKNOWN
    assert list((tmp_path / "cache" / "models").glob("[!.]*")) == []


def test_the_time_limit_of_the_case_holds(tmp_path: Path) -> None:
    with pytest.raises(AssetsError) as raised:
        maker(tmp_path, interpreter(tmp_path, "exec sleep 300"), deadline=0.0).model("m", SHAPE, "float32", 0)
    assert raised.value.verdict.kind is Kind.TIMEOUT


def test_the_time_limit_of_the_case_holds_for_rows_too(tmp_path: Path) -> None:
    with pytest.raises(AssetsError) as raised:
        maker(tmp_path, deadline=time.monotonic() + 0.2).data({**DATA, "samples": 2_000_000})
    assert raised.value.verdict.kind is Kind.TIMEOUT
    assert list((tmp_path / "cache" / "data").glob("[!.]*")) == []


def test_the_time_limit_of_the_case_holds_while_somebody_else_makes_it(tmp_path: Path) -> None:
    made = Path(maker(tmp_path).data(DATA).path).parent
    shutil.rmtree(made)
    with locked(made), pytest.raises(AssetsError) as raised:
        maker(tmp_path, deadline=0.0).data(DATA)
    assert raised.value.verdict.kind is Kind.TIMEOUT
    assert "is still being made by another process" in raised.value.verdict.reason


def test_rows_that_no_disk_holds_are_refused_before_one_is_written(tmp_path: Path) -> None:
    lengths = {"distribution": "uniform", "min": 16_000_000, "max": 16_777_216, "mean": None, "std": None}
    for asked in ({}, {"lengths": lengths}):
        with pytest.raises(AssetsError) as raised:
            maker(tmp_path).data({**DATA, "samples": 100_000_000, "sequence_length": 16_777_216, **asked})
        assert raised.value.verdict.kind is Kind.DISK_FULL
        assert " of rows or more, " in raised.value.verdict.reason


def test_a_long_type_of_model_makes_no_name_that_a_disk_refuses(tmp_path: Path) -> None:
    python = interpreter(tmp_path, """echo '{"parameters": 1}'""")
    made = maker(tmp_path, python).model("q" * 300, SHAPE, "float32", 0)
    assert Path(made.path).is_dir()


def test_a_stack_without_the_library_needs_nothing_else_to_say_so(tmp_path: Path) -> None:
    python = interpreter(tmp_path, f'exec {sys.executable} -I -S "$@"')
    with pytest.raises(AssetsError) as raised:
        maker(tmp_path, python).model("m", SHAPE, "float32", 0)
    assert raised.value.verdict.kind is Kind.USER_ERROR
    assert "No module named 'torch'" in raised.value.verdict.reason


def test_the_maker_sees_no_gpu_and_no_hub(tmp_path: Path) -> None:
    python = interpreter(tmp_path, f'env > {tmp_path}/seen; echo "{{\\"parameters\\": 1}}"')
    maker(tmp_path, python, CUDA_VISIBLE_DEVICES="0", MINE="1").model("m", SHAPE, "float32", 0)
    seen = dict(line.partition("=")[::2] for line in (tmp_path / "seen").read_text().splitlines())
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["HF_HUB_OFFLINE"], seen["MINE"]) == ("", "1", "1")


def test_a_name_cannot_leave_the_cache(tmp_path: Path) -> None:
    python = interpreter(tmp_path, """echo '{"parameters": 1}'""")
    made = maker(tmp_path, python).model("../../x", SHAPE, "float32", 0)
    assert Path(made.path).parent == tmp_path / "cache" / "models"


def request(folder: Path, **fields: Any) -> dict[str, Any]:
    folder.mkdir()
    asked = {"shape": SHAPE, "dtype": "float32", "seed": 0, "tokenizer": str(TOKENIZER), "folder": str(folder)}
    return {**asked, **fields}


@pytest.mark.slow
def test_a_checkpoint_is_what_the_models_class_makes(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    told = script.make_model(request(tmp_path / "a", dtype="bfloat16"))
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "a")
    assert told["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert {str(parameter.dtype) for parameter in model.parameters()} == {"torch.bfloat16"}
    weights = model.model.embed_tokens.weight[1:].float()
    assert float(weights.detach().std()) == pytest.approx(model.config.initializer_range, rel=0.02)
    assert bool((model.model.norm.weight == 1).all())
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "a")
    names = ("pad_token_id", "bos_token_id", "eos_token_id")
    assert [getattr(tokenizer, name) for name in names] == [getattr(model.config, name) for name in names] == [0, 1, 2]
    assert sorted(tokenizer("ba be")) == ["attention_mask", "input_ids"]
    chat = [{"role": "user", "content": "ba"}, {"role": "assistant", "content": "be bi"}]
    assert tokenizer.apply_chat_template(chat, tokenize=False) == "<|user|>ba</s><|assistant|>be bi</s>"
    masked = tokenizer.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
    assert masked["assistant_masks"] == [0, 0, 0, 0, 1, 1, 1]


@pytest.mark.slow
def test_a_checkpoint_follows_from_its_seed_and_shards_hold_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        script.make_model(request(tmp_path / name, seed=seed))
    weights = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in "abc"}
    assert weights["a"] == weights["b"] != weights["c"]
    monkeypatch.setattr(script, "SHARD", "100KB")
    script.make_model(request(tmp_path / "sharded"))
    assert len(list((tmp_path / "sharded").glob("model-*.safetensors"))) > 1
    whole, sharded = (
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict() for name in ("a", "sharded")
    )
    assert all(torch.equal(whole[name], sharded[name]) for name in whole)


@pytest.mark.slow
def test_a_vocabulary_without_room_for_the_tokenizer_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(AssetsError) as raised:
        maker(tmp_path).model("small", {**SHAPE, "vocab_size": 511}, "float32", 0)
    assert raised.value.verdict.kind is Kind.USER_ERROR
    assert "vocab_size: 511 is less than the 512 tokens of the tokenizer" in raised.value.verdict.reason
    assert "check_vocabulary" in raised.value.tail


KILLED = """
import json, os, sys
from harness.assets.making import Maker
Maker(sys.executable, {"transformers": "1"}, os.environ, None).model("m", json.loads(sys.argv[1]), "float32", 0)
"""


def maker_below(process: psutil.Process) -> psutil.Process:
    """The script that a process has started, once it has come to load torch."""
    while process.is_running():
        for child in process.children():
            with contextlib.suppress(psutil.Error):
                if any("libtorch" in each.path for each in child.memory_maps()):
                    return child
        time.sleep(0.02)
    raise AssertionError("the maker has ended")


@pytest.mark.slow
def test_a_session_that_is_killed_leaves_no_maker_and_no_half_checkpoint(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    environ = {**os.environ, "HARNESS_CACHE": str(tmp_path / "cache")}
    session = subprocess.Popen([sys.executable, "-c", KILLED, json.dumps(SHAPE)], env=environ)
    below = maker_below(psutil.Process(session.pid))
    session.kill()
    session.communicate()
    below.wait(timeout=60)
    models = tmp_path / "cache" / "models"
    assert [path.name for path in models.iterdir() if path.name.startswith("m-")] == []
    made = Path(maker(tmp_path).model("m", SHAPE, "float32", 0).path)
    assert sorted(path.name for path in models.iterdir()) == sorted([made.name, f".{made.name}.lock"])
    assert (made / "model.safetensors").is_file()
