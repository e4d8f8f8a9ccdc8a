"""Verdicts on what pip wrote (lines of pip 23 to 25)."""

import pytest

from harness.classify import judge_install
from harness.record import Kind

NONE_FOUND = "ERROR: Could not find a version that satisfies the requirement x (from versions: none)\n"
RETRY = (
    "WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken "
    "by 'NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f>: Failed to establish a "
    "new connection: [Errno -2] Name or service not known')': /simple/x/\n"
)
TIMED_OUT = (
    'ERROR: Exception:\nTraceback (most recent call last):\n  File "x.py", line 1, in read\n'
    "pip._vendor.urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool(host='files.example.org', port=443): "
    "Read timed out.\n"
)


@pytest.mark.parametrize(
    "output, kind, transient, reason",
    [
        pytest.param(NONE_FOUND, Kind.USER_ERROR, False, "satisfies the requirement x", id="no-such-package"),
        pytest.param(RETRY + NONE_FOUND, Kind.NETWORK, True, "Name or service not known", id="no-index"),
        pytest.param(
            RETRY + "ERROR: Cannot install a and b because these package versions have conflicting dependencies.\n",
            Kind.USER_ERROR,
            False,
            "conflicting dependencies",
            id="a-retry-that-helped",
        ),
        pytest.param(TIMED_OUT, Kind.NETWORK, True, "Read timed out", id="download-timed-out"),
        pytest.param(
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n",
            Kind.DISK_FULL,
            False,
            "No space left on device",
            id="disk",
        ),
        pytest.param(
            "ERROR: HTTP error 503 while getting https://example.org/x.whl\n"
            "ERROR: Could not install requirement x because of HTTP error 503 Server Error: Unavailable for url: y\n",
            Kind.NETWORK,
            True,
            "503 Server Error",
            id="server-error",
        ),
        pytest.param(
            "  error: subprocess-exited-with-error\n  error: metadata-generation-failed\n",
            Kind.USER_ERROR,
            False,
            "subprocess-exited-with-error",
            id="build",
        ),
        pytest.param("", Kind.USER_ERROR, False, "pip ended with 1", id="silent"),
    ],
)
def test_what_pip_says(output: str, kind: Kind, transient: bool, reason: str) -> None:
    verdict = judge_install("pip ended with 1", output, 1)
    assert (verdict.kind, verdict.transient) == (kind, transient)
    assert verdict.reason.startswith("stack: ")
    assert reason in verdict.reason


def test_an_error_that_pip_has_no_words_for_is_named() -> None:
    output = (
        'ERROR: Exception:\nTraceback (most recent call last):\n  File "x.py", line 1, in parse\n'
        "pip._internal.exceptions.RecursionError: a.txt recursively references itself in b.txt\n"
    )
    verdict = judge_install("pip ended with 2", output, 2)
    assert (verdict.kind, verdict.reason) == (
        Kind.USER_ERROR,
        "stack: RecursionError: a.txt recursively references itself in b.txt",
    )


def test_a_debian_without_its_venv_package() -> None:
    output = (
        "The virtual environment was not created successfully because ensurepip is not\n"
        "available.  On Debian/Ubuntu systems, you need to install the python3-venv\n"
        "package using the following command.\n\n    apt install python3.11-venv\n\n"
        "You may need to use sudo with that command.  After installing the python3-venv\n"
        "package, recreate your virtual environment.\n\nFailing command: /x/bin/python3\n\n"
    )
    verdict = judge_install("venv ended with 1", output, 1)
    said = "stack: ensurepip is not available; install python3.11-venv"
    assert (verdict.kind, verdict.reason) == (Kind.USER_ERROR, said)


@pytest.mark.parametrize("output", ["", "Installing collected packages: x\n"])
def test_a_full_disk_that_took_the_words_of_pip(output: str) -> None:
    verdict = judge_install("pip ended with 1: No space left on device", output, 1)
    assert (verdict.kind, verdict.transient) == (Kind.DISK_FULL, False)
    assert verdict.reason == "stack: pip ended with 1: No space left on device"


def test_a_pip_that_was_killed_and_one_without_an_end() -> None:
    killed = judge_install("pip ended with -9", "Collecting torch\n", -9)
    assert (killed.kind, killed.transient, "SIGKILL" in killed.reason) == (Kind.KILLED, None, True)
    endless = judge_install("pip had not ended after 2 h", "Collecting torch\n", None, out_of_time=True)
    assert (endless.kind, endless.reason) == (Kind.TIMEOUT, "stack: pip had not ended after 2 h")
