"""What begins when cases have been collected: the folder's own files, signals, and the reporters of the session."""

import time
from collections.abc import Sequence

import pytest

from harness.plugin.benchmark_bridge import BenchmarkBridge
from harness.plugin.crash import CrashReports
from harness.plugin.interruption import Workers, install_signals, restore_signals
from harness.plugin.junit import JunitFiles
from harness.plugin.progress import Progress, interval_s
from harness.plugin.session import SESSION_FILE, STATE, State, point_latest, usable, write_session
from harness.plugin.terminal import Closing, Results
from harness.reports.results import count_outcomes


def begin(config: pytest.Config, failed_collections: Sequence[pytest.CollectReport]) -> None:
    """Start a session of cases in this process: in a worker signals only, elsewhere the reporters too."""
    state = config.stash[STATE]
    install_signals(state)
    config.add_cleanup(lambda: restore_signals(state))
    if state.worker:
        return
    results = Results(state)
    with usable(state.options):
        session_file = SessionFile(config, state, results)
    junit = JunitFiles(config, state, failed_collections)
    for name, plugin in (
        ("results", results),
        ("junit", junit),
        ("workers", Workers(config)),
        ("crash", CrashReports(config, state)),
        ("benchmark", BenchmarkBridge(config, state)),
        ("closing", Closing(state, results, junit, session_file)),
        ("session-file", session_file),
    ):
        config.pluginmanager.register(plugin, f"harness-{name}")
    if config.get_verbosity() >= 0 and (interval := interval_s(config)):
        config.pluginmanager.register(Progress(config, state, interval), "harness-progress")
    point_latest(state.options)
    junit.begin()  # a session that is killed in its first case must not leave the junit.xml of the one before


class SessionFile:
    """Keeps session.json: at the start, and with the outcomes at the end."""

    def __init__(self, config: pytest.Config, state: State, results: Results) -> None:
        self._config, self._state, self._results = config, state, results
        self._started = time.time()
        self.trouble: str | None = None  # why its end could not be written
        write_session(config, state, started=self._started)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        outcomes = count_outcomes(list(self._results.results.values()))
        more = {"ended": time.time(), "exit_status": int(exitstatus), "outcomes": outcomes}
        try:
            write_session(self._config, self._state, started=self._started, **more)
        except OSError as error:
            self.trouble = f"{self._state.options.directory / SESSION_FILE}: {error.strerror or error}"
