"""junit.xml of a harness session: written without being asked for, whole after every case, at the end and in between.

With --junit-xml the user's own file is kept up to date the same way, and copied into the session's folder."""

import errno
import os
import stat
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from _pytest.junitxml import LogXML, xml_key

from harness.plugin.options import home
from harness.plugin.session import State

FILE = "junit.xml"
ENDS = ("failure", "error", "skipped")
FULL = (errno.ENOSPC, errno.EDQUOT)


class SessionXml(LogXML):
    """pytest's own log, but for the writing: that is JunitFiles' business."""

    def pytest_sessionfinish(self) -> None:
        pass

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        pass


class JunitFiles:
    """Rewrites junit.xml, atomically, when a case has ended: a killed session leaves all that was finished."""

    cheap = 20.0  # cases that launched nothing are written when this many times the cost of a write has passed

    def __init__(self, config: pytest.Config, state: State, failed_collections: Sequence[pytest.CollectReport]) -> None:
        directory = state.options.directory
        self._asked_for = config.stash.get(xml_key, None)
        self._xml = self._asked_for or _own_log(config, directory / FILE)
        first = Path(self._xml.logfile) if self._asked_for else home(config) / FILE
        self.paths = [directory / FILE, first]
        self._next_write = 0.0
        self._launched: set[str] = set()
        self._failed: dict[Path, OSError] = {}  # of the last write
        self._describe(config, state)
        if self._asked_for:
            # Its hook of the end would write the file once more, and end a session with a full disk by a traceback.
            config.pluginmanager.unregister(self._xml)
            self._xml.__class__ = SessionXml
            config.pluginmanager.register(self._xml)
        else:
            config.pluginmanager.register(self._xml, "harness-junit-log")
            for report in failed_collections:
                self._xml.pytest_collectreport(report)

    def _describe(self, config: pytest.Config, state: State) -> None:
        if self._xml.logging == "no" and "junit_logging" not in _set_by_user(config):
            self._xml.logging = "system-out"  # the log's tail is the best clue a report can carry
        assert state.plan is not None
        self._xml.add_global_property("harness_session", state.options.session)
        self._xml.add_global_property("harness_results", str(state.options.results))
        self._xml.add_global_property("harness_cases", str(len(state.plan.cases)))

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self._launched.add(report.nodeid)
        if report.when == "teardown" and (report.nodeid in self._launched or time.monotonic() >= self._next_write):
            self.write()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        self.write()

    @property
    def trouble(self) -> str | None:
        """Which files the last write could not write, and why."""
        return "; ".join(f"{path}: {error.strerror or error}" for path, error in self._failed.items()) or None

    def begin(self) -> None:
        """Write for the first time.  Raises pytest.UsageError for a --junit-xml that can never be written."""
        self.write()
        error = self._failed.get(self.paths[1])
        if self._asked_for and error is not None and error.errno not in FULL:
            raise pytest.UsageError(f"--junit-xml {self.paths[1]}: {error.strerror or error}")

    def write(self) -> None:
        """Write each file; what fails is remembered for the end, and stops neither the others nor the session."""
        start = time.monotonic()
        self._failed = {}
        try:
            document = self._render()
        except OSError as error:
            self._failed = dict.fromkeys(self.paths, error)
            return
        for path in self.paths:
            try:
                _replace(path, document)
            except OSError as error:
                self._failed[path] = error
        self._next_write = time.monotonic() + self.cheap * (time.monotonic() - start)

    def _render(self) -> bytes:
        final = self._xml.logfile
        with open(os.memfd_create(FILE, os.MFD_CLOEXEC), "rb") as memory:  # LogXML wants a path; disks may be full
            self._xml.logfile = f"/proc/self/fd/{memory.fileno()}"
            try:
                LogXML.pytest_sessionfinish(self._xml)  # builds the document anew and changes nothing
            finally:
                self._xml.logfile = final
            tree = ET.parse(memory)
        for suite in tree.iter("testsuite"):
            for case in superfluous(suite.findall("testcase")):
                suite.remove(case)
        document: bytes = ET.tostring(tree.getroot(), encoding="utf-8", xml_declaration=True)
        return document


def superfluous(cases: Sequence[ET.Element]) -> list[ET.Element]:
    """Elements that tell nothing, or a wrong thing.

    A case that runs right now, or was interrupted, has no name yet.  One that pytest-rerunfailures has tried again is
    there without its failure, as if it had passed, before its last try."""
    last = {(case.get("classname"), case.get("name")): case for case in cases}
    return [
        case
        for case in cases
        if not case.get("name")
        or (
            last[case.get("classname"), case.get("name")] is not case
            and not any(case.find(tag) is not None for tag in ENDS)
        )
    ]


def _own_log(config: pytest.Config, path: Path) -> SessionXml:
    if config.pluginmanager.has_plugin("junitxml"):
        log = SessionXml(
            str(path),
            config.getoption("junitprefix"),
            config.getini("junit_suite_name"),
            config.getini("junit_logging"),
            config.getini("junit_duration_report"),
            config.getini("junit_family"),
            config.getini("junit_log_passing_tests"),
        )
        config.stash[xml_key] = log  # so that pytest's record_* fixtures find it, and its unconfigure takes it away
    else:
        log = SessionXml(str(path), None, family="xunit2")
    log.pytest_sessionstart()
    return log


def _set_by_user(config: pytest.Config) -> set[str]:
    """Names that a configuration file or `-o` sets: getini does not tell a default from the same value asked for."""
    return set(config._inicfg if hasattr(config, "_inicfg") else config.inicfg)


def _replace(path: Path, document: bytes) -> None:
    """Write a file whole or not at all.  Raises OSError; leaves no scratch file, replaces no device or pipe."""
    if path == Path(os.devnull):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError(errno.EINVAL, "no regular file", str(path))
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        scratch.write_bytes(document)
        os.replace(scratch, path)
    except OSError as error:
        with suppress(OSError):
            scratch.unlink()
        if error.errno not in FULL:
            raise
        _overwrite(path, document)


def _overwrite(path: Path, document: bytes) -> None:
    """Where there is no room for two versions: make room for one first, so that without any the old one stays."""
    with open(path, "r+b", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            os.posix_fallocate(file.fileno(), 0, len(document))
        except OSError:
            file.truncate(size)
            raise
        file.write(document)
        file.truncate(len(document))
