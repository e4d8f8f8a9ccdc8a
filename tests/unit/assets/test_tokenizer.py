"""The tokenizer that is shipped: what trained it makes it again, and its vocabulary fits the smallest model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.assets.making import TOKENIZER
from harness.scenario import MODELS

SCRIPT = Path(__file__).parents[3] / "scripts" / "train_tokenizer.py"


def test_the_script_makes_the_files_that_are_shipped(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    subprocess.run([sys.executable, str(SCRIPT), str(tmp_path)], check=True)
    names = sorted(path.name for path in TOKENIZER.iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == names == ["tokenizer.json", "tokenizer_config.json"]
    for name in names:
        assert (tmp_path / name).read_bytes() == (TOKENIZER / name).read_bytes()


def test_every_model_of_the_catalogue_has_room_for_it() -> None:
    vocabulary = json.loads((TOKENIZER / "tokenizer.json").read_text())["model"]["vocab"]
    assert len(vocabulary) == 512
    assert sorted(vocabulary.values()) == list(range(512))
    assert min(model.shape["vocab_size"] for model in MODELS.values()) == 512


def test_what_transformers_from_4_46_on_reads() -> None:
    config = json.loads((TOKENIZER / "tokenizer_config.json").read_text())
    special = {config[f"{name}_token"] for name in ("pad", "bos", "eos", "unk")} | set(
        config["additional_special_tokens"]
    )
    assert {token["content"] for token in config["added_tokens_decoder"].values()} == special
    added = json.loads((TOKENIZER / "tokenizer.json").read_text())["added_tokens"]
    assert {token["content"]: str(token["id"]) for token in added} == {
        token["content"]: number for number, token in config["added_tokens_decoder"].items()
    }
    assert (config["tokenizer_class"], len(special)) == ("PreTrainedTokenizerFast", 7)
