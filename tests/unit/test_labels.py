"""Labels of a command line and of the surroundings: where they come from, which wins, and what is refused."""

import json
from pathlib import Path

import pytest

from harness.labels import LABEL_KEY, found, gather, parse_labels, read_labels_file


def test_an_argument_wins_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "labels.yaml"
    path.write_text("a: file\nb: file\n")
    assert gather(["a=argument"], path) == {"a": "argument", "b": "file"}
    assert gather([], None) == {}


@pytest.mark.parametrize(
    "content, text",
    [
        (None, "No such file"),
        (b"a: [1", "labels.yaml:2: syntax:"),
        (b"\xff\xfe\x00", "labels.yaml:"),
        (b"", "expected a mapping of labels, found nothing"),
        (b"- a\n", "expected a mapping of labels, found a list"),
        (b"just words", "expected a mapping of labels"),
        (b"a: {b: c}", "label 'a': expected a text or a number, found a mapping"),
        (b"a:", "label 'a': expected a text or a number, found nothing"),
        (b"a: 1\na: 2", "stands twice"),
        (b"a b: 1", "label key 'a b'"),
        (b"1: b", "labels.yaml:1: 1: a key must be text"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, content: bytes | None, text: str) -> None:
    path = tmp_path / "labels.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"^--labels-file ") as refused:
        gather(["good=one"], path)
    assert text in str(refused.value)
    assert str(path) in str(refused.value)


def test_a_labels_file_may_be_json(tmp_path: Path) -> None:
    path = tmp_path / "labels.json"
    path.write_text(json.dumps({"a": "b", "rate": 1e-4, "on": True}))
    assert read_labels_file(path) == {"a": "b", "rate": "0.0001", "on": "true"}


def test_label_arguments() -> None:
    assert parse_labels(["a=1", "b=", "a=2=3"]) == {"a": "2=3", "b": ""}


@pytest.mark.parametrize("key", ["a", "A.b_c-d/e", "x" * 63])
def test_good_label_keys(key: str) -> None:
    assert LABEL_KEY.fullmatch(key)


@pytest.mark.parametrize("key", ["", ".a", "a.", "a b", "a\n", "ä", "x" * 64])
def test_bad_label_keys(key: str) -> None:
    assert not LABEL_KEY.fullmatch(key)


GITHUB = {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "a/b", "GITHUB_RUN_ID": "17"}


@pytest.mark.parametrize(
    "environ, url",
    [
        (GITHUB, "https://github.com/a/b/actions/runs/17"),
        ({"CI_JOB_URL": "https://gitlab.example.org/a/-/jobs/4"}, "https://gitlab.example.org/a/-/jobs/4"),
        ({"BUILD_URL": "https://jenkins.example.org/job/a/4/"}, "https://jenkins.example.org/job/a/4/"),
        ({**GITHUB, "BUILD_URL": "https://something.example.org"}, "https://github.com/a/b/actions/runs/17"),
        ({"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "a/b", "GITHUB_RUN_ID": ""}, None),
        ({}, None),
    ],
)
def test_the_address_of_the_ci_job(environ: dict[str, str], url: str | None) -> None:
    assert found(None, environ, "node1") == {"host": "node1"} | ({"ci_job_url": url} if url else {})


@pytest.mark.parametrize("dirty, told", [(False, "0123456789ab"), (True, "0123456789ab+dirty")])
def test_the_state_of_the_repository(dirty: bool, told: str) -> None:
    assert found({"commit": "0123456789abcdef" * 2, "dirty": dirty}, {}, "") == {"git": told}
