"""Makes a checkpoint, fetches from a hub, writes Parquet: started by path under the interpreter of the stack that is
measured, whose libraries then make what its programs read.

    PYTHON script.py model|snapshot|parquet REQUEST          REQUEST: a JSON object

The last line of its output is a JSON object: what was made, or under `error` the exception as the probe's journals
tell it."""

import contextlib
import importlib
import json
import os
import runpy
import shutil
import sys
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

SHARD = "1GB"  # one at a time is copied when it is written
ROWS_AT_ONCE = 10_000
DTYPE_RENAMED = (4, 56)  # transformers calls it `dtype` from here on, `torch_dtype` before
# Weights for other frameworks and programs, and words about them: no Trainer reads them.
NOT_READ = [
    "*.h5",
    "*.msgpack",
    "*.ot",
    "*.onnx",
    "*.gguf",
    "*.tflite",
    "original/*",
    "onnx/*",
    "*.md",
    ".gitattributes",
]
PICKLED = ["*.bin", "*.pt", "*.pth"]  # the same weights again, where there are safetensors

Answer = dict[str, Any]


def make_model(request: Answer) -> Answer:
    """Random weights of `shape`, initialised by the model's own class, with `tokenizer`'s files, in `folder`.

    Takes the memory of the model and of one shard.  Raises ValueError for a vocabulary smaller than the tokenizer's."""
    import torch
    import transformers

    tokenizer = Path(request["tokenizer"])
    ids = _special_ids(tokenizer)
    config = transformers.AutoConfig.for_model(**{**ids, **request["shape"]})
    _check_vocabulary(config.get_text_config().vocab_size, tokenizer)
    version = tuple(int(part) for part in transformers.__version__.split(".")[:2])
    dtype = {"dtype" if version >= DTYPE_RENAMED else "torch_dtype": getattr(torch, request["dtype"])}
    transformers.set_seed(request["seed"])
    model = transformers.AutoModelForCausalLM.from_config(config, **dtype)
    model.save_pretrained(request["folder"], max_shard_size=SHARD)
    for path in sorted(tokenizer.iterdir()):
        shutil.copyfile(path, Path(request["folder"], path.name))
    return {"parameters": sum(parameter.numel() for parameter in model.parameters())}


def _special_ids(tokenizer: Path) -> dict[str, int]:
    """`pad_token_id` and the like, for the config."""
    told = json.loads((tokenizer / "tokenizer_config.json").read_text(encoding="utf-8"))
    numbers = {token["content"]: int(number) for number, token in told["added_tokens_decoder"].items()}
    return {f"{name}_id": numbers[told[name]] for name in ("pad_token", "bos_token", "eos_token")}


def _check_vocabulary(size: int, tokenizer: Path) -> None:
    needed = len(json.loads((tokenizer / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"])
    if size < needed:
        raise ValueError(f"model.shape.vocab_size: {size} is less than the {needed} tokens of the tokenizer; raise it")


def fetch_snapshot(request: Answer) -> Answer:
    """The repository `id` of `type` (model, dataset) in the user's own cache of the hub, whole; its folder.

    Where the hub does not answer, what the cache has is taken."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.utils import HFValidationError, RepositoryNotFoundError

    where = {"repo_id": request["id"], "repo_type": request["type"]}
    try:
        names = [file.rfilename for file in HfApi().repo_info(**where).siblings or []]
    except (HFValidationError, RepositoryNotFoundError):
        raise
    except Exception as error:
        silent = error
    else:
        return {"folder": snapshot_download(**where, ignore_patterns=_unread(names, request["type"]))}
    folder = _cached(where)
    if folder is None:
        raise silent  # outside of any handler: why it could not be fetched is all there is to tell
    return {"folder": folder}


def _cached(where: "dict[str, str]") -> "str | None":
    """The folder of a repository in the user's cache; None where there is none, or not all of it (as far as is known:
    huggingface_hub 2.x keeps a list of the files and compares)."""
    from huggingface_hub import snapshot_download

    for names in ([], ["model.safetensors"]):
        patterns = _unread(names, where["repo_type"])
        with contextlib.suppress(Exception):
            folder = str(snapshot_download(**where, ignore_patterns=patterns, local_files_only=True))
            if not names or any(Path(folder).glob("*.safetensors")):
                return folder
    return None


def _unread(names: Sequence[str], kind: str) -> "list[str] | None":
    if kind != "model":
        return None
    return NOT_READ + (PICKLED if any(name.endswith(".safetensors") for name in names) else [])


def write_parquet(request: Answer) -> Answer:
    """The rows of the JSON lines `source` as the Parquet file `to`."""
    import pyarrow
    import pyarrow.parquet

    writer, count = None, 0
    with open(request["source"], encoding="utf-8") as file:
        while rows := [json.loads(line) for line in islice(file, ROWS_AT_ONCE)]:
            table = pyarrow.Table.from_pylist(rows, schema=writer.schema if writer else None)
            writer = writer or pyarrow.parquet.ParquetWriter(request["to"], table.schema)
            writer.write_table(table)
            count += len(rows)
    if writer is not None:
        writer.close()
    return {"rows": count}


COMMANDS: "dict[str, Callable[[Answer], Answer]]" = {
    "model": make_model,
    "snapshot": fetch_snapshot,
    "parquet": write_parquet,
}


def main(name: str, request: Answer) -> int:
    """Do as asked and print the answer; 1 when it could not be done."""
    # The probe's folder is that of a package, wherever it lies: the one around it is not this interpreter's.
    runpy.run_path(str(Path(request["probe"], "__main__.py")))["load_package"]()
    _probe("start").die_with_parent()  # the lock of what is made here ends with whoever started this, or with this
    try:
        answer, code = COMMANDS[name](request), 0
    except Exception as error:
        answer, code = {"error": _probe("errors").describe(error, where="main", step=None, phase="assets")}, 1
    print(f"\n{json.dumps(answer)}", flush=True)
    return code


def _probe(name: str) -> Any:
    return importlib.import_module(f"harness_probe.{name}")


if __name__ == "__main__":
    sys.path[:] = [path for path in sys.path if os.path.realpath(path) != os.path.dirname(os.path.realpath(__file__))]
    sys.exit(main(sys.argv[1], json.loads(sys.argv[2])))
