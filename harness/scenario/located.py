"""Values read from YAML that know their lines, so that an error found late still names the place it came from."""

import difflib
import math
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any


class ScenarioError(Exception):
    """What is wrong in a scenario file: the line, the key in dotted form, and a text that ends in a remedy."""

    def __init__(self, line: int, key: str, problem: str) -> None:
        # A file may hold a key or a value of megabytes; no message shall.
        key, problem = key[:120], problem if len(problem) <= 600 else f"{problem[:600]}..."
        super().__init__(f"{line}: {key}: {problem}")
        self.line = line
        self.key = key
        self.problem = problem


class YamlMap(dict[str, Any]):
    """A YAML mapping: the line it starts on, and the line of each key."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: dict[str, int] = {}

    def put(self, key: str, value: Any, line: int) -> None:
        self[key] = value
        self.lines[key] = line

    def drop(self, key: str) -> None:
        self.pop(key, None)
        self.lines.pop(key, None)

    def copy(self) -> "YamlMap":
        """A copy that shares the values: they are never changed in place."""
        new = YamlMap(self.line)
        new.update(self)
        new.lines.update(self.lines)
        return new


class YamlList(list[Any]):
    """A YAML list: the line it starts on, and the line of each item."""

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.lines: list[int] = []


def merge(base: YamlMap, over: YamlMap) -> YamlMap:
    """`over` laid over `base`: mappings are merged key by key, everything else is replaced."""
    merged = base.copy()
    merged.line = over.line
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(value, YamlMap) and isinstance(below, YamlMap):
            value = merge(below, value)
        merged.put(key, value, over.lines[key])
    return merged


def line_of(data: Any, path: Sequence[str | int]) -> int:
    """The line of the deepest part of the path that was written; a missing key has the line of its mapping."""
    line: int = data.line if isinstance(data, (YamlMap, YamlList)) else 1
    for step in path:
        lines: Any = data.lines if isinstance(data, (YamlMap, YamlList)) else {}
        try:
            line, data = lines[step], data[step]
        except (KeyError, IndexError, TypeError):
            break
    return line


def plain(data: Any, path: tuple[str, ...] = (), line: int = 1) -> Any:
    """The same values as bare dicts and lists; what no record can hold or no process can be given is refused.

    Raises ScenarioError."""
    if isinstance(data, YamlMap):
        return {key: plain(value, (*path, key), data.lines[key]) for key, value in data.items()}
    if isinstance(data, YamlList):
        return [plain(value, path, at) for value, at in zip(data, data.lines, strict=True)]
    if isinstance(data, float) and not math.isfinite(data):
        raise ScenarioError(line, ".".join(path), f"{data} is not a finite number; write a number that JSON can hold")
    if isinstance(data, str) and not data.isprintable():
        _check_text(data, path, line)
    return data


def _check_text(text: str, path: tuple[str, ...], line: int) -> None:
    allowed = "\n\t" if path[:1] == ("env",) or path[:2] == ("trainer", "args") else ""
    for character in text:
        # Cc: control characters; Cs: half a surrogate pair, which no UTF-8 file can hold.
        if unicodedata.category(character) in {"Cc", "Cs"} and character not in allowed:
            problem = f"holds the control character U+{ord(character):04X}; remove it"
            raise ScenarioError(line, ".".join(path), problem)


def suggest(word: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?` where something is near, else the list of what is known."""
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
