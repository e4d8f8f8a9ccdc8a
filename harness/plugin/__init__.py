"""The pytest plugin: options, the fixtures `tuning_case` and `tuning`, and what a session of cases writes and prints.

It is loaded in every pytest of its environment and does nothing there until a test uses its fixtures."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from harness.plugin.cases import Tuning, entry_of, fail_if_bad, make_plan, parametrize, prepare, tuning, tuning_case
from harness.plugin.options import Options, add_options, read_options
from harness.plugin.runner import RUNNER_FACTORY, Runner, Slots
from harness.plugin.session import STATE, State, check_results, create_folder, get_runner, read_plan, usable, write_plan
from harness.plugin.verdicts import TuningFailure, edit_report

__all__ = ["RUNNER_FACTORY", "Options", "Runner", "Slots", "Tuning", "TuningFailure", "tuning", "tuning_case"]


class FailedCollections:
    """Remembers what could not be collected: junit.xml begins later, with the first case."""

    name = "harness-failed-collections"

    def __init__(self) -> None:
        self.reports: list[pytest.CollectReport] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self.reports.append(report)


def pytest_addoption(parser: pytest.Parser) -> None:
    add_options(parser)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "scenarios(folder): where the cases of a test come from, beside its file")
    workerinput = getattr(config, "workerinput", None)
    options = Options.from_wire(workerinput["harness"]) if workerinput else read_options(config)
    config.stash[STATE] = State(options, worker=workerinput is not None)
    config.pluginmanager.register(FailedCollections(), FailedCollections.name)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    options = node.config.stash[STATE].options
    if node.config.getoption("results"):  # asked for, so that even a session without cases may say it is wrong
        check_results(options)
    node.workerinput["harness"] = options.wire()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    from harness.plugin.distribution import is_results

    return True if is_results(collection_path, config) else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    parametrize(metafunc)


def pytest_itemcollected(item: pytest.Item) -> None:
    prepare(item)


@pytest.hookimpl(tryfirst=True)  # before xdist tells the controller, which then reads the plan
def pytest_collection_finish(session: pytest.Session) -> None:
    config = session.config
    state = config.stash[STATE]
    if any(entry_of(item) is not None for item in session.items):
        state.plan = make_plan(session.items, state.options, get_runner(config), config.invocation_params.dir)
        if not config.getoption("collectonly"):
            _open_session(config)


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    state = config.stash[STATE]
    if state.plan is None or config.get_verbosity() < 0:
        return []
    from harness.plugin.terminal import first_lines

    return first_lines(state.plan, state.options, to_run=not config.getoption("collectonly"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any) -> None:
    """The controller learns here whether its workers collected cases, and which."""
    from harness.plugin.distribution import refuse_distribution
    from harness.plugin.terminal import first_lines

    config = node.config
    state = config.stash[STATE]
    if state.plan is not None:
        return
    state.plan = read_plan(state.options.directory)
    if state.plan is None:
        return
    refuse_distribution(config.getoption("dist"))
    _begin(config)
    terminal = config.pluginmanager.getplugin("terminalreporter")
    if terminal and config.get_verbosity() >= 0:
        terminal.ensure_newline()
        for line in first_lines(state.plan, state.options, to_run=True):
            terminal.write_line(line)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "load":
        return None
    from harness.plugin.scheduler import CaseScheduling

    state = config.stash[STATE]
    return CaseScheduling(config, log, lambda: state.plan)


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    from harness.plugin.distribution import workers_for

    return workers_for(config)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    fail_if_bad(pyfuncitem)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if entry_of(item) is not None:
        edit_report(item, call, report)
    return report


def _open_session(config: pytest.Config) -> None:
    """Make the session's folder and begin.  Raises pytest.UsageError; in a worker, which could say it in tracebacks
    only, every case says it."""
    state = config.stash[STATE]
    assert state.plan is not None
    try:
        create_folder(state.options)
        with usable(state.options):
            write_plan(state.plan, state.options.directory)
    except pytest.UsageError as error:
        if not state.worker:
            raise
        state.unusable = str(error)
    _begin(config)


def _begin(config: pytest.Config) -> None:
    from harness.plugin.controller import begin

    failed: Any = config.pluginmanager.getplugin(FailedCollections.name)
    begin(config, failed.reports)
