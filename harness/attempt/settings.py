"""What holds for all cases of a session."""

import functools
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness import environment, labels
from harness.attempt.outstanding import Outstanding
from harness.forward.start import Aim
from harness.units import parse_seconds

RETRY_WAIT_S = 10.0  # a rank's port, a switch or a hub needs some time to come back
SAMPLE_INTERVAL_S = 1.0
LEAST_SAMPLE_INTERVAL_S = 0.1  # drivers renew power every 100 ms
GRACE_S = 10.0  # from SIGTERM to SIGKILL: long enough for torchrun to end its ranks


@functools.cache
def found_labels(base_dir: Path) -> dict[str, str]:
    """The labels that the surroundings give, as they are when a process asks first: the same for all of its cases."""
    return labels.found(environment.git_state(base_dir), os.environ, platform.node())


@dataclass(frozen=True)
class Settings:
    """What holds for all cases of a session."""

    session: str
    session_dir: Path
    base_dir: Path  # where the harness was started: a script's working directory unless it names one
    lock_dir: Path
    labels: Mapping[str, str] = field(default_factory=dict)  # given for all cases
    found_labels: Mapping[str, str] = field(default_factory=dict)  # of the surroundings: defaults
    time_limit_s: float | None = None  # the smaller of this and the scenario's counts
    grace_s: float = GRACE_S
    sample_interval_s: float = SAMPLE_INTERVAL_S  # of the sampler
    retry_wait_s: float = RETRY_WAIT_S  # before the first retry; longer before later ones
    aim: Aim | None = None  # None: nothing is forwarded to Aim
    output_file: Path | None = None  # absolute: where the program itself writes the dump when training ends
    outstanding: Outstanding | None = None  # forwarders that nobody waits for yet; None: a case waits for its own


def parse_sample_interval(text: str) -> float:
    """Seconds between two samples, such as 250ms.  Raises ValueError for what is no time, or too short."""
    seconds = parse_seconds(text)
    if seconds < LEAST_SAMPLE_INTERVAL_S:
        raise ValueError(f"{seconds:g} s is too short; the least is {LEAST_SAMPLE_INTERVAL_S:g} s")
    return seconds
