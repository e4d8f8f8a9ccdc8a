"""Which of model and data a case's program reads from disk, and where they are then."""

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.assets.making import AssetsError, Maker
from harness.record import Asset
from harness.scenario import Scenario, is_hub_id, reads
from harness.scenario.parts import Data, Model

__all__ = ["NOTHING", "Assets", "AssetsError", "prepare"]


@dataclass(frozen=True)
class Assets:
    """What a job gets: `values` by placeholder, `used` for the record."""

    values: Mapping[str, str]
    used: Mapping[str, Asset]  # by model, data
    seconds: float | None  # that it took; None: nothing was to do

    @property
    def offline(self) -> bool:
        """Something was fetched from a hub: every rank is to read what one process has fetched."""
        return any(asset.source == "hub" for asset in self.used.values())


NOTHING = Assets({}, {}, None)


def prepare(
    scenario: Scenario,
    python: str,
    packages: Mapping[str, str],
    environ: Mapping[str, str],
    *,
    limit_s: float | None = None,
    on_wait: Callable[[str], None] | None = None,
) -> Assets:
    """Make or fetch what the scenario's program reads from disk, once for all sessions.

    `python` is the interpreter of the stack, `packages` its versions by name, `environ` the environment of jobs.
    Raises AssetsError, with the verdict."""
    wanted = reads(scenario)
    if not wanted:
        return NOTHING
    began = time.monotonic()
    maker = Maker(python, packages, environ, None if limit_s is None else began + limit_s, on_wait)
    values: dict[str, str] = {}
    used: dict[str, Asset] = {}
    if "model_dir" in wanted and scenario.model is not None:
        used["model"] = _model(scenario, scenario.model, maker)
        values["model_dir"] = used["model"].path
    if "data_file" in wanted and scenario.data is not None:
        used["data"] = _data(scenario.data, maker)
        path = Path(used["data"].path)
        values |= {"data_file": str(path), "data_dir": str(path if path.is_dir() else path.parent)}
    return Assets(values, used, time.monotonic() - began)


def _model(scenario: Scenario, model: Model, maker: Maker) -> Asset:
    if model.path is None:
        seed = scenario.training.get("seed")
        if not isinstance(seed, int):
            seed = scenario.data.seed if scenario.data else 0
        return maker.model(model.name or str((model.shape or {})["model_type"]), model.shape or {}, model.dtype, seed)
    return maker.fetched(model.path, "model") if is_hub_id(model.path) else _local(Path(model.path))


def _data(data: Data, maker: Maker) -> Asset:
    if data.path is None:
        return maker.data(data.model_dump(mode="json"))
    return maker.fetched(data.path, "dataset") if is_hub_id(data.path) else _local(Path(data.path))


def _local(path: Path) -> Asset:
    """What the user has; a folder may be large, so that only a file is hashed."""
    digest = None
    if path.is_file():
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Asset(path=str(path), source="local", sha256=digest)
