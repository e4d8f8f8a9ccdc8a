"""Matrix expansion and the ids that come of it."""

import itertools
from pathlib import Path

import pytest

from harness.scenario import BadScenario, Case, load_scenarios
from harness.scenario import ids as naming

BASE = "name: s\nmodel: tiny-llama\nprocesses: 1\n"


def cases(folder: Path, text: str) -> list[Case]:
    (folder / "one.yaml").write_text(text)
    found = load_scenarios(folder)
    bad = [entry.error for entry in found if isinstance(entry, BadScenario)]
    assert not bad
    return [entry for entry in found if isinstance(entry, Case)]


def made(folder: Path, matrix: str, base: str = BASE) -> list[str]:
    return [case.id for case in cases(folder, f"{base}matrix:\n{matrix}")]


def error(folder: Path, text: str) -> str:
    (folder / "one.yaml").write_text(text)
    (found,) = load_scenarios(folder)
    assert isinstance(found, BadScenario), found
    return found.error.replace(f"{folder}/", "")


def test_the_product_of_the_axes_in_their_order(tmp_path: Path) -> None:
    assert made(tmp_path, "  method: [full, lora]\n  processes: [1, 2]\n") == [
        "s-full-bs8-seq512-1proc",
        "s-full-bs8-seq512-2proc",
        "s-lora-bs8-seq512-1proc",
        "s-lora-bs8-seq512-2proc",
    ]


@pytest.mark.parametrize(
    "axis, ids",
    [
        ("training.per_device_train_batch_size: [4]", "s-full-bs4-seq512-1proc"),
        ("data.sequence_length: [128]", "s-full-bs8-seq128-1proc"),
        ("gpus: [8]", "s-full-bs8-seq512-8gpu"),
        ("stack: [a/torch-2.4.txt]", "s-full-bs8-seq512-torch-2.4-1proc"),
        ("stack: [[base.txt, ../trl.txt]]", "s-full-bs8-seq512-base.trl-1proc"),
        ("stack: [{requirements: fms.txt, no_deps: fms.last.txt}]", "s-full-bs8-seq512-fms-fms.last-1proc"),
        ("stack.requirements: [fms.txt]", "s-full-bs8-seq512-fms-1proc"),
        ("stack: [null]", "s-full-bs8-seq512-stack.none-1proc"),
        ("python: [python3.12]", "s-full-bs8-seq512-python3.12-1proc"),
        ("training.gradient_accumulation_steps: [2]", "s-full-bs8-seq512-ga2-1proc"),
        ("training.learning_rate: [1e-4, 2.5e-5, 0.01]", "lr1e-4 lr2.5e-5 lr0.01"),
        ("training.gradient_checkpointing: [true, false]", "gc nogc"),
        ("training.max_steps: [-1, 20]", "steps-1 steps20"),
        ("training.optim: [adamw_torch, sgd]", "adamw_torch sgd"),
        ("training.lr_scheduler_kwargs: [null, {a: 1}]", "lr_scheduler_kwargs.none a1"),
        ("training.neftune_noise_alpha: [5.0]", "neftune_noise_alpha5"),
        ("training.logging_strategy: [steps]", "logging_strategy.steps"),
        ("model.dtype: [float32, bfloat16]", "float32 bfloat16"),
        ("model.attention: [sdpa, null]", "sdpa attention.none"),
        ("data.packing: [padded, packed]", "padded packed"),
        ("data.lengths: [fixed, {distribution: uniform, max: 64}]", "fixed uniform-max64"),
        ("data.seed: [1, 2]", "dataseed1 dataseed2"),
        ("env.NCCL_ALGO: [Ring, Tree]", "env.NCCL_ALGO.Ring env.NCCL_ALGO.Tree"),
        ("python: [/opt/a/bin/python, {value: /opt/b/bin/python, label: b}]", "opt-a-bin-python b"),
        ("time_limit: [90m]", "time_limit90m"),
        ("hang_after: [5m, none]", "hang_after5m hang_after.none"),
        ("training.fsdp_config: [{label: v2, version: 2}]", "v2"),
    ],
)
def test_words_of_an_axis(tmp_path: Path, axis: str, ids: str) -> None:
    found = made(tmp_path, f"  {axis}\n")
    if ids.startswith("s-"):
        assert found == ids.split()
    else:
        assert found == [f"s-full-bs8-seq512-{word}-1proc" for word in ids.split()]


@pytest.mark.parametrize(
    "value, words",
    [
        ("full", "full"),
        ("lora", "lora"),
        ("{lora: {rank: 8}}", "lora-r8"),
        ("{lora: {alpha: 32, rank: 16}}", "lora-r16-a32"),
        ("{kind: lora, dropout: 0.05}", "lora-drop0.05"),
        ("{lora: {targets: [q_proj, v_proj]}}", "lora-q_proj.v_proj"),
        ("{lora: {rank: 256}, label: wide}", "wide"),
    ],
)
def test_a_mapping_as_an_axis_value(tmp_path: Path, value: str, words: str) -> None:
    (found,) = cases(tmp_path, f"{BASE}matrix: {{method: [{value}]}}\n")
    assert found.id == f"s-{words}-bs8-seq512-1proc"


def test_models_as_an_axis_keep_what_the_base_says_of_them(tmp_path: Path) -> None:
    base = "name: s\nmodel: {name: tiny-llama, dtype: bfloat16}\ngpus: 1\n"
    text = f"{base}matrix: {{model: [llama-7b, ./own, {{name: llama3-8b, dtype: float16}}]}}\n"
    found = cases(tmp_path, text)
    assert [case.id for case in found] == [
        "s-llama-7b-full-bs8-seq512-1gpu",
        "s-own-full-bs8-seq512-1gpu",
        "s-llama3-8b-float16-full-bs8-seq512-1gpu",
    ]
    models = [case.scenario.model for case in found]
    assert [model.dtype for model in models if model] == ["bfloat16", "bfloat16", "float16"]


def test_a_script_has_only_its_axes_in_its_id(tmp_path: Path) -> None:
    base = "name: own\ntrainer: {target: train.py}\nprocesses: 1\n"
    assert made(tmp_path, "  processes: [1, 2]\n", base) == ["own-1proc", "own-2proc"]
    assert made(tmp_path, "  trainer.args: [[--fast], {label: slow, value: []}]\n", base) == [
        "own-fast-1proc",
        "own-slow-1proc",
    ]
    assert made(tmp_path, "  method: [lora]\n", base) == ["own-lora-1proc"]


def test_ids_do_not_depend_on_order_or_on_other_values(tmp_path: Path) -> None:
    axes = [
        "method: [full, {lora: {rank: 8}}]",
        "training.learning_rate: [1e-4, 1e-3]",
        "processes: [1, 2]",
        "training.warmup_steps: [0]",
        "env.A: [x]",
    ]
    orders = [made(tmp_path, "".join(f"  {axis}\n" for axis in order)) for order in itertools.permutations(axes)]
    assert {tuple(sorted(order)) for order in orders} == {tuple(sorted(orders[0]))}
    keys = BASE.splitlines(keepends=True)
    matrix = "".join(f"  {axis}\n" for axis in axes)
    assert [case.id for case in cases(tmp_path, f"matrix:\n{matrix}{''.join(reversed(keys))}")] == orders[0]
    assert set(orders[0]) < set(made(tmp_path, matrix.replace("[1, 2]", "[4, 2, 1]").replace("[1e-4,", "[5e-5, 1e-4,")))


def test_exclude_takes_combinations_out(tmp_path: Path) -> None:
    matrix = "  method: [full, {lora: {rank: 8}}]\n  processes: [1, 2, 4]\n  exclude:\n"
    entries = "    - {method: full, processes: 4}\n    - {method: {lora: {rank: 8}}, processes: 1}\n"
    assert made(tmp_path, matrix + entries) == [
        "s-full-bs8-seq512-1proc",
        "s-full-bs8-seq512-2proc",
        "s-lora-r8-bs8-seq512-2proc",
        "s-lora-r8-bs8-seq512-4proc",
    ]


def test_include_fills_in_or_adds(tmp_path: Path) -> None:
    matrix = """\
  method: [full, lora]
  gpus: [1, 2]
  include:
    - {needs.gpu_memory: 10GiB}
    - {method: full, needs.gpu_memory: 40GiB, training.max_steps: 5}
    - {method: full, gpus: 2, needs.gpu_memory: 30GiB}
    - {method: lora, gpus: 8, training.learning_rate: 1e-3, needs.gpu_memory: 20GiB}
    - {method: lora, gpus: 2, label: marked}
"""
    found = cases(tmp_path, f"{BASE}matrix:\n{matrix}")
    assert [
        (case.id, (case.scenario.needs.gpu_memory_bytes or 0) // 2**30, case.scenario.training.get("max_steps"))
        for case in found
    ] == [
        ("s-full-bs8-seq512-1gpu", 40, 5),
        ("s-full-bs8-seq512-2gpu", 30, 5),
        ("s-lora-bs8-seq512-1gpu", 10, None),
        ("s-lora-bs8-seq512-marked-2gpu", 10, None),
        ("s-lora-bs8-seq512-lr1e-3-8gpu", 20, None),
    ]


def test_include_alone(tmp_path: Path) -> None:
    matrix = "  include:\n    - {processes: 1, training.seed: 1}\n    - {processes: 1, training.seed: 2, label: two}\n"
    assert made(tmp_path, matrix) == ["s-full-bs8-seq512-seed1-1proc", "s-full-bs8-seq512-seed2-two-1proc"]


def test_a_general_key_is_set_before_one_inside_it(tmp_path: Path) -> None:
    found = cases(tmp_path, f"{BASE}matrix: {{method.rank: [4, 8], method: [lora, {{lora: {{alpha: 1}}}}]}}\n")
    assert [case.id.removesuffix("-bs8-seq512-1proc") for case in found][:1] == ["s-lora-bs8-seq512-r4-1proc"]
    assert [(case.scenario.method.rank, case.scenario.method.alpha) for case in found] == [
        (4, 16),
        (4, 1),
        (8, 16),
        (8, 1),
    ]


def test_the_method_spelling_works_in_dotted_keys(tmp_path: Path) -> None:
    text = f"{BASE}method: {{lora: {{rank: 2}}}}\nmatrix: {{method.lora.rank: [4, 8]}}\n"
    assert [case.scenario.method.rank for case in cases(tmp_path, text)] == [4, 8]


@pytest.mark.parametrize(
    "matrix, message",
    [
        ("matrix: {}", "one.yaml:4: matrix: leaves no combination"),
        ("matrix:", "one.yaml:4: matrix: must be a mapping of dotted keys to lists"),
        ("matrix: [1]", "one.yaml:4: matrix: must be a mapping of dotted keys to lists"),
        ("matrix:\n  method: []", "one.yaml:5: matrix.method: is an empty list"),
        ("matrix:\n  method: full", "one.yaml:5: matrix.method: must be a list of values; put [ ] around it"),
        ("matrix: {name: [a, b]}", "matrix.name: name cannot vary in a matrix"),
        ("matrix: {metod: [full]}", "matrix.metod: unknown key; did you mean 'method'?"),
        ("matrix: {training.: [1]}", "matrix.training.: has an empty part"),
        ("matrix:\n  processes:\n  - 1\n  - 2\n  - 1", "one.yaml:8: matrix.processes: holds 1 twice; remove one"),
        (
            "matrix: {method.rank: [1], method.lora.rank: [2]}",
            "matrix.method.lora.rank: is the same axis as method.rank",
        ),
        ("matrix:\n  data.smples: [1]", "one.yaml:5: data.smples: unknown key; did you mean 'samples'?"),
        ("matrix:\n  name_of.it: [1]", "one.yaml:5: matrix.name_of.it: unknown key"),
        ("tags: [a]\nmatrix: {tags.x: [1]}", "one.yaml:5: tags.x: cannot be set: tags is not a mapping here"),
        (
            "matrix:\n  training.seed: [1, 2]\n  exclude: [{training.sed: 1}]",
            "exclude.training.sed: is not an axis of this",
        ),
        (
            "matrix:\n  processes: [1, 2]\n  exclude: [{processes: 3}]",
            "one.yaml:6: matrix.exclude: matches no combination",
        ),
        ("matrix:\n  processes: [1]\n  exclude: [{processes: 1}]", "one.yaml:4: matrix: leaves no combination"),
        ("matrix:\n  processes: [1]\n  exclude: {processes: 1}", "one.yaml:6: matrix.exclude: must be a list"),
        ("matrix: {include: [1]}", "matrix.include: holds an entry that is no mapping"),
        ("matrix: {include: []}", "matrix.include: must be a list"),
        ("matrix: {include: [{nme.x: 1}]}", "matrix.include.nme.x: unknown key"),
        ("matrix: {method: [{}]}", "matrix.method: holds an empty mapping"),
        ("matrix: {method: [{lora: {rank: 8}, label: a/b}]}", "matrix.method.label: 'a/b' cannot be part of an id"),
        ("matrix: {method: [full, {kind: full, rank: 3}]}", "method.rank: belongs to lora, not to full"),
        ("matrix: {training.optim_args: ['" + "x" * 80 + "']}", "would make the id too long (optim_args.xxx"),
        (
            "matrix: {training.seed: [1], include: [{training.seed: 1, data.samples: 0}]}",
            "data.samples: must be at least 1",
        ),
        ("matrix: {env.A: [a b, a-b]}", "makes the id s-full-bs8-seq512-env.A.a-b-1proc a second time"),
        (
            "matrix: {include: [{needs.packages: [a]}, {needs.packages: [b]}]}",
            "give the include entry or the axis's value a label:",
        ),
        (
            f"matrix: {{training.seed: {list(range(101))}, data.seed: {list(range(100))}}}",
            "makes 10,100 cases, the limit is 10,000",
        ),
    ],
    ids=lambda value: value[-40:],
)
def test_what_a_matrix_may_not_hold(tmp_path: Path, matrix: str, message: str) -> None:
    said = error(tmp_path, f"{BASE}{matrix}\n")
    assert message in said
    assert said.startswith("one.yaml:")


def test_a_file_has_a_limit_of_cases(tmp_path: Path) -> None:
    text = "defaults: {model: tiny-llama, processes: 1}\nscenarios:\n" + "".join(
        f"- {{name: s{number}, matrix: {{training.seed: {list(range(6000))}}}}}\n" for number in range(2)
    )
    assert "one.yaml:4: file: makes more than 10,000 cases; split it" in error(tmp_path, text)


def test_an_id_has_a_limit_of_length(tmp_path: Path) -> None:
    axes = "".join(f"  training.x{number}: ['{'y' * 50}']\n" for number in range(4))
    assert "longer than 200; shorten name" in error(tmp_path, f"{BASE}matrix:\n{axes}")


@pytest.mark.parametrize(
    "value, text",
    [
        (8, "8"),
        (-3, "-3"),
        (0.5, "0.5"),
        (2.0, "2"),
        (1e-4, "1e-4"),
        (2.5e-5, "2.5e-5"),
        (0.00012345678901234, "1.2345678901234e-4"),
        (-1e-9, "-1e-9"),
        (1e6, "1e6"),
        (1.5e20, "1.5e20"),
        (1234.5, "1234.5"),
        (1e22, "1e22"),
    ],
)
def test_numbers_in_ids(value: float, text: str) -> None:
    assert naming.number(value) == text
    assert float(text) == value


@pytest.mark.parametrize(
    "text, safe", [("a b/c", "a-b-c"), ("../..", ""), ("a...b", "a.b"), ("-x-", "x"), ("größe", "gr-e")]
)
def test_text_in_ids(text: str, safe: str) -> None:
    assert naming.safe(text) == safe
