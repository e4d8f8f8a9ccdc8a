"""What files of requirements, and pip's variables, name on this machine: all that decides what pip installs, to be
hashed.  Reads the lines as pip does."""

import codecs
import hashlib
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote

# Options, and variables, whose values name files that pip reads lines of, and where it looks for wheels.
_READ = {"-r", "--requirement", "-c", "--constraint"}
_READ_VARIABLES = ("PIP_REQUIREMENT", "PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT")
_SEARCHED = {"-f", "--find-links"}
_SEARCHED_VARIABLE = "PIP_FIND_LINKS"
_ARCHIVES = (".whl", ".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz", ".tar.xz", ".txz")
_VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")  # as pip fills in
_SETTLED_S = 2.0  # a file's times tick too slowly to tell two writes in a row apart
# UTF-32's begins with UTF-16's.
_MARKS = [
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
]


def contents(path: Path, base: Path, environ: Mapping[str, str]) -> Iterator[bytes]:
    """A file of requirements, and the files on this machine that it names: included ones, wheels, archives.

    `base`: where pip stands; relative paths of wheels begin there.  Raises OSError."""
    return _contents(path, base, environ, set())


def named_by(environ: Mapping[str, str], base: Path) -> Iterator[bytes]:
    """The same of the variables that pip takes options from.  Raises OSError."""
    for name in _READ_VARIABLES:
        for place in environ.get(name, "").split():
            yield name.encode()
            yield from _included(place, base, base, environ, set())
    for place in environ.get(_SEARCHED_VARIABLE, "").split():
        yield from _found(place, base, base)


def _contents(path: Path, base: Path, environ: Mapping[str, str], seen: set[Path]) -> Iterator[bytes]:
    """A file of requirements, and the files on this machine that it names: included ones, wheels, archives."""
    if path.resolve() in seen:
        return
    seen.add(path.resolve())
    content = path.read_bytes()
    yield content
    for line in _text(content).replace("\\\n", " ").splitlines():
        written = re.sub(r"(?:^|\s)#.*", "", line).strip()
        plain = _VARIABLE.sub(lambda found: environ.get(found[1]) or found[0], written)
        if plain.startswith("-"):
            for option, place in _options(plain):
                if option in _READ:
                    yield from _included(place, path.parent, base, environ, seen)
                elif option in _SEARCHED:
                    yield from _found(place, path.parent, base)
        elif named := _local_file(plain, base):
            yield _digest(named)
        elif plain != written and "://" not in plain:  # an address may hold a password, which is no part of a stack
            yield plain.encode()


def _text(content: bytes) -> str:
    """As pip reads it: by the mark at its beginning, which Windows writes, else as UTF-8."""
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            return content[len(mark) :].decode(encoding, errors="replace")
    return content.decode(errors="replace")


def _options(line: str) -> Iterator[tuple[str, str]]:
    """Options of a line and their values, read as pip does; an option without a value has the next word."""
    try:
        words = shlex.split(line)
    except ValueError:  # pip's to tell
        words = line.split()
    for word, after in zip(words, [*words[1:], ""], strict=True):
        option, value = word.split("=", 1) if "=" in word and word.startswith("--") else (word, after)
        if not word.startswith("--") and len(word) > 2:
            option, value = word[:2], word[2:]
        yield option, value


def _included(place: str, folder: Path, base: Path, environ: Mapping[str, str], seen: set[Path]) -> Iterator[bytes]:
    path = _on_disk(place)
    if path:
        yield from _contents(folder / path, base, environ, seen)


def _found(place: str, folder: Path, base: Path) -> Iterator[bytes]:
    """What pip finds by --find-links: the archives of a folder, by name, or a page."""
    path = _on_disk(place)
    if not path:
        return
    there = folder / path if (folder / path).exists() else base / path
    if there.is_file():
        yield _digest(there)
    elif there.is_dir():
        for archive in sorted(there.iterdir()):
            if archive.name.endswith(_ARCHIVES) and archive.is_file():
                yield archive.name.encode()
                yield _digest(archive)


def _local_file(line: str, base: Path) -> Path | None:
    place = re.split(r"\s[;-]|\s*;", re.sub(r"^.*?\s?@\s*(?=file:)", "", line), maxsplit=1)[0]
    path = _on_disk(re.sub(r"\[[^\[\]]*\]\s*$", "", place).strip())  # its extras
    return base / path if path and (base / path).is_file() else None


def _on_disk(place: str) -> str | None:
    """The path that a name or a file: address stands for; None for an address elsewhere."""
    path = place.partition("#")[0]
    if path.startswith("file:"):
        return unquote(re.sub(r"^file:(?://(?:localhost(?=/))?)?", "", path))
    return None if "://" in path or "\0" in path else path


def _digest(path: Path) -> bytes:
    """A folder of wheels may hold gigabytes, and every case asks: what has not changed is read once."""
    told = path.stat()
    if time.time() - max(told.st_mtime, told.st_ctime) < _SETTLED_S:
        return _read_digest(path)
    return _known_digest(path, told.st_size, told.st_mtime_ns, told.st_ctime_ns, told.st_ino)


@lru_cache(maxsize=4096)
def _known_digest(path: Path, *_: int) -> bytes:
    return _read_digest(path)


def _read_digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
