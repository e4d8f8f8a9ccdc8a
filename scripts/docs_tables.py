"""Writes what the documentation takes from the code: the tables of docs/metrics.md and docs/record.schema.json.

    python scripts/docs_tables.py [--check]

With --check nothing is written: exit code 1 when the files differ from what would be, as a test asks."""

import json
import re
import sys
from pathlib import Path

from harness.metrics import figures
from harness.peaks import TABLE
from harness.record import Record
from harness.telemetry import figures as telemetry

DOCS = Path(__file__).parent.parent / "docs"


def schema() -> str:
    """JSON Schema (2020-12) of a case's record."""
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Record.model_json_schema()}
    for name, figure in figures.FIGURES.items():
        formula = re.sub(r"; see \[below\]\(.*?\)|[*`]", "", figure.formula)
        null = "" if figure.null.startswith("never") else f"; null: {figure.null}"
        said = f"{formula} [{figure.unit}, {figure.scope}{null}]"
        document["$defs"]["Measurements"]["properties"][name]["description"] = said
    for kind, (_, rows) in telemetry.TABLES.items():
        for name, row in rows.items():
            null = "" if row.null.startswith("never") else f"; null: {row.null}"
            what = re.sub(r"; see \[.*?\]\(.*?\)|: see \[.*?\]\(.*?\)|[*`]", "", row.what)
            document["$defs"][kind]["properties"][name]["description"] = f"{what} [{row.unit}{null}]"
    return json.dumps(document, indent=1) + "\n"


def peaks() -> str:
    """The table of peaks as Markdown."""
    rows = ["| name, without the maker's (a pattern) | TFLOP/s, dense | source |", "|---|---|---|"]
    for row in TABLE:
        figures_of = ", ".join(f"{dtype} {value:g}" for dtype, value in row.tflops.items())
        pattern = row.name.replace("|", "\\|")
        rows.append(f"| `{pattern}` | {figures_of} | {row.source} |")
    return "\n".join(rows) + "\n"


def with_tables(text: str) -> str:
    """The page with its tables replaced."""
    tables = {"figures": figures.table(), "peaks": peaks(), "telemetry": telemetry.tables()}
    for name, table in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        text = re.sub(f"{begin}.*?{end}", lambda _, t=f"{begin}{table}{end}": t, text, flags=re.DOTALL)  # type: ignore[misc]
    return text


def main() -> int:
    page = DOCS / "metrics.md"
    files = {page: with_tables(page.read_text(encoding="utf-8")), DOCS / "record.schema.json": schema()}
    differing = [path for path, text in files.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path in differing:
        print(path.name)
        if "--check" not in sys.argv:
            path.write_text(files[path], encoding="utf-8")
    return int(bool(differing) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
