"""Starts the sampler by path: `python -I harness/sampling/__main__.py`, where sys.path holds only the library."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # At the end: where the harness is installed, this is site-packages, whose modules must not hide the library's.
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    from harness.sampling.sampler import main

    sys.exit(main(sys.argv[1:]))
