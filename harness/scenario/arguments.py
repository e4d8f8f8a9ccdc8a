"""Checks a scenario's `training` against the TrainingArguments of the stack that will run it.

The installed source is parsed, never imported: the stack may be another interpreter's, and importing transformers takes
seconds."""

import ast
import difflib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.scenario.load import Case

CLASS = "TrainingArguments"

# Names that transformers gave up, where likeness alone would not lead from the old to the new one.
_RENAMED = {
    "evaluation_strategy": "eval_strategy",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "group_by_length": "train_sampling_strategy",
    "warmup_ratio": "warmup_steps",
    "gradient_checkpointing": "activation_checkpointing",
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
    "activation_checkpointing": "gradient_checkpointing",
    "activation_checkpointing_kwargs": "gradient_checkpointing_kwargs",
    "batch_size": "per_device_train_batch_size",
    "epochs": "num_train_epochs",
    "lr": "learning_rate",
    "adafactor": "optim",
    "use_liger": "use_liger_kernel",
    "deepspeed_config": "deepspeed",
}
_SIMPLE: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (float, int),
    "str": (str,),
    "dict": (dict,),
    "Dict": (dict,),
    "list": (list,),
    "List": (list,),
    "None": (type(None),),
}
# Enumerations whose members are given as text.
_TEXT_ENUMS = ("SchedulerType", "OptimizerNames", "IntervalStrategy", "SaveStrategy", "HubStrategy", "DebugOption")
_WORDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
_WORDS |= {dict: "a mapping", list: "a list", type(None): "null"}


@dataclass(frozen=True)
class Field:
    """A field of TrainingArguments; `accepts` is None where the annotation says too little to refuse a value."""

    name: str
    accepts: frozenset[type] | None


def check_training(case: Case, training_args_source: Path) -> str | None:
    """What is wrong with `training`, as `file:line: training.key: what is wrong; remedy` lines; None when nothing is.

    `training_args_source` is the `transformers/training_args.py` of the measured stack; it is parsed once a path.  A
    source that cannot be read or has no TrainingArguments is itself the error."""
    if case.scenario.trainer.kind != "hf":
        return None
    try:
        fields = training_fields(training_args_source)
    except (OSError, SyntaxError, ValueError) as error:
        return f"{case.source}: training: cannot be checked: {training_args_source}: {error}; repair the installation"
    found = []
    for key, value in case.scenario.training.items():
        problem = _problem(key, value, fields)
        if problem is not None:
            line = case.training_lines.get(key, case.source.line)
            found.append((line, f"{case.source.file}:{line}: training.{key}: {problem}"))
    return "\n".join(text for _, text in sorted(found)) or None


def _problem(key: str, value: Any, fields: dict[str, Field]) -> str | None:
    if key not in fields:
        new = _RENAMED.get(key)
        near = [new] if new in fields else difflib.get_close_matches(key, fields, n=1, cutoff=0.6)
        remedy = f"did you mean {near[0]!r}?" if near else "see the fields of the installed TrainingArguments"
        return f"is no field of the installed TrainingArguments; {remedy}"
    accepts = fields[key].accepts
    if accepts is None or type(value) in accepts:
        return None
    words = " or ".join(_WORDS[kind] for kind in _WORDS if kind in accepts and not (kind is int and float in accepts))
    shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return f"must be {words}, got {shown[:60]}; correct the value"


@functools.cache
def training_fields(source: Path) -> dict[str, Field]:
    """The fields that TrainingArguments can be given, by name, base classes' included.

    Raises OSError, SyntaxError, or ValueError when the file has no such class."""
    found = {field.name: field for field in _class_fields(source, CLASS, depth=0)}
    if not found:
        raise ValueError(f"has no class {CLASS} with fields")
    return found


def _class_fields(source: Path, name: str, depth: int) -> Iterator[Field]:
    """Base classes' fields first, so that a class's own replace them.  Bases are followed through relative imports."""
    tree = ast.parse(source.read_bytes(), filename=str(source))
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    if name not in classes:
        return
    for base in classes[name].bases:
        if not isinstance(base, ast.Name) or depth > 8:
            continue
        if base.id in classes:
            yield from _class_fields(source, base.id, depth + 1)
        elif (home := _imported_from(tree, base.id, source)) is not None:
            yield from _class_fields(home, base.id, depth + 1)
    for node in classes[name].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_parameter(node):
            yield Field(node.target.id, _accepted(node))


def _imported_from(tree: ast.Module, name: str, source: Path) -> Path | None:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level and any(alias.name == name for alias in node.names):
            home = source.parents[node.level - 1].joinpath(*(node.module or "").split(".")).with_suffix(".py")
            return home if home.is_file() else None
    return None


def _is_parameter(node: ast.AnnAssign) -> bool:
    if "ClassVar" in ast.unparse(node.annotation):
        return False
    keywords = node.value.keywords if isinstance(node.value, ast.Call) else []
    return not any(
        word.arg == "init" and isinstance(word.value, ast.Constant) and not word.value.value for word in keywords
    )


def _accepted(node: ast.AnnAssign) -> frozenset[type] | None:
    accepted = _of_annotation(node.annotation)
    if accepted is None:
        return None
    # `nargs="?", const=True` on the command line: the field takes a bare true as well, whatever its annotation says.
    if isinstance(node.value, ast.Call) and "'const': True" in ast.unparse(node.value):
        accepted |= {bool}
    return accepted


def _of_annotation(annotation: ast.expr) -> frozenset[type] | None:
    """The types an annotation takes; None for one that has a part unknown here."""
    match annotation:
        case ast.Constant(value=None):
            return frozenset({type(None)})
        case ast.Constant(value=str(text)):
            return _of_annotation(ast.parse(text, mode="eval").body)
        case ast.Name(id=name) if name in _SIMPLE:
            return frozenset(_SIMPLE[name])
        case ast.Name(id=name) if name in _TEXT_ENUMS:
            return frozenset({str})
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _union([left, right])
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            inside = _of_annotation(inner)
            return None if inside is None else inside | {type(None)}
        case ast.Subscript(value=ast.Name(id="Union"), slice=ast.Tuple(elts=members)):
            return _union(members)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
            members = inner.elts if isinstance(inner, ast.Tuple) else [inner]
            return frozenset(type(member.value) for member in members if isinstance(member, ast.Constant))
        case ast.Subscript(value=ast.Name(id=name)) if name in _SIMPLE:
            return frozenset(_SIMPLE[name])
        case _:
            return None


def _union(members: list[ast.expr]) -> frozenset[type] | None:
    accepted: frozenset[type] = frozenset()
    for member in members:
        inside = _of_annotation(member)
        if inside is None:
            return None
        accepted |= inside
    return accepted
