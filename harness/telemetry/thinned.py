"""The memory of a job's processes over time, kept small however long the job lasts."""

from harness.telemetry.gauges import as_number
from harness.telemetry.values import Event

_MOST = 4096  # samples kept; at one a second an hour goes by before any two become one


class Thinned:
    """Keeps of each `sample` when it was and what the processes held; neighbours become one, which holds the larger."""

    def __init__(self) -> None:
        self.samples: list[Event] = []
        self._every = 1  # samples that become one
        self._taken = 0

    def take(self, event: Event) -> None:
        if event.get("e") != "sample" or not isinstance(tree := event.get("tree"), dict):
            return
        if as_number(event.get("t")) is None:
            return
        kept = {"e": "sample", "t": event["t"], "tree": {name: tree.get(name) for name in ("rss_bytes", "pss_bytes")}}
        if self._taken % self._every == 0:
            self.samples.append(kept)
        else:
            _join(self.samples[-1], kept)
        self._taken += 1
        if len(self.samples) > _MOST:
            self._halve()

    def _halve(self) -> None:
        for first, second in zip(self.samples[::2], self.samples[1::2], strict=False):
            _join(first, second)
        self.samples = self.samples[::2]
        self._every *= 2


def _join(kept: Event, other: Event) -> None:
    for name, value in other["tree"].items():
        held = [number for number in (kept["tree"][name], value) if isinstance(number, int)]
        kept["tree"][name] = max(held, default=None)
