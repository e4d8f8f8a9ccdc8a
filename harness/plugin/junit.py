"""junit.xml of a harness session: written without being asked for, whole after every case, at the end and in between.

With --junit-xml the user's own file is kept up to date the same way, and copied into the session's folder."""

import os
import time
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

import pytest
from _pytest.junitxml import LogXML, xml_key

from harness.plugin.session import State

FILE = "junit.xml"
ENDS = ("failure", "error", "skipped")


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
        first = Path(self._xml.logfile) if self._asked_for else config.rootpath / FILE
        self.paths = [directory / FILE, first]
        self._scratch = directory / f".{FILE}"
        self._next_write = 0.0
        self._launched: set[str] = set()
        self.trouble: str | None = None  # why the last write failed
        self._describe(config, state)
        if not self._asked_for:
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

    def write(self) -> None:
        """Write all files; a full disk is remembered for the end and does not stop the session."""
        start = time.monotonic()
        try:
            document = self._render()
            for path in self.paths:
                _replace(path, document)
            self.trouble = None
        except OSError as error:
            self.trouble = f"{error.filename or self.paths[0]}: {error.strerror}"
        self._next_write = time.monotonic() + self.cheap * (time.monotonic() - start)

    def _render(self) -> bytes:
        final, self._xml.logfile = self._xml.logfile, str(self._scratch)
        try:
            LogXML.pytest_sessionfinish(self._xml)  # builds the document anew and changes nothing
            tree = ET.parse(self._scratch)
        finally:
            self._xml.logfile = final
            self._scratch.unlink(missing_ok=True)
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
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_bytes(document)
    os.replace(scratch, path)
