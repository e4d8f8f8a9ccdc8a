"""Who may import whom, read from the syntax trees: imports go down only."""

import ast
import sys
from pathlib import Path

import pytest

HARNESS = Path(__file__).parent.parent / "harness"

PURE = {
    *(
        "scenario",
        "journal",
        "metrics",
        "telemetry",
        "classify",
        "record",
        "units",
        "labels",
        "exits",
        "flops",
        "peaks",
    ),
}
EFFECTS = {"engines", "sampling", "environment", "leases", "forward", "assets", "stacks", "cache"}
# room -> rooms it may import; its own modules always, the standard library always.
MAY_IMPORT: dict[str, set[str]] = {
    "plugin": {"attempt", "reports", *PURE, *EFFECTS, "probe"},
    "cli": {"attempt", "reports", "doctor", *PURE, *EFFECTS, "probe"},
    "attempt": {"doctor", *PURE, *EFFECTS, "probe"},
    "doctor": {*PURE, *EFFECTS, "probe"},
    "reports": {"record", "units", "journal", "metrics", "scenario", "probe"},
    "engines": {*PURE, "probe", "supervise"},
    "sampling": {*PURE, "probe", "watch"},
    "environment": {*PURE, "probe"},
    "leases": {*PURE, "probe", "watch"},
    "stacks": {*PURE, "probe", "cache", "requirements"},
    "requirements": set(),
    "cache": set(),
    "forward": {"probe"},
    "assets": {*PURE, "probe", "cache"},
    "scenario": {"record", "units", "probe"},
    "labels": {"scenario"},
    "exits": {"record"},
    "metrics": {"journal", "record", "units", "probe", "flops", "peaks"},
    "classify": {"journal", "metrics", "record", "units", "probe"},
    "journal": {"probe"},
    "telemetry": set(),
    "record": {"probe", "telemetry"},
    "units": set(),
    "flops": set(),
    "peaks": set(),
    "probe": set(),
    "supervise": {"watch"},
    "watch": set(),
}
# room -> packages from outside the standard library.
THIRD_PARTY: dict[str, set[str]] = {
    "plugin": {"pytest", "_pytest", "xdist", "execnet", "pytest_benchmark", "yaml"},
    "cli": {"typer", "rich"},
    "scenario": {"yaml", "pydantic", "packaging"},
    "record": {"pydantic"},
    "sampling": {"pynvml"},
    # inside functions alone, under the interpreter that has it
    "forward": {"aim"},
    # inside functions alone: these run under the interpreter that is measured
    "probe": {"torch", "transformers", "accelerate", "peft"},
    "assets": {"torch", "transformers", "huggingface_hub", "pyarrow"},
}
ON_DEMAND = Path("probe/callback.py")  # made of a class of transformers; imported inside functions alone itself
IMPURE = {"subprocess", "time", "socket", "threading", "signal", "random"}
MODULES = sorted(
    path.relative_to(HARNESS) for path in HARNESS.rglob("*.py") if len(path.relative_to(HARNESS).parts) > 0
)


def room(module: Path) -> str:
    return module.parts[0].removesuffix(".py")


def imports(module: Path) -> list[tuple[str, int, bool]]:
    """(absolute dotted name, line, at module level) of every import."""
    tree = ast.parse((HARNESS / module).read_text())
    top = {id(node) for node in tree.body}
    found = []
    package = ("harness", *module.parts[:-1])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno, id(node) in top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            name = ".".join(part for part in (base, node.module or "") if part)
            names = [f"{name}.{alias.name}" for alias in node.names] if name == "harness" else [name]
            found += [(each, node.lineno, id(node) in top) for each in names]
    return found


@pytest.mark.parametrize("module", MODULES, ids=str)
def test_imports_go_down(module: Path) -> None:
    here = room(module)
    if here == "__init__":
        return
    assert here in MAY_IMPORT, f"{here} is a new room: say in MAY_IMPORT what it may import"
    for name, line, top in imports(module):
        first, _, rest = name.partition(".")
        where = f"harness/{module}:{line}"
        if first == "harness":
            other = rest.partition(".")[0]
            assert other in {*MAY_IMPORT[here], here, "__version__", ""}, f"{where}: {here} may not import {other}"
        elif first not in sys.stdlib_module_names:
            assert first in THIRD_PARTY.get(here, set()), f"{where}: {here} may not import {first}"
            inside = here not in ("probe", "assets") or not top or module == ON_DEMAND
            assert inside, f"{where}: {here} imports {first} inside functions alone"


def test_the_callback_is_imported_on_demand() -> None:
    by = [module for module in MODULES for name, _, top in imports(module) if top and name == "harness.probe.callback"]
    assert by == []


@pytest.mark.parametrize("module", [m for m in MODULES if room(m) in PURE], ids=str)
def test_pure_rooms_have_no_effects(module: Path) -> None:
    used = {name.partition(".")[0] for name, _, _ in imports(module)} & IMPURE
    # A signal's name and number are facts, not an effect.
    assert used <= ({"signal"} if room(module) == "classify" else set())
    assert "environ" not in {
        n.attr for n in ast.walk(ast.parse((HARNESS / module).read_text())) if isinstance(n, ast.Attribute)
    }


def test_pytest_is_known_to_the_plugin_alone() -> None:
    knows = {
        room(m)
        for m in MODULES
        for name, _, _ in imports(m)
        if name.partition(".")[0] in ("pytest", "_pytest", "xdist")
    }
    assert knows <= {"plugin"}


def test_every_room_of_the_table_is_there() -> None:
    assert set(MAY_IMPORT) == {room(module) for module in MODULES} - {"__init__"}
