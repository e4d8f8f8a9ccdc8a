"""The dump of `harness exec --aim-output-file`: written again when the verdict is known, whatever became of the job."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.probe.dump import document, first_error, usable, write_dump
from harness.probe.layout import JobPaths

if TYPE_CHECKING:
    from harness.record import Record


def make_way(path: Path) -> Path:
    """Make the file's folder; returns the absolute path.  Raises ValueError where a dump cannot be written."""
    try:
        return usable(path)
    except OSError as error:
        raise ValueError(f"--aim-output-file {path}: {error.strerror or error}") from error


def write_output(record: "Record", folder: Path, path: Path) -> None:
    """Write the dump of the record's last attempt.  OSError when that is not possible."""
    last = record.attempts[-1].directory if record.attempts else "not-launched"
    job = JobPaths(folder / last)
    told = document(job, _error(record, job))
    if not record.attempts:
        told |= {"case_id": record.case_id, "labels": record.labels, "job": None}
    write_dump(told, path)


def _error(record: "Record", job: JobPaths) -> dict[str, Any] | None:
    """The verdict, with the type and the text of the exception it rests on, where there was one."""
    verdict = record.verdict
    if verdict is None or verdict.kind == "none":
        return None
    seen = first_error(job) or {}
    same = seen.get("kind") == verdict.kind and seen.get("rank") == verdict.rank
    return {
        "kind": str(verdict.kind),
        "type": seen.get("type") if same else None,
        "message": seen.get("message") if same else verdict.reason,
        "rank": verdict.rank,
        "step": verdict.step,
    }
