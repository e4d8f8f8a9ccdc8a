"""Makes checkpoints and data files, and fetches from a hub, each once: under a lock, in the user's cache."""

import errno
import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness.assets import rows, script
from harness.cache import StillBeingMade, cache_root, locked, made_once
from harness.classify import judge_exception
from harness.probe import errors, synthetic
from harness.record import Asset, Kind, Verdict
from harness.scenario import ids
from harness.units import format_bytes

TOKENIZER = Path(__file__).parent / "tokenizer"
PROBE = Path(errors.__file__).parent
HASH_LENGTH = 32  # of the 64 digits: what a folder's name holds
TAIL_LINES = 40
NAME_LENGTH = 80  # what a model_type adds to a folder's name, which a file system limits


class AssetsError(Exception):
    """Model or data cannot be had: the case is not launched."""

    def __init__(self, verdict: Verdict, tail: str = "") -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict
        self.tail = tail  # end of what the program that made them printed


@dataclass(frozen=True)
class Maker:
    """Makes under one stack, within one time limit."""

    python: str  # interpreter of the stack
    packages: Mapping[str, str]
    environ: Mapping[str, str]  # of jobs
    deadline: float | None  # on the monotonic clock
    on_wait: Callable[[str], None] | None = None

    def model(self, name: str, shape: Mapping[str, Any], dtype: str, seed: int) -> Asset:
        """A checkpoint of random weights with the tokenizer beside it."""
        asked = {"shape": dict(shape), "dtype": dtype, "seed": seed}
        versions = {each: self.packages.get(each) for each in ("torch", "transformers", "safetensors")}
        sources = [Path(script.__file__), *sorted(TOKENIZER.iterdir())]
        digest = _digest({**asked, "versions": versions}, sources)

        def make(folder: Path, fd: int) -> None:
            self._tell(f"writing a checkpoint of {name} in {dtype}")
            began = time.monotonic()
            told = self._run("model", {**asked, "folder": str(folder), "tokenizer": str(TOKENIZER)}, fd)
            self._tell(f"{told['parameters']:,} random weights written in {time.monotonic() - began:.0f} s")

        with _judged("writing a checkpoint"):
            folder = made_once(
                self._folder("models", f"{name[:NAME_LENGTH]}-{dtype}", digest), make, self.on_wait, self.deadline
            )
        return Asset(path=str(folder), source="made", sha256=digest)

    def data(self, data: Mapping[str, Any]) -> Asset:
        """A file of synthetic rows."""
        parquet = data["file"] == "parquet"
        asked = {key: data[key] for key in ("format", "file", "samples", "sequence_length", "lengths", "seed")}
        versions = {"pyarrow": self.packages.get("pyarrow")} if parquet else {}
        sources = [Path(rows.__file__), Path(synthetic.__file__), *([Path(script.__file__)] if parquet else [])]
        digest = _digest({**asked, "versions": versions}, sources)

        def make(folder: Path, fd: int) -> None:
            plain = folder / "data.jsonl"
            _check_room(folder, data)
            with plain.open("w", encoding="utf-8") as file:
                for line in rows.lines(data):
                    if self.deadline is not None and time.monotonic() > self.deadline:
                        raise _out_of_time()
                    file.write(line)
            if parquet:
                self._run("parquet", {"source": str(plain), "to": str(folder / "data.parquet")}, fd)
                plain.unlink()

        with _judged("writing synthetic data"):
            folder = made_once(self._folder("data", data["format"], digest), make, self.on_wait, self.deadline)
        return Asset(path=str(folder / f"data.{data['file']}"), source="made", sha256=digest)

    def fetched(self, repository: str, kind: Literal["model", "dataset"]) -> Asset:
        """A repository of the hub, whole, in the user's own cache of it."""
        name = f"{kind}--{repository.replace('/', '--')}"
        with _judged(f"fetching {kind} {repository}"):
            self._tell(f"fetching {kind} {repository}")
            with locked(cache_root(self.environ) / "hub" / ids.safe(name), self.on_wait, self.deadline) as fd:
                folder = self._run("snapshot", {"id": repository, "type": kind}, fd)["folder"]
        return Asset(path=folder, source="hub", sha256=None, revision=Path(folder).name)

    def _folder(self, kind: str, name: str, digest: str) -> Path:
        return cache_root(self.environ) / kind / ids.safe(f"{name}-{digest[:HASH_LENGTH]}")

    def _tell(self, text: str) -> None:
        if self.on_wait is not None:
            self.on_wait(text)

    def _run(self, command: str, request: Mapping[str, Any], fd: int) -> dict[str, Any]:
        """The script's answer.  It holds the lock beside us, and dies with us.  Raises AssetsError."""
        hub = {} if command == "snapshot" else {"HF_HUB_OFFLINE": "1"}
        no_gpu = {"CUDA_VISIBLE_DEVICES": ""}  # none is leased yet
        left_s = None if self.deadline is None else max(0.0, self.deadline - time.monotonic())
        try:
            done = subprocess.run(
                [self.python, script.__file__, command, json.dumps({**request, "probe": str(PROBE)})],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=left_s,
                cwd="/",
                env={**self.environ, **hub, **no_gpu, "PYTHONDONTWRITEBYTECODE": "1"},
                pass_fds=(fd,),
            )
        except subprocess.TimeoutExpired as error:
            raise _out_of_time(tail=_tail(error.stderr)) from None
        told = _last_document(done.stdout)
        if told is None:
            how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
            kind = Kind.KILLED if done.returncode < 0 else Kind.UNKNOWN
            said = f"the program that makes model and data ended with {how} and no answer"
            raise AssetsError(Verdict(kind=kind, reason=said), _tail(done.stderr))
        if "error" in told:
            raise _ScriptError(told["error"], _tail(done.stderr))
        return told


class _ScriptError(Exception):
    """The script has told of an exception."""

    def __init__(self, told: dict[str, Any], tail: str) -> None:
        super().__init__(told.get("message"))
        self.told, self.tail = told, tail


@contextmanager
def _judged(doing: str) -> Iterator[None]:
    """What goes wrong within becomes an AssetsError."""
    try:
        yield
    except AssetsError:
        raise
    except _ScriptError as error:
        tail = "\n".join(part for part in (error.tail, error.told.get("traceback")) if part)
        raise AssetsError(judge_exception(error.told, doing), tail) from None
    except StillBeingMade as error:
        raise _out_of_time(f": {error}") from None
    except (OSError, ValueError, MemoryError) as error:
        told = errors.describe(error, where="main", step=None, phase="assets")
        raise AssetsError(judge_exception(told, doing)) from error


def _out_of_time(more: str = "", *, tail: str = "") -> AssetsError:
    said = f"the time limit was reached before model and data were there{more}"
    return AssetsError(Verdict(kind=Kind.TIMEOUT, reason=said), tail)


def _check_room(folder: Path, data: Mapping[str, Any]) -> None:
    """Raises OSError where the rows cannot fit: what fills a disk to its end fails others, too."""
    least, free = rows.least_bytes(data), shutil.disk_usage(folder).free
    if least > free:
        said = f"{os.strerror(errno.ENOSPC)}: {format_bytes(least)} of rows or more, {format_bytes(free)} free"
        raise OSError(errno.ENOSPC, said, str(folder.parent))


def _digest(asked: Mapping[str, Any], sources: list[Path]) -> str:
    """SHA-256 of all that a folder's contents follow from."""
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode())
    for path in sources:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _last_document(output: bytes) -> dict[str, Any] | None:
    lines = output.decode("utf-8", errors="replace").splitlines()
    try:
        told = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


def _tail(output: bytes | None) -> str:
    return "\n".join((output or b"").decode("utf-8", errors="replace").splitlines()[-TAIL_LINES:])
