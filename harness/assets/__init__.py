"""Models and data for programs that read them from disk: made once, fetched once, before anything is leased."""

from harness.assets.prepare import NOTHING, Assets, AssetsError, prepare

__all__ = ["NOTHING", "Assets", "AssetsError", "prepare"]
