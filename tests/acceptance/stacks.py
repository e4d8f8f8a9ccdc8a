"""Environments with versions of others: made of files by `harness stack`, once, or lent by a variable."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from harness.attempt import recipe
from harness.cache import MADE, beside
from harness.scenario import StackFiles
from harness.stacks import where
from tests.acceptance.conftest import HARNESS

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class ForeignStack:
    variable: str  # names an interpreter that has the same packages already; otherwise they are installed, in minutes
    requirements: Path
    no_deps: Path | None = None

    @property
    def key(self) -> str:
        """The value of a scenario's `stack`."""
        return f"{{requirements: {self.requirements}{f', no_deps: {self.no_deps}' if self.no_deps else ''}}}"

    def interpreter(self) -> Path:
        if given := os.environ.get(self.variable):
            return Path(given)
        files = [str(self.requirements), *(["--no-deps", str(self.no_deps)] if self.no_deps else [])]
        done = subprocess.run([*HARNESS, "stack", *files], stdout=subprocess.PIPE, text=True, check=True)
        return Path(done.stdout.strip())

    def lend(self, cache: Path) -> Path:
        """Put the environment into a cache of a test's own, where a scenario finds it whose `stack` names the files.

        Returns its interpreter."""
        python = self.interpreter()
        files = StackFiles(requirements=[str(self.requirements)], no_deps=[str(self.no_deps)] if self.no_deps else [])
        folder = where(recipe(files, sys.executable), {"HARNESS_CACHE": str(cache)})
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.symlink_to(python.parents[1])
        beside(folder, MADE).touch()
        return python


EXAMPLES, OLDER = ROOT / "examples" / "stacks", ROOT / "tests" / "stacks"
FMS = ForeignStack("HARNESS_TEST_FMS_PYTHON", EXAMPLES / "fms-hf-tuning.txt", EXAMPLES / "fms-hf-tuning.no-deps.txt")
TRL = ForeignStack("HARNESS_TEST_TRL_PYTHON", EXAMPLES / "trl.txt")
TRANSFORMERS_4_46 = ForeignStack("HARNESS_TEST_TF446_PYTHON", OLDER / "transformers-4.46.txt")
TRANSFORMERS_4_55 = ForeignStack("HARNESS_TEST_TF455_PYTHON", OLDER / "transformers-4.55.txt")
