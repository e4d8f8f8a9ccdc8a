"""Prints what it was told in confidence, then fails with it."""

import os
import sys

print("token", os.environ["HF_TOKEN"], sys.argv)
raise ValueError(f"cannot log in with {os.environ['HF_TOKEN']} at {sys.argv[-1]} ({os.environ['PLAIN']})")
