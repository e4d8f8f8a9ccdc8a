"""A pytest-based harness that benchmarks the fine-tuning of language models."""

__version__ = "0.1.0"
