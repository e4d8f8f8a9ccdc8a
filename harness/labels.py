"""Labels from a command line: `--label KEY=VALUE` and `--labels-file FILE`, the same for pytest and `harness exec`."""

import re
from collections.abc import Iterable
from pathlib import Path

from harness.scenario.located import ScenarioError
from harness.scenario.yaml12 import read

LABEL_KEY = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")


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
