"""The labels that no scenario gives, the same for pytest and `harness exec`: those of a command line,
`--label KEY=VALUE` and `--labels-file FILE`, and those of the surroundings, which are defaults."""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.scenario.located import ScenarioError
from harness.scenario.yaml12 import read

LABEL_KEY = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")

# CI system -> the variables that it documents, and the address of the job that they make.
CI_JOBS = {
    "GitHub Actions": "{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}/actions/runs/{GITHUB_RUN_ID}",
    "GitLab": "{CI_JOB_URL}",
    "CircleCI": "{CIRCLE_BUILD_URL}",
    "Buildkite": "{BUILDKITE_BUILD_URL}",
    "Jenkins": "{BUILD_URL}",
}
SHORT_COMMIT = 12  # digits; git's own 7 are not unique in a large repository


def found(repository: Mapping[str, Any] | None, environ: Mapping[str, str], host: str) -> dict[str, str]:
    """Labels of the surroundings: `git`, `ci_job_url` and `host`; what is not known has none.

    `repository`: commit and `dirty` of the folder in which the harness was started."""
    labels = {"host": host} if host else {}
    if repository is not None:
        labels["git"] = repository["commit"][:SHORT_COMMIT] + ("+dirty" if repository["dirty"] else "")
    for form in CI_JOBS.values():
        names = re.findall(r"\{(\w+)\}", form)
        if all(environ.get(name) for name in names):
            labels["ci_job_url"] = form.format_map({name: environ[name] for name in names})
            break
    return labels


def gather(arguments: Iterable[str], file: Path | None) -> dict[str, str]:
    """The labels of a file and of `KEY=VALUE` arguments, which win over it.  Raises ValueError, to be shown."""
    return (read_labels_file(file) if file is not None else {}) | parse_labels(arguments)


def parse_labels(arguments: Iterable[str]) -> dict[str, str]:
    """Labels of `KEY=VALUE` arguments, the last of a key winning.  Raises ValueError."""
    labels = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            raise ValueError(f"--label {argument!r}: expected a key and a value with = between")
        labels[_checked_key(key, "--label")] = value
    return labels


def read_labels_file(path: Path) -> dict[str, str]:
    """Labels of a YAML or JSON mapping of scalars.  Raises ValueError, naming the file."""
    try:
        content = path.read_bytes()
        document = read(content) if content.strip() else None
    except OSError as error:
        raise ValueError(f"--labels-file {path}: {error.strerror}") from error
    except ScenarioError as error:
        raise ValueError(f"--labels-file {path}:{error.line}: {error.key}: {error.problem}") from error
    if not isinstance(document, dict):
        raise ValueError(f"--labels-file {path}: expected a mapping of labels, found {_kind_of(document)}")
    return {_checked_key(key, f"--labels-file {path}"): _scalar(key, value, path) for key, value in document.items()}


def _checked_key(key: object, where: str) -> str:
    if isinstance(key, str) and LABEL_KEY.fullmatch(key):
        return key
    raise ValueError(
        f"{where}: label key {key!r}: use 1 to 63 letters, digits and . _ / -, with a letter or digit at both ends"
    )


def _scalar(key: object, value: object, path: Path) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError(f"--labels-file {path}: label {key!r}: expected a text or a number, found {_kind_of(value)}")


def _kind_of(value: object) -> str:
    for kind, words in ((dict, "a mapping"), (list, "a list"), (type(None), "nothing")):
        if isinstance(value, kind):
            return words
    return repr(value)
