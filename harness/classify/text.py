"""A log's raw lines as text: colours, progress bars, boxes, and prefixes of ranks and times taken off; pure."""

import re
from dataclasses import dataclass

ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
LONGEST = 20_000  # bytes of a line that are read

_RANK = re.compile(
    r"""\[(?:rank|default|Rank\ )(?P<rank>\d+)\]:?\ ?  # torch's excepthook and c10d; torchrun --tee
      | \[(?P<tee>\d+)\]:\ ?(?=\S)                     # torchrun --tee before 2.x, accelerate
      | \[(?P<bare>\d+)\]\ (?=\S)
      | (?P<srun>\d+):\ (?=\S)                         # srun --label
      | \[(?:[\w.-]+@)?\d+,(?P<mpi>\d+)\]<std(?:err|out)>:\ ?  # mpirun --tag-output; Open MPI 5 names its server
    """,
    re.VERBOSE,
)
# Who speaks, but no rank.
_SPEAKER = re.compile(
    r"""\((?P<actor>(?:[A-Za-z_][\w.:]*\ )?pid=\d+(?:,\ ip=[\w.:]+)?)\)\ ?  # Ray, vLLM
      | (?P<host>(?:worker|node)[\w.-]*):\ (?=\S)                          # pdsh
      | \[(?P<pod>pod/[^\]\s]+)\]\ ?                                       # kubectl logs --prefix
      | (?P<container>(?!step|epoch|iter|batch)[a-z][\w.-]*-\d+)\ +\|\ ?    # docker compose
      | (?P<replica>[A-Za-z][\w.-]*/\d+)\ (?=\[(?:default|rank)?\d+\]:)    # torchx
    """,
    re.VERBOSE,
)
_STAMP = re.compile(
    r"""\[?\d{4}-\d\d-\d\d[T\ _]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?\ ?(?:[|:-]\ )?
      | \d\d:\d\d:\d\d(?:[.,]\d+)?\ (?=\S)
      | (?:DEBUG|INFO|WARNING|ERROR)\ \d\d-\d\d\ \d\d:\d\d:\d\d\ \[?[\w./-]+:\d+\]\ ?  # vLLM 0.x
    """,
    re.VERBOSE,
)
# Rich's frames around a traceback, and what tqdm leaves before text that others write on its line.
_BOX = re.compile(r"^[│┃|] ?(.*?) *[│┃|]?$")
_BAR = re.compile(r"^.*?\d+%\|[^|]*\|\s*[\d.]+\w?/[\d.]+\w? \[[^\]]*\](?=\S)")


@dataclass(frozen=True, slots=True)
class Line:
    """A line without its dress."""

    number: int  # from 1
    rank: int | None
    speaker: str | None  # what tells one writer from another where there is no rank
    text: str


def clean(raw: bytes, number: int) -> list[Line]:
    """The lines in a raw line: more than one where carriage returns overwrote a progress bar."""
    if len(raw) > LONGEST:  # of a bar that was redrawn ten thousand times, the end; of anything else, the start
        raw = raw[-LONGEST:] if b"\r" in raw else raw[:LONGEST]
    if b"\x1b" in raw:
        raw = ANSI.sub(b"", raw)
    text = raw.decode("utf-8", errors="replace").replace("\x00", "")
    if "\r" not in text:
        return [undress(text, number)]
    return [undress(part, number) for part in text.split("\r") if part.strip()]


def undress(text: str, number: int) -> Line:
    """Take prefixes off, from the outside in, until none is left.  The innermost rank is the global one."""
    rank, speaker = None, None
    text = text.rstrip()
    if "%|" in text:
        text = _BAR.sub("", text)
    for _ in range(4):
        if found := _RANK.match(text):
            rank = next(int(value) for value in found.groups() if value is not None)
        elif found := _SPEAKER.match(text):
            speaker = next(value for value in found.groups() if value is not None)
        elif not (found := _STAMP.match(text)):
            break
        text = text[found.end() :]
    if text[:1] in ("│", "┃", "╭", "╰"):
        box = _BOX.match(text)
        text = box[1] if box else text
    return Line(number, rank, speaker, text)
