"""What never changes a verdict: interleaving, chatter, other paths, hosts and process ids, prefixes and colours."""

import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from harness.classify import evidence_of, judge
from tests.unit.classify.test_corpus import CASES, read

SEEDS = range(3)
RANK = re.compile(r"^(?:\[default(\d+)\]:)?(?:\[rank(\d+)\]: ?)")
DOCUMENTS = {path.stem: document for path in CASES if "stderr" in (document := read(path))["evidence"]}
TEXTS = {name: document["evidence"]["stderr"] for name, document in DOCUMENTS.items()}
RANKED = [name for name, text in TEXTS.items() if re.search(r"^(?:\[default\d+\]:)?\[rank\d+\]:", text, re.MULTILINE)]
SEVERAL = [name for name in RANKED if len(set(re.findall(r"^\[rank\d+\]:", TEXTS[name], re.MULTILINE))) > 1]
CHATTER = [
    "node-0:6101:6241 [1] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>",
    "node-0:6101:6241 [1] NCCL INFO NET/IB : No device found.",
    "node-0:6101:6241 [0] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/IPC",
    "[rank1]: node-1:77:88 [1] NCCL INFO Connected all rings",
    "node-0:6101:6241 [1] NCCL INFO comm 0x55d1 rank 1 nranks 2 cudaDev 1 busId 47000 - Abort COMPLETE",
]
STYLES = [
    "[default{0}]:[rank{0}]: ",
    "[{0}]:",
    "{0}: ",
    "[1,{0}]<stderr>:",
    "2026-12-01T01:02:03.456Z [rank{0}]: ",
    "(RayTrainWorker pid=991{0}, ip=10.0.0.7) [rank{0}]: ",
    "[2026-12-01 01:02:03,456] [rank{0}]:",
]


def told(document: dict[str, Any], **changed: str) -> tuple[str, int | None]:
    verdict = judge(evidence_of({"evidence": {**document["evidence"], **changed}}))
    return str(verdict.kind), verdict.rank


def holds(name: str, change: Callable[[str], str]) -> None:
    document = DOCUMENTS[name]
    evidence = document["evidence"]
    changed = {key: change(evidence[key]) for key in ("stderr", "kernel_log") if key in evidence}
    assert told(document, **changed) == told(document), changed["stderr"]


def shuffled(text: str, chance: random.Random) -> str:
    """The ranks' lines in another interleaving, each rank's own in order; what the launcher says stays at the end."""
    writers: dict[str, list[str]] = {}
    writer = ""
    for line in text.splitlines():
        found = re.match(r"^(\[rank\d+\]):", line)
        if found:
            writer = found[1]
        elif not writers.get(writer, [""])[-1].startswith(f"{writer}:[E"):
            writer = ""  # a report of c10d goes on without its prefix
        writers.setdefault(writer, []).append(line)
    launcher = writers.pop("", [])
    out = []
    while writers:
        writer = chance.choice(sorted(writers))
        out.append(writers[writer].pop(0))
        if not writers[writer]:
            del writers[writer]
    return "\n".join([*out, *launcher, ""])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", [name for name in SEVERAL if ":[E" not in TEXTS[name] or "\n[rank" in TEXTS[name]])
def test_the_interleaving(name: str, seed: int) -> None:
    holds(name, lambda text: shuffled(text, random.Random(seed)))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", TEXTS)
def test_chatter_of_nccl(name: str, seed: int) -> None:
    def noisy(text: str) -> str:
        chance = random.Random(seed)
        lines = text.split("\n")
        for _ in range(12):
            lines.insert(chance.randrange(len(lines) + 1), chance.choice(CHATTER))
        return "\n".join(lines)

    holds(name, noisy)


@pytest.mark.parametrize("name", TEXTS)
def test_other_places(name: str) -> None:
    def moved(text: str) -> str:
        pids = set(re.findall(r"(?:pid[:=] ?|process |PID |pid )(\d{4,})", text, re.IGNORECASE))
        for pid in pids:
            text = re.sub(rf"\b{pid}\b", str(int(pid) + 2_000_000), text)
        for old, new in {
            "/opt/venv": "/home/jo do/miniconda3/envs/llm",
            "/data/run": "/gpfs/projects/x-1",
            "node-0": "gpu17.cluster.example",
            "node-1": "10.3.2.1",
            "python3.11": "python3.12",
            "/usr/lib": "/sw/python/lib",
        }.items():
            text = text.replace(old, new)
        return text

    holds(name, moved)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", RANKED)
def test_prefix_styles(name: str, style: str) -> None:
    def restyled(text: str) -> str:
        return "\n".join(
            RANK.sub(lambda found: style.format(found[2]), line) if RANK.match(line) else line
            for line in text.split("\n")
        )

    holds(name, restyled)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", TEXTS)
def test_colours(name: str, seed: int) -> None:
    def coloured(text: str) -> str:
        chance = random.Random(seed)
        out = []
        for line in text.split("\n"):
            if line and chance.random() < 0.7:
                at = chance.randrange(len(line))
                start, middle = f"\x1b[1;3{chance.randrange(8)}m", f"\x1b[0m\x1b[38;5;{chance.randrange(256)}m"
                line = f"{start}{line[:at]}{middle}{line[at:]}\x1b[0m"
            out.append(line)
        return "\n".join(out)

    holds(name, coloured)
