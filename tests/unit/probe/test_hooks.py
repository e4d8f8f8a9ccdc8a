"""The import hook among other finders, the optimizer that leads, and the staged package by itself."""

import gc
import importlib
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.probe import hooks
from harness.probe.hooks import OptimizerSeries, PatchFinder
from harness.probe.journal import EVENTS
from harness.probe.layout import JobPaths
from harness.probe.measure import Meter
from harness.probe.staging import digest, sources, stage
from tests.unit.probe.jobs import OTHERS, run


def events(meter: Meter) -> list[dict[str, Any]]:
    return [json.loads(line) for line in meter.job.events(0).read_text().splitlines()]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "probe_victim.py").write_text("import probe_friend\nVALUE = 1\n")
    (folder / "probe_friend.py").write_text("")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    yield "probe_victim"
    for name in ("probe_victim", "probe_friend"):
        sys.modules.pop(name, None)


def test_a_module_is_patched_after_it_ran_and_its_loader_stays(meter: Meter, module: str) -> None:
    seen = []
    sys.meta_path.insert(0, PatchFinder({module: lambda m, _: seen.append(m.VALUE)}, meter))
    victim = importlib.import_module(module)
    assert seen == [1]
    assert type(victim.__loader__).__name__ == "SourceFileLoader"
    assert "exec_module" not in vars(victim.__loader__)
    importlib.reload(victim)
    assert seen == [1, 1]


def test_another_finder_that_wraps_ours(meter: Meter, module: str) -> None:
    class Wrapping(importlib.abc.MetaPathFinder):
        busy = False

        def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
            if fullname != module or self.busy:
                return None
            self.busy = True
            try:
                return importlib.util.find_spec(fullname)
            finally:
                self.busy = False

    seen = []
    sys.meta_path.insert(0, PatchFinder({module: lambda m, _: seen.append(m.VALUE)}, meter))
    sys.meta_path.insert(0, Wrapping())
    importlib.import_module(module)
    assert seen == [1]


def test_a_patch_that_fails_is_told_and_harms_nobody(meter: Meter, module: str) -> None:
    sys.meta_path.insert(0, PatchFinder({module: lambda m, _: m.ABSENT}, meter))
    assert importlib.import_module(module).VALUE == 1
    assert [e["where"] for e in events(meter) if e["e"] == "probe_error"] == [f"patch {module}"]


def test_a_hook_that_fails_in_every_step_does_not_fill_the_journal(meter: Meter) -> None:
    for _ in range(100):
        with meter.guard("somewhere"):
            raise ValueError("x")
    assert len(events(meter)) == 5


def test_interrupts_pass_the_guard(meter: Meter) -> None:
    with pytest.raises(KeyboardInterrupt), meter.guard("somewhere"):
        raise KeyboardInterrupt


class Optimizer:
    pass


def lead(*order: Optimizer) -> list[int | None]:
    series = OptimizerSeries()
    return [series.stepped(optimizer)[0] for optimizer in order]


def test_optimizers_in_turn_make_one_series() -> None:
    a, b = Optimizer(), Optimizer()
    assert lead(a, a, a) == [1, 2, 3]
    assert lead(a, b, a, b, a, b) == [1, None, 2, None, 3, None]
    assert lead(a, a, b, b, b) == [1, 2, None, 1, 2]


def test_an_optimizer_follows_one_that_is_gone() -> None:
    series = OptimizerSeries()
    first = Optimizer()
    assert series.stepped(first) == (1, False)
    del first
    gc.collect()
    assert series.stepped(Optimizer()) == (1, True)


def test_logged_exceptions_are_kept_and_records_stay_as_they_were(
    meter: Meter, caplog: pytest.LogCaptureFixture
) -> None:
    before = logging.getLogRecordFactory()
    hooks.watch_log(meter)
    try:
        try:
            raise OSError("gone")
        except OSError:
            logging.getLogger("x").warning("not an error")
            logging.getLogger("x").error("failed: %s", 1)
        logging.getLogger("x").error("no exception at hand")
    finally:
        logging.setLogRecordFactory(before)
    assert [(e["type"], e["where"]) for e in events(meter) if e["e"] == "exception"] == [("builtins.OSError", "log")]
    assert [record.getMessage() for record in caplog.records][:2] == ["not an error", "failed: 1"]


def test_staging_copies_the_probe_and_nothing_else(tmp_path: Path) -> None:
    job = JobPaths(tmp_path)
    assert stage(job) == digest(job.probe) == stage(job)
    assert sorted(p.name for p in job.probe.iterdir()) == [p.name for p in sources()]
    assert not job.site.exists()
    assert stage(job, every_python=True) == digest(job.probe)
    [hook] = job.site.iterdir()
    assert (hook.name, hook.read_bytes()) == ("sitecustomize.py", (job.probe / "site_hook.py").read_bytes())


@pytest.mark.parametrize("python", [sys.executable, *OTHERS])
def test_the_staged_package_needs_the_standard_library_alone(tmp_path: Path, python: str) -> None:
    job = JobPaths(tmp_path)
    stage(job)
    names = sorted(p.stem for p in sources() if p.stem not in ("__main__", "__init__", "callback"))
    code = f"import sys; sys.path.insert(0, {str(job.probe.parent)!r})\n" + "".join(
        f"import harness_probe.{name}\n" for name in names
    )
    subprocess.run([python, "-I", "-S", "-W", "error", "-c", code], check=True)


def test_every_event_that_is_written_has_the_fields_of_the_table(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("raise ValueError('no')\n")
    ended = run(tmp_path / "job", str(program))
    for event in ended.events():
        assert set(event) == {"t", "m", "e", *EVENTS[event["e"]]}, event["e"]
    error = ended.error()
    assert error is not None
    assert set(error) == {"t", "rank", *EVENTS["exception"]}
    assert (ended.one("end")["exit_code"], error["where"], error["phase"]) == (1, "main", "import")


def test_files_of_a_rank_are_private(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("print('x'); raise SystemExit('no')\n")
    ended = run(tmp_path / "job", str(program))
    folder = ended.job.rank(0)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {p.stat().st_mode & 0o777 for p in folder.iterdir()} == {0o600}
    error = ended.error()
    assert error is not None
    assert (error["type"], error["message"], error["exit_code"]) == ("builtins.SystemExit", "no", 1)


@pytest.mark.parametrize(
    "code, kept", [("raise SystemExit(0)", False), ("raise KeyboardInterrupt", False), ("1/0", True)]
)
def test_only_a_bad_end_leaves_an_error(tmp_path: Path, code: str, kept: bool) -> None:
    program = tmp_path / "program.py"
    program.write_text(code + "\n")
    assert (run(tmp_path / "job", str(program)).error() is not None) is kept


def test_a_file_that_is_not_there_is_journalled(tmp_path: Path) -> None:
    ended = run(tmp_path / "job", "missing.py")
    error = ended.error()
    assert ended.exit_code == 2
    assert error is not None
    assert (error["type"], error["where"], error["exit_code"]) == ("builtins.FileNotFoundError", "exit", 2)


def test_a_forked_child_writes_no_journal(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os, sys\nif os.fork() == 0: sys.exit(3)\nos.wait()\n")
    ended = run(tmp_path / "job", str(program))
    assert [event["exit_code"] for event in ended.events("end")] == [0]
    assert ended.error() is None
