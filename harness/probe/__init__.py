"""Runs inside the training processes: standard library only, Python 3.10 on, staged into the job directory.

Nothing here imports the rest of the harness; what both sides need (event names, file names, redaction) is defined here
and imported from above."""
