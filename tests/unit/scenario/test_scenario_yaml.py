"""The YAML reader: the scalars of YAML 1.2's core schema, lines, and what it refuses."""

import math
from typing import Any

import pytest

from harness.scenario.located import ScenarioError, line_of, plain
from harness.scenario.yaml12 import MAX_BYTES, read


def refused(content: str | bytes) -> ScenarioError:
    with pytest.raises(ScenarioError) as caught:
        read(content.encode() if isinstance(content, str) else content)
    return caught.value


@pytest.mark.parametrize(
    "written, value",
    [
        ("1e-4", 1e-4),
        ("1E5", 1e5),
        ("1.", 1.0),
        (".5", 0.5),
        ("-1.5e+3", -1500.0),
        ("12", 12),
        ("+12", 12),
        ("-0", 0),
        ("012", 12),
        ("0o14", 12),
        ("0x1F", 31),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("0b11", "0b11"),
        ("1e", "1e"),
        (".", "."),
        ("no", "no"),
        ("on", "on"),
        ("yes", "yes"),
        ("Off", "Off"),
        ("n", "n"),
        ("true", True),
        ("TRUE", True),
        ("False", False),
        ("tRUE", "tRUE"),
        ("null", None),
        ("~", None),
        ("", None),
        ("nULL", "nULL"),
        ("2026-12-01", "2026-12-01"),
        ("=", "="),
        ("'1e-4'", "1e-4"),
        ('"true"', "true"),
        ("!!str 012", "012"),
        ("!!int 7", 7),
        ("!!float 7", 7.0),
        (".inf", math.inf),
        ("-.INF", -math.inf),
    ],
    ids=repr,
)
def test_scalars(written: str, value: object) -> None:
    found = read(f"key: {written}\n".encode())["key"]
    assert found == value
    assert type(found) is type(value)


def test_not_a_number_is_read_and_refused_where_values_are_made_plain() -> None:
    document = read(b"a:\n  b: .nan\n")
    assert math.isnan(document["a"]["b"])
    with pytest.raises(ScenarioError, match=r"2: a\.b: nan is not a finite number"):
        plain(document)


def test_every_key_and_item_knows_its_line() -> None:
    document = read(b"# comment\na: 1\nb:\n  c: [x,\n      y]\n  d:\n  - 1\n  - e: 2\n")
    paths: list[tuple[list[str | int], int]] = [
        (["a"], 2),
        (["b"], 3),
        (["b", "c", 1], 5),
        (["b", "d", 1, "e"], 8),
        (["b", "missing"], 3),
        (["b", "d", 7], 6),
    ]
    assert [line_of(document, path) for path, _ in paths] == [line for _, line in paths]


def test_anchors_aliases_and_merges() -> None:
    text = "base: &base {a: 1, b: 2}\nsame: *base\nover:\n  <<: *base\n  b: 3\nmany:\n  <<: [{a: 9}, *base]\n"
    document = read(text.encode())
    assert plain(document) == {
        "base": {"a": 1, "b": 2},
        "same": {"a": 1, "b": 2},
        "over": {"a": 1, "b": 3},
        "many": {"a": 9, "b": 2},
    }
    assert document["over"].lines == {"b": 5, "a": 1}


BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join(['*' + before] * 10)}]\n"
    for before, name in zip("abcdefghi", "bcdefghij", strict=True)
)


@pytest.mark.parametrize(
    "content, line, key, words",
    [
        pytest.param("a: 1\nb: 2\na: 3\n", 3, "a", "stands twice, first in line 1; remove one", id="duplicate"),
        pytest.param("a:\n  b: 1\n  'b': 2\n", 3, "b", "stands twice", id="duplicate-quoted"),
        pytest.param("a: [\n", 2, "syntax", "correct the YAML", id="open-bracket"),
        pytest.param("a: 1\n\tb: 2\n", 2, "syntax", "spaces, not tabs", id="tab"),
        pytest.param("a: b: c\n", 1, "syntax", "mapping values are not allowed", id="two-colons"),
        pytest.param("a: 1\n---\nb: 2\n", 2, "syntax", "second document", id="documents"),
        pytest.param("", 1, "file", "is empty", id="empty"),
        pytest.param("# only a comment\n", 1, "file", "is empty", id="comment"),
        pytest.param(b"a: 1\nb: \xe9\n", 2, "encoding", "save the file as UTF-8", id="latin-1"),
        pytest.param("a: 1\n".encode("utf-16"), 1, "encoding", "save the file as UTF-8", id="utf-16"),
        pytest.param("a: 1\nb: \x07\n", 2, "syntax", "control characters", id="control"),
        pytest.param(BOMB, None, "syntax", "use fewer aliases", id="bomb"),
        pytest.param("a: &a [1, *a]\n", 1, "syntax", "alias to itself", id="recursive"),
        pytest.param("a: &a\n  b: *a\n", 1, "syntax", "alias to itself", id="recursive-map"),
        pytest.param("a: *b\n", 1, "syntax", "undefined alias", id="undefined"),
        pytest.param("<<: 3\n", 1, "<<", "merges something that is no mapping", id="merge-number"),
        pytest.param("a: &a {}\nb:\n  <<: *a\n  <<: *a\n", 4, "<<", "first in line 3", id="merge-twice"),
        pytest.param("a: !!python/object/apply:os.system [ls]\n", 1, "syntax", "not supported", id="python-tag"),
        pytest.param("a: !secret x\n", 1, "syntax", "the tag !secret", id="own-tag"),
        pytest.param("a: !!binary aGk=\n", 1, "syntax", "the tag !!binary", id="binary"),
        pytest.param("a: !!int x\n", 1, "syntax", "'x' is no int", id="wrong-tag"),
        pytest.param("1: a\n", 1, "1", "put it in quotes", id="number-key"),
        pytest.param("? [a]\n: b\n", 1, "syntax", "stands as a key", id="list-key"),
        pytest.param('"a\\u0001": b\n', 1, "a\\x01", "control characters", id="control-key"),
        pytest.param(f"a: {'9' * 5000}\n", 1, "syntax", "number of usual size", id="huge-number"),
        pytest.param(f"a: {'[' * 100}{']' * 100}\n", 1, "syntax", "deep", id="deep"),
        pytest.param(f"a: {'[' * 50000}{']' * 50000}\n", 1, "syntax", "depth", id="hostile-depth"),
        pytest.param(b"a: 1\n" * (MAX_BYTES // 5 + 1), 1, "file", "split it", id="huge-file"),
    ],
)
def test_what_is_refused(content: str | bytes, line: int | None, key: str, words: str) -> None:
    error = refused(content)
    assert (error.key, words in error.problem) == (key, True), error
    assert line in (None, error.line)
    assert "; " in error.problem or ": " in error.problem  # a remedy


def test_a_byte_order_mark_is_no_part_of_the_first_key() -> None:
    document: Any = read("\ufeffname: x\n".encode())
    assert list(document) == ["name"]


@pytest.mark.parametrize(
    "text, allowed",
    [
        ('env: {A: "x\\ny"}', True),
        ('trainer: {args: ["x\\ty"]}', True),
        ('labels: {a: "x\\ny"}', False),
        ('env: {A: "x\\0y"}', False),
        ('labels: {a: "\\x1b[31m"}', False),
        ('labels: {a: "\\x9b"}', False),
        ('labels: {a: "größer 日本"}', True),
    ],
    ids=ascii,
)
def test_control_characters(text: str, allowed: bool) -> None:
    def attempt() -> None:
        plain(read(text.encode()))

    if allowed:
        attempt()
    else:
        with pytest.raises(ScenarioError, match=r"1: (labels\.a|env\.A): holds the control character U\+"):
            attempt()
