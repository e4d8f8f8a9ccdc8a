"""A run in an Aim repo: made, filled, closed, indexed and read back.  Everything that is known of Aim's inside is here.

Written against Aim 3.29.1.  Any call may raise anything, or never return: the caller runs in a thread that the process
can do without."""

import contextlib
import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.probe.series import Point

OLDEST = (3, 29)
_INDEX_RETRY_S = 0.25


class AimError(Exception):
    """Aim, or its repo, is not fit for use; the text says why and what helps."""


def import_aim(python: str) -> str:
    """Import Aim and return its version; AimError when it is absent or of a version with another interface."""
    try:
        import aim
        from aim.__version__ import __version__ as version
    except ModuleNotFoundError as error:
        missing = "aim is not installed" if error.name == "aim" else f"aim needs {error.name}, which is not installed,"
        raise AimError(
            f"{missing} in {python} (PYTHONPATH and the user's own packages do not count); pip install 'aim>=3.29,<4', "
            "for Python 3.10 to 3.12"
        ) from error
    del aim
    numbers = tuple(int(part) for part in str(version).split(".")[:2] if part.isdigit())
    if not OLDEST <= numbers < (4,):
        raise AimError(f"aim {version} is installed in {python}; needed is aim>=3.29,<4, for Python 3.10 to 3.12")
    return str(version)


def is_remote(name: str) -> bool:
    return "://" in name


def root_of(name: str) -> Path:
    """The folder that holds `.aim`; Aim takes either name."""
    path = Path(name).expanduser().absolute()
    return path.parent if path.name == ".aim" else path


class AimRepo:
    """An opened repo, made where there was none.  To be opened by one process at a time: see `locks`."""

    def __init__(self, name: str) -> None:
        from aim.sdk.repo import Repo

        self.remote = is_remote(name)
        self.name = name if self.remote else str(root_of(name))
        self._repo = Repo.from_path(self.name) if self.remote else self._local(Repo)

    def _local(self, repo: Any) -> Any:
        from aim.sdk.data_version import DATA_VERSION

        folder = Path(self.name, ".aim")
        folder.mkdir(parents=True, exist_ok=True)
        version = repo.get_version(self.name)
        if not (folder / "VERSION").exists() and self._is_begun(folder):
            return repo.from_path(self.name, init=True)
        if version[0] != DATA_VERSION[0]:
            said, known = (".".join(map(str, each)) for each in (version, DATA_VERSION))
            raise AimError(f"the repo has version {said}, this Aim writes {known}: use another repo, or `aim upgrade`")
        return repo.from_path(self.name)

    @staticmethod
    def _is_begun(folder: Path) -> bool:
        """Whether the folder is new, or left by a process that died while it made a repo: it is made (again)."""
        unknown = {entry.name for entry in folder.iterdir()} - {"locks", "meta", "seqs", "run_metadata.sqlite"}
        return not unknown and not any(folder.glob("meta/chunks/*"))

    def open_run(self, run_hash: str, experiment: str | None, name: str, tags: list[str]) -> "AimRun":
        """Make the run; one that is there (the job is forwarded anew) is written over."""
        from aim.sdk.run import Run

        is_there = self._repo.run_exists(run_hash)
        with _naming(run_hash):
            run = Run(
                run_hash=run_hash if is_there else None,
                repo=self._repo,
                experiment=storable(experiment),
                force_resume=is_there,  # a forwarder that was killed has left the run locked
                system_tracking_interval=None,  # it would measure the forwarder
                log_system_params=False,  # it stores the environment, and needs pkg_resources
                capture_terminal_logs=False,
            )
        run.name = storable(name)
        for tag in tags:
            run.add_tag(storable(tag))
        return AimRun(self, run)

    def is_there(self, run_hash: str) -> bool:
        """Whether the run's files are: those of a deleted repo are written to without an error."""
        return self.remote or Path(self.name, ".aim", "meta", "chunks", run_hash).is_dir()

    def pending(self) -> int:
        """Writes that wait in the client's queue for a server; 0 for a local repo."""
        if not self.remote:
            return 0
        queue = self._repo._client.get_queue()._queue
        return int(queue.unfinished_tasks)

    def index(self, run_hash: str) -> None:
        """Copy the run's description into the repo's index, without which a reader of the SDK sees an empty run.

        Waits while another process (`aim up`) holds the index: the process's deadline ends that."""
        if self.remote:
            tree = self._repo.request_tree("meta", run_hash, read_only=True).subtree("meta")
            index = self._repo._get_index_tree("meta", 0).view(())
            tree.subtree("chunks").subtree(run_hash).finalize(index=index)
            return
        from aim.sdk.index_manager import RepoIndexManager

        while True:
            try:
                RepoIndexManager.get_index_manager(self._repo).index(run_hash)
                return
            except Exception as error:
                if type(error).__name__ != "RocksIOError" or "lock" not in str(error).lower():
                    raise
            time.sleep(_INDEX_RETRY_S)

    def read_back(self, run_hash: str) -> tuple[str | None, int]:
        """(job id, number of series) of the run as a reader finds it."""
        from aim.sdk.repo import Repo
        from aim.sdk.run import Run

        # A new object: the one that wrote keeps its own view of the files.  A server is asked through the connection.
        repo = self._repo if self.remote else Repo(self.name)
        run = Run(run_hash, repo=repo, read_only=True)
        described = run.get("benchmark")
        job_id = described.get("job_id") if isinstance(described, dict) else None
        return job_id, sum(1 for _ in run.iter_metrics_info())


class AimRun:
    """The run that is written."""

    def __init__(self, repo: AimRepo, run: Any) -> None:
        self._repo, self._run = repo, run
        self.hash = str(run.hash)
        self.series: set[tuple[str, str]] = set()

    def describe(self, document: dict[str, Any], experiment: str | None) -> None:
        """Replace what stands under `run["benchmark"]`, and the experiment if it is another."""
        self._run["benchmark"] = storable(document)
        if experiment and storable(experiment) != self._run.experiment:
            self._run.experiment = storable(experiment)

    def track(self, point: Point) -> None:
        epoch = None if point.epoch is None else int(point.epoch)  # Aim keeps whole ones
        # `Run.track` would stamp the value with the time of this call; what it calls with that time takes any.
        stamped = getattr(getattr(self._run, "_tracker", None), "_track", None)
        if stamped is not None:
            stamped(point.value, point.t, point.name, point.step, epoch, context=point.context)
        else:
            self._run.track(point.value, name=point.name, step=point.step, epoch=epoch, context=point.context)
        self.series.add((point.name, repr(sorted(point.context.items()))))

    def close(self) -> None:
        self._run.close()
        self._run = None
        gc.collect()  # the files are flushed by the finalizers of what the run held


@contextlib.contextmanager
def _naming(run_hash: str) -> Iterator[None]:
    """Have Aim give the next run this name: it is in the job's files before there is a run."""
    from aim.sdk import base_run

    original = base_run.generate_run_hash
    base_run.generate_run_hash = lambda: run_hash
    try:
        yield
    finally:
        base_run.generate_run_hash = original


def storable(value: Any) -> Any:
    """A copy that Aim can store: it knows integers of 64 bits, text that is UTF-8, and no empty key."""
    if isinstance(value, dict):
        return {storable(str(key)) or "(empty)": storable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [storable(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return str(value)
    return value


def quiet() -> None:
    """Keep Aim from what it does on its own: it must not follow an environment made for other programs."""
    for name in ("__AIM_REPO_NAME__", "__AIM_ENABLE_TRACKING_THREAD__"):
        with contextlib.suppress(KeyError):
            del os.environ[name]
