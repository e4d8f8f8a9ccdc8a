"""What the staged `sitecustomize` leaves of itself in a Python of a job: nothing, but for a process that trains."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.probe import site_hook
from harness.probe.layout import JobPaths
from harness.probe.site_hook import RANK_PID, RANK_SIGNS
from harness.probe.staging import stage

SHOW = """
import json, os, sys
print(json.dumps({
    "path": sys.path, "caches": sorted(sys.path_importer_cache), "modules": sorted(sys.modules), "argv": sys.argv,
    "customized": getattr(sys.modules.get("sitecustomize"), "__file__", None), "flags": repr(sys.flags),
    "main": [__name__, __file__, __spec__ and __spec__.name], "told": os.environ.get("TOLD"), "warn": sys.warnoptions,
    "executable": sys.executable, "finders": [str(type(finder)) for finder in sys.meta_path],
}))
print("said", file=sys.stderr)
"""


@pytest.fixture
def job(tmp_path: Path) -> JobPaths:
    job = JobPaths(tmp_path / "results" / "job")
    stage(job, every_python=True)
    return job


def python(
    *arguments: str, job: JobPaths | None, path: str = "", captured: bool = True, **environ: str
) -> "subprocess.CompletedProcess[str]":
    """Run this interpreter as a job does, or as a user does (`job` None), with the user's own PYTHONPATH.

    Not `captured`: it writes into the job's launcher log, as all of a job does whose output nobody else wants."""
    folders = [str(job.site)] if job else []
    told = {"PYTHONPATH": os.pathsep.join([*folders, *filter(None, [path])])}
    signs = {RANK_SIGNS: "RANK,ACCELERATE_MIXED_PRECISION"} if job else {}
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "RANK")}
    log: Any = subprocess.PIPE
    if job and not captured:
        job.node().mkdir(exist_ok=True)
        log = os.open(job.launcher_log(), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**clean, **{k: v for k, v in told.items() if v}, **signs, **environ},
        stdout=log,
        stderr=log,
        text=True,
        timeout=120,
        check=False,
    )
    if log != subprocess.PIPE:
        os.close(log)
    return done


def shown(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


def without_waiting(seen: Mapping[str, Any]) -> dict[str, Any]:
    return {**seen, "finders": [finder for finder in seen["finders"] if "Waiting" not in finder]}


@pytest.mark.parametrize("own", [None, "print('mine'); import os; os.environ['TOLD'] = 'yes'", "X = 1"])
def test_a_process_sees_itself_as_without(tmp_path: Path, job: JobPaths, own: str | None) -> None:
    program = tmp_path / "program.py"
    program.write_text(SHOW)
    user = tmp_path / "user"
    user.mkdir()
    if own is not None:
        (user / "sitecustomize.py").write_text(own)
    for options in ([], ["-P"] if sys.version_info >= (3, 11) else [], ["-X", "dev", "-W", "ignore"], ["-O"]):
        plain = python(*options, str(program), "a", job=None, path=str(user))
        ours = python(*options, str(program), "a", job=job, path=str(user))
        *said, last = ours.stdout.splitlines()
        *expected, expected_last = plain.stdout.splitlines()
        assert (said, ours.stderr) == (expected, plain.stderr)
        seen = json.loads(last)
        assert without_waiting(seen) == json.loads(expected_last)
        assert any("Waiting" in finder for finder in seen["finders"])
        assert (seen["customized"] is not None) == (own is not None)


@pytest.mark.parametrize(
    "own",
    ["raise ValueError('mine')", "raise SystemExit(4)", "import not_there_at_all", "def", "import sitecustomize.x"],
)
def test_errors_of_the_users_own_module_are_told_as_without(tmp_path: Path, job: JobPaths, own: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(own)
    plain, ours = (python("-c", "print('runs')", job=each, path=str(tmp_path)) for each in (None, job))
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout)
    if plain.returncode:  # the interpreter's own end, with a traceback that names every frame
        assert ours.stderr.splitlines()[-1] == plain.stderr.splitlines()[-1]
    else:
        assert ours.stderr == plain.stderr != ""


def test_a_user_module_that_is_also_asked_for_later(tmp_path: Path, job: JobPaths) -> None:
    (tmp_path / "sitecustomize.py").write_text("import json\nWHO = json.dumps('user')")
    ours = python("-c", "import sitecustomize; print(sitecustomize.WHO)", job=job, path=str(tmp_path))
    assert ours.stdout == '"user"\n'
    nobody = python("-c", "import sitecustomize", job=job)
    assert "No module named 'sitecustomize'" in nobody.stderr


@pytest.mark.parametrize("option", ["-I", "-E", "-S"])
def test_a_python_that_reads_no_environment_is_not_reached(tmp_path: Path, job: JobPaths, option: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(SHOW)
    seen = shown(python(option, str(program), job=job, RANK="0"))
    assert not any("Waiting" in finder for finder in seen["finders"])
    assert job.ranks() == []


@pytest.mark.parametrize("how", ["file", "module", "folder", "options"])
def test_a_marked_process_becomes_the_rank_and_sees_itself_as_without(tmp_path: Path, job: JobPaths, how: str) -> None:
    user = tmp_path / "user"
    (user / "pkg").mkdir(parents=True)
    for name in ("program.py", "pkg/__init__.py", "pkg/train.py", "pkg/__main__.py"):
        (user / name).write_text("" if name.endswith("__init__.py") else SHOW)
    (user / "sitecustomize.py").write_text("import os; os.environ['TOLD'] = os.environ.get('TOLD', '') + 'once'")
    arguments = {
        "file": [str(user / "program.py"), "--x"],
        "module": ["-m", "pkg.train", "-m", "y"],
        "folder": [str(user / "pkg")],
        "options": ["-OO", "-X", "dev", "-W", "ignore", "-um", "pkg.train"],
    }[how]
    plain, ours = (
        python(*arguments, job=each, path=str(user), captured=False, RANK="2", WORLD_SIZE="3") for each in (None, job)
    )
    assert (ours.returncode, job.launcher_log().read_text()) == (0, "")
    expected, seen = json.loads(plain.stdout), json.loads(job.stdout(2).read_text())
    assert job.stderr(2).read_text() == "said\n"
    for key in ("modules", "caches", "finders"):  # the probe is there
        expected.pop(key), seen.pop(key)
    assert seen == expected
    events = [json.loads(line) for line in job.events(2).read_text().splitlines()]
    assert (events[0]["e"], events[0]["rank"], events[0]["world_size"]) == ("start", 2, 3)
    assert (events[-1]["e"], events[-1]["exit_code"]) == ("end", 0)


CHILDREN = f"""
import json, os, subprocess, sys
if len(sys.argv) > 1:
    waits = any("Waiting" in str(finder) for finder in sys.meta_path)
    print(sys.argv[1], os.getpid(), os.environ["{RANK_PID}"], waits, "harness_probe" in sys.modules)
else:
    for command in ([__file__, "file"], ["-c", open(__file__).read(), "text"]):
        subprocess.run([sys.executable, *command], check=True)
    print("rank", os.getpid())
"""


def test_what_a_rank_starts_is_left_alone(tmp_path: Path, job: JobPaths) -> None:
    program = tmp_path / "program.py"
    program.write_text(CHILDREN)
    done = python(str(program), job=job, captured=False, RANK="1")
    assert done.returncode == 0, job.launcher_log().read_text()
    file, text, rank = (line.split() for line in job.stdout(1).read_text().splitlines())
    assert [line[0] for line in (file, text, rank)] == ["file", "text", "rank"]
    assert file[2] == text[2] == rank[1]  # the rank's pid
    assert file[1] != rank[1] != text[1]
    assert file[3:] == text[3:] == ["False", "False"]
    assert job.ranks() == [1]
    assert [json.loads(line)["e"] for line in job.events(1).read_text().splitlines()].count("start") == 1


def test_exit_code_and_signal_of_a_rank_are_the_programs(tmp_path: Path, job: JobPaths) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os, sys\nos.kill(os.getpid(), 9) if sys.argv[1:] else sys.exit(3)\n")
    assert python(str(program), job=job, RANK="0").returncode == 3
    assert python(str(program), "die", job=job, RANK="0").returncode == -9
    starts = [json.loads(line)["e"] for line in job.events(0).read_text().splitlines()].count("start")
    assert starts == 2  # the second follows the first, which has ended


def test_a_rank_that_replaces_its_own_program_does_not_loop(tmp_path: Path, job: JobPaths) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, sys\nif len(sys.argv) < 2:\n    sys.stdout.flush()\n"
        "    os.execv(sys.executable, [sys.executable, __file__, 'again'])\nprint('again')\n"
    )
    done = python(str(program), job=job, captured=False, RANK="0")
    assert (done.returncode, job.stdout(0).read_text()) == (0, "again\n")


@pytest.mark.parametrize("captures", ["stdout", "stderr"])
def test_what_a_driver_captures_of_its_rank_reaches_the_driver(tmp_path: Path, job: JobPaths, captures: str) -> None:
    program = tmp_path / "program.py"
    program.write_text("import sys\nprint('metric=1.5')\nprint('a word', file=sys.stderr)\n")
    driver = tmp_path / "driver.py"
    driver.write_text(
        "import os, subprocess, sys\n"
        f"done = subprocess.run([sys.executable, {str(program)!r}], env={{**os.environ, 'RANK': '0'}},"
        f" {captures}=subprocess.PIPE, text=True)\nprint('got', repr(done.{captures}))\n"
    )
    done = python(str(driver), job=job, captured=False)
    log, kept = job.launcher_log().read_text(), [job.stdout(0), job.stderr(0)]
    said = {"stdout": "metric=1.5\n", "stderr": "a word\n"}
    assert (done.returncode, log) == (0, f"got {said[captures]!r}\n")
    left = [path.read_text() for path in kept if path.exists()]
    assert left == [text for name, text in said.items() if name != captures]
    events = [json.loads(line)["e"] for line in job.events(0).read_text().splitlines()]
    assert (events[0], events[-1]) == ("start", "end")


def test_a_second_process_of_a_rank_that_runs_goes_on_unmeasured(tmp_path: Path, job: JobPaths) -> None:
    program = tmp_path / "program.py"
    program.write_text("import subprocess, sys, os\nprint('out', os.environ.get('HARNESS_RANK_PID'))\n")
    job.rank(0).mkdir()
    job.holder(0).write_text(f"{os.getpid()} {Path('/proc/self/stat').read_text().rpartition(')')[2].split()[19]}")
    done = python(str(program), job=job, RANK="0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "out None\n", "")
    assert not job.events(0).exists()


def test_a_probe_that_is_gone_costs_the_measuring_alone(tmp_path: Path, job: JobPaths) -> None:
    for module in job.probe.iterdir():
        module.unlink()
    done = python("-c", "print('runs')", job=job)
    assert (done.returncode, done.stdout, done.stderr) == (0, "runs\n", "")
    program = tmp_path / "program.py"
    program.write_text("print('runs')")
    done = python(str(program), job=job, RANK="0")
    assert (done.returncode, done.stdout) == (0, "runs\n")
    assert done.stderr.startswith("harness: this process is not measured: ModuleNotFoundError")


class OtherThreadFirst(list[Any]):
    """sys.meta_path, of which another thread takes the finder just before."""

    def remove(self, value: Any) -> None:
        super().remove(value)
        super().remove(value)


@pytest.mark.parametrize("path, loads", [(list, ["/job"]), (OtherThreadFirst, [])])
def test_of_two_threads_that_import_one_puts_the_hooks_in_place(
    monkeypatch: pytest.MonkeyPatch, path: type[list[Any]], loads: list[str]
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(site_hook, "load", lambda stage, name: SimpleNamespace(wait=seen.append))
    waiting = site_hook.Waiting("/job/probe")
    monkeypatch.setattr(sys, "meta_path", path([waiting, *sys.meta_path]))
    assert waiting.find_spec("accelerate.accelerator", []) is None
    assert seen == loads
    assert waiting not in sys.meta_path
