"""Starts the forwarder by path: `PYTHON -I harness/forward/__main__.py JOB_DIR`, with the repo in HARNESS_AIM_REPO."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # Only while the harness's own modules are imported: where it is installed, this is its site-packages, and an Aim in
    # there (for another Python, maybe) must not be taken for one of the interpreter that runs here.
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    from harness.forward.process import main

    sys.path.pop()
    main(sys.argv[1:])
