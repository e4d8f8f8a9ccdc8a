"""Repositories of a hub, fetched by the stack's huggingface_hub from one on this machine; and what goes wrong there."""

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.assets.making import AssetsError, Maker
from harness.record import Kind
from tests.fake_hub import COMMIT, FakeHub

pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.slow

FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"the same weights",
    "tf_model.h5": b"the same weights",
    "original/params.json": b"{}",
}


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    data = {"data/train.jsonl": b'{"text": "ba"}\n', "README.md": b"rows"}
    pickled = {"config.json": b"{}", "pytorch_model.bin": b"weights"}
    repositories = {"models/org/model": FILES, "models/org/old": pickled, "datasets/org/rows": data}
    with FakeHub.open(repositories) as hub:
        yield hub


def maker(tmp_path: Path, url: str, **environ: str) -> Maker:
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    home = {"HF_HOME": str(tmp_path / "hf"), "HARNESS_CACHE": str(tmp_path / "cache"), "HF_ENDPOINT": url}
    told = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_XET": "1"}
    return Maker(sys.executable, {}, {**surroundings, **home, **told, **environ}, None)


def test_a_model_is_fetched_once_without_what_nobody_reads(tmp_path: Path, hub: FakeHub) -> None:
    asset = maker(tmp_path, hub.url).fetched("org/model", "model")
    assert (asset.source, asset.revision, asset.sha256) == ("hub", COMMIT, None)
    folder = Path(asset.path)
    assert folder.is_relative_to(tmp_path / "hf")  # the user's own cache
    assert sorted(path.name for path in folder.rglob("*")) == ["config.json", "model.safetensors"]
    assert (folder / "model.safetensors").read_bytes() == b"weights"
    hub.asked.clear()
    assert maker(tmp_path, hub.url).fetched("org/model", "model") == asset
    assert hub.fetched() == []


def test_pickled_weights_are_fetched_where_there_are_no_others(tmp_path: Path, hub: FakeHub) -> None:
    folder = Path(maker(tmp_path, hub.url).fetched("org/old", "model").path)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "pytorch_model.bin"]


def test_a_dataset_is_fetched_whole(tmp_path: Path, hub: FakeHub) -> None:
    folder = Path(maker(tmp_path, hub.url).fetched("org/rows", "dataset").path)
    assert (folder / "data" / "train.jsonl").read_bytes() == b'{"text": "ba"}\n'
    assert (folder / "README.md").is_file()


@pytest.mark.parametrize("how", ["closed", "offline", "overloaded"])
def test_what_was_fetched_before_serves_where_the_hub_does_not_answer(tmp_path: Path, hub: FakeHub, how: str) -> None:
    asset = maker(tmp_path, hub.url).fetched("org/model", "model")
    hub.asked.clear()
    if how == "overloaded":
        hub.answers["/api/"] = (429, None)
    url = closed_port() if how == "closed" else hub.url
    again = maker(tmp_path, url, **({"HF_HUB_OFFLINE": "1"} if how == "offline" else {})).fetched("org/model", "model")
    assert again == asset
    assert hub.fetched() == []


@pytest.mark.parametrize(
    "repository, answers, kind, transient, reason",
    [
        pytest.param("org/nothing", {}, Kind.NETWORK, False, "fetching model org/nothing: ", id="404"),
        pytest.param("org/model", {"/api/": (429, None)}, Kind.NETWORK, True, "429", id="429"),
        pytest.param("org/model", {"/api/": (503, None)}, Kind.NETWORK, True, "503", id="503"),
        pytest.param("org/model", {"/resolve/": (403, "GatedRepo")}, Kind.USER_ERROR, False, "gated", id="gated"),
        pytest.param("no such id/", {}, Kind.USER_ERROR, False, "no such id", id="no-id"),
    ],
)
def test_what_goes_wrong_is_classified(
    tmp_path: Path,
    hub: FakeHub,
    repository: str,
    answers: dict[str, tuple[int, str | None]],
    kind: Kind,
    transient: bool,
    reason: str,
) -> None:
    hub.answers |= answers
    with pytest.raises(AssetsError) as raised:
        maker(tmp_path, hub.url).fetched(repository, "model")
    verdict = raised.value.verdict
    assert (verdict.kind, verdict.transient) == (kind, transient), verdict.reason
    assert reason in verdict.reason
    assert "\n" not in verdict.reason


def test_a_hub_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(AssetsError) as raised:
        maker(tmp_path, closed_port()).fetched("org/model", "model")
    verdict = raised.value.verdict
    assert (verdict.kind, verdict.transient) == (Kind.NETWORK, True), verdict.reason
    assert "fetching model org/model: " in verdict.reason


def test_a_hub_that_may_not_be_asked(tmp_path: Path, hub: FakeHub) -> None:
    with pytest.raises(AssetsError) as raised:
        maker(tmp_path, hub.url, HF_HUB_OFFLINE="1").fetched("org/model", "model")
    verdict = raised.value.verdict
    assert (verdict.kind, verdict.transient) == (Kind.NETWORK, False), verdict.reason
    assert hub.asked == []


def closed_port() -> str:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{server.getsockname()[1]}"
