"""Reads one YAML document with the scalars of YAML 1.2's core schema, keeping lines and refusing what can mislead.

libyaml parses (through PyYAML) and the rest is here, because PyYAML itself speaks YAML 1.1: there `1e-4` is text, `no`
is false, `012` is ten, and a key that stands twice silently takes its last value."""

import re
from typing import Any, ClassVar

import yaml

from harness.scenario.located import ScenarioError, YamlList, YamlMap

MAX_BYTES = 8 * 1024 * 1024
MAX_NODES = 250_000  # after aliases are expanded
MAX_DEPTH = 40

_TAG = "tag:yaml.org,2002:"
_NULL = re.compile(r"(?:~|null|Null|NULL|)\Z")
_BOOL = re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z")
_INT = re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z")
_FLOAT = re.compile(
    r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"
)
_MERGE = re.compile(r"<<\Z")

# The C parser where PyYAML has it (every wheel does): 6 times faster.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _CoreLoader(_Base):  # type: ignore[misc]  # the base is chosen at run time
    """Resolves plain scalars as YAML 1.2's core schema does (and `<<`, which 1.2 dropped and everybody writes)."""

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}


for _name, _pattern, _first in (
    ("null", _NULL, ["~", "n", "N", ""]),
    ("bool", _BOOL, list("tTfF")),
    ("int", _INT, list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
    ("merge", _MERGE, ["<"]),
):
    _CoreLoader.add_implicit_resolver(f"{_TAG}{_name}", _pattern, _first)


def read(content: bytes) -> Any:
    """The document's value, made of `YamlMap`, `YamlList`, str, int, float, bool and None.

    Raises ScenarioError for text that is no UTF-8, YAML's own errors, several documents, none, a key that stands twice,
    an unknown tag, nesting that is too deep, and aliases that would expand without measure."""
    text = _decode(content)
    try:
        loader = _CoreLoader(text)
        try:
            root = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        raise _syntax(error) from None
    except yaml.reader.ReaderError as error:
        line = text.encode().count(b"\n", 0, error.position) + 1
        character = error.character if isinstance(error.character, int) else ord(error.character)
        problem = f"holds the character U+{character:04X}; remove it: YAML allows no control characters"
        raise ScenarioError(line, "syntax", problem) from None
    except RecursionError:
        raise _too_deep(1) from None
    except yaml.YAMLError as error:
        raise ScenarioError(1, "syntax", f"{' '.join(str(error).split())}; correct the YAML") from None
    if root is None:
        raise ScenarioError(1, "file", "is empty; write a scenario (name:, model:, ...) or remove the file")
    return _Builder().value(root)


def _decode(content: bytes) -> str:
    if len(content) > MAX_BYTES:
        problem = f"is {len(content):,} bytes long, the limit is {MAX_BYTES:,}; split it"
        raise ScenarioError(1, "file", problem)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        problem = f"byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise ScenarioError(line, "encoding", problem) from None


def _too_deep(line: int) -> ScenarioError:
    return ScenarioError(line, "syntax", f"is nested more than {MAX_DEPTH} deep; write it flatter")


def _syntax(error: yaml.MarkedYAMLError) -> ScenarioError:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark is not None else 1
    problem = " ".join(part for part in (error.context, error.problem) if part)
    if "expected a single document" in problem:
        return ScenarioError(line, "syntax", "holds a second document (`---`); put it into a file of its own")
    if ("cannot start any token" in problem and "\\t" in problem) or "tab" in problem:
        return ScenarioError(line, "syntax", f"{problem}; indent with spaces, not tabs")
    return ScenarioError(line, "syntax", f"{problem}; correct the YAML here or in the lines above")


class _Builder:
    """Turns libyaml's nodes into values; counts what aliases make of them."""

    def __init__(self) -> None:
        self._nodes = 0
        self._open: set[int] = set()  # ids of the collections being built: an alias to one of them has no end

    def value(self, node: yaml.Node) -> Any:
        self._nodes += 1
        line: int = node.start_mark.line + 1
        if self._nodes > MAX_NODES:
            problem = f"holds more than {MAX_NODES:,} values once its aliases are expanded; use fewer aliases"
            raise ScenarioError(line, "syntax", problem)
        if isinstance(node, yaml.ScalarNode):
            return _scalar(node, line)
        if id(node) in self._open:
            raise ScenarioError(line, "syntax", "holds an alias to itself; write the value out")
        if len(self._open) >= MAX_DEPTH:
            raise _too_deep(line)
        self._open.add(id(node))
        try:
            return self._sequence(node, line) if isinstance(node, yaml.SequenceNode) else self._mapping(node, line)
        finally:
            self._open.discard(id(node))

    def _sequence(self, node: yaml.SequenceNode, line: int) -> YamlList:
        _check_tag(node, "seq", line)
        made = YamlList(line)
        for child in node.value:
            made.append(self.value(child))
            made.lines.append(child.start_mark.line + 1)
        return made

    def _mapping(self, node: yaml.Node, line: int) -> YamlMap:
        _check_tag(node, "map", line)
        made = YamlMap(line)
        merged: Any = None
        merge_line = 0
        for key_node, value_node in node.value:
            at = key_node.start_mark.line + 1
            if key_node.tag == f"{_TAG}merge":
                if merge_line:
                    raise ScenarioError(at, "<<", f"stands twice, first in line {merge_line}; write `<<: [*a, *b]`")
                merged, merge_line = self.value(value_node), at
                continue
            key = _key(key_node, at)
            if key in made:
                problem = f"this key stands twice, first in line {made.lines[key]}; remove one"
                raise ScenarioError(at, key, problem)
            made.put(key, self.value(value_node), at)
        for source in _merge_sources(merged, merge_line):
            for key, value in source.items():
                if key not in made:
                    made.put(key, value, source.lines[key])
        return made


def _merge_sources(merged: Any, line: int) -> list[YamlMap]:
    if not line:
        return []
    sources = [merged] if isinstance(merged, YamlMap) else merged
    if not isinstance(sources, list) or not all(isinstance(source, YamlMap) for source in sources):
        raise ScenarioError(line, "<<", "merges something that is no mapping; name an alias of a mapping")
    return sources


def _key(node: yaml.Node, line: int) -> str:
    if not isinstance(node, yaml.ScalarNode):
        raise ScenarioError(line, "syntax", "a list or mapping stands as a key; write a word")
    if node.tag != f"{_TAG}str":
        raise ScenarioError(line, str(node.value), "a key must be text; put it in quotes")
    key: str = node.value
    if not key.isprintable():
        raise ScenarioError(line, ascii(key)[1:-1], "the key has control characters; remove them")
    return key


def _check_tag(node: yaml.Node, kind: str, line: int) -> None:
    if node.tag != f"{_TAG}{kind}":
        raise ScenarioError(line, "syntax", f"the tag {_short(node.tag)} is not supported; remove it")


def _short(tag: str) -> str:
    return f"!!{tag.removeprefix(_TAG)}" if tag.startswith(_TAG) else tag


def _scalar(node: yaml.ScalarNode, line: int) -> Any:
    text: str = node.value
    tag = node.tag.removeprefix(_TAG)
    try:
        if tag == "str" or tag == "merge":
            return text
        if tag == "int" and _INT.match(text):
            return _integer(text)
        if tag == "float" and _FLOAT.match(text):
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        if tag == "bool" and _BOOL.match(text):
            return text[0] in "tT"
        if tag == "null" and _NULL.match(text):
            return None
    except ValueError as error:
        raise ScenarioError(line, "syntax", f"{text[:40]!r}: {error}; write a number of usual size") from None
    if tag in {"int", "float", "bool", "null"}:
        raise ScenarioError(line, "syntax", f"{text[:40]!r} is no {tag}; remove the tag {_short(node.tag)}")
    raise ScenarioError(line, "syntax", f"the tag {_short(node.tag)} is not supported; remove it")


def _integer(text: str) -> int:
    if text.startswith("0o"):
        return int(text[2:], 8)
    if text.startswith("0x"):
        return int(text[2:], 16)
    return int(text)
