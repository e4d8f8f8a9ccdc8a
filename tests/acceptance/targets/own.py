"""`steps.py` with the tagging callback added by hand: `own.py REPO [STEPS [GATE]]`; REPO `-` is none."""

import sys

from harness.probe import BenchmarkAimCallback

REPO = sys.argv.pop(1)

import steps  # type: ignore[import-not-found]  # noqa: E402  # it reads what is left of the command line

if __name__ == "__main__":
    callback = BenchmarkAimCallback({"team": "own", "seed": 7}, output_file="out/dump.json", repo=REPO != "-" and REPO)
    steps.main(callback)
    print(callback.run_hash, callback.repo)
