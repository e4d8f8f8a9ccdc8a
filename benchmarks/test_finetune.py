"""The benchmarks: one case for each that the files in scenarios/ expand to."""

from harness.plugin import Tuning


def test_finetune(tuning: Tuning) -> None:
    tuning.check()
