"""Fakes that the tests share."""

import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

FAKES = Path(__file__).parent / "fakes"

# Ignored under nohup, or where a shell started this in the background, and then by every child: what a test ends by
# them would not end.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True)
class FakeNvml:
    """A compiled libnvidia-ml.so.1 whose GPUs follow a script; `fakes/fake_nvml.c` says what a script may hold.

    The library is found when a process starts: use it in child processes."""

    folder: Path

    def environ(self, count: int, script: Path | None = None) -> dict[str, str]:
        """This process's environment, with `count` GPUs that read as `script` says, and no CUDA_VISIBLE_DEVICES."""
        environ: Mapping[str, str] = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
        path = os.pathsep.join([str(self.folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
        fake = {"LD_LIBRARY_PATH": path, "FAKE_NVML_COUNT": str(count)}
        return {**environ, **fake, **({"FAKE_NVML_SCRIPT": str(script)} if script else {})}


@pytest.fixture(scope="session")
def fake_nvml(tmp_path_factory: pytest.TempPathFactory) -> FakeNvml:
    folder = tmp_path_factory.mktemp("nvml")
    library = folder / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-Wl,-soname,libnvidia-ml.so.1"]
    subprocess.run(["gcc", *flags, "-o", str(library), str(FAKES / "fake_nvml.c"), "-lm"], check=True)
    return FakeNvml(folder)
