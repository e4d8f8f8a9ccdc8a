"""Started by path in every rank: `python -u STAGE/harness_probe/__main__.py JOB_DIR [-m] TARGET ARGS...`.

The package is loaded from this file's folder, without an entry in sys.path: a target must not find its modules."""

import importlib
import importlib.util
import os
import sys
from typing import Any

PACKAGE = "harness_probe"


def load_package() -> Any:
    """Import this file's folder as the package `harness_probe`; returns its `start` module."""
    here = os.path.dirname(os.path.abspath(__file__))
    spec = importlib.util.spec_from_file_location(
        PACKAGE, os.path.join(here, "__init__.py"), submodule_search_locations=[here]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"no probe in {here}")
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)
    return importlib.import_module(f"{PACKAGE}.start")


if __name__ == "__main__":
    load_package().main(sys.argv[1:])
