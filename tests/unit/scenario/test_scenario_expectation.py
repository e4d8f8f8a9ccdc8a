"""`expect` and `retries`: how they are written, laid over each other, and where a condition holds."""

from pathlib import Path
from typing import Any

import pytest

from harness.scenario import Case, Expect, When, expected_kind, load_scenarios

GIB = 2**30
A10, H100, H200 = ("NVIDIA A10", 24 * GIB), ("NVIDIA H100 80GB HBM3", 80 * GIB), ("NVIDIA H200", 141 * GIB)


@pytest.mark.parametrize(
    "when, gpus, holds",
    [
        ({"gpu_memory_below_bytes": 80 * GIB}, [A10], True),
        ({"gpu_memory_below_bytes": 80 * GIB}, [H100], False),
        ({"gpu_memory_below_bytes": 80 * GIB}, [H200, A10], True),
        ({"gpu_memory_below_bytes": 80 * GIB}, [], False),
        ({"gpu_memory_at_least_bytes": 80 * GIB}, [H100], True),
        ({"gpu_memory_at_least_bytes": 80 * GIB}, [H200, A10], False),
        ({"gpu_memory_at_least_bytes": 80 * GIB}, [], False),
        ({"gpu_name": "*h100*"}, [H100], True),
        ({"gpu_name": "NVIDIA H?00*"}, [H100, H200], True),
        ({"gpu_name": "*H100*"}, [H100, H200], False),
        ({"gpu_name": "H100"}, [H100], False),
        ({"gpu_name": "*"}, [], False),
        ({"gpus_below": 2}, [H100], True),
        ({"gpus_below": 2}, [H100, H100], False),
        ({"gpus_below": 2}, [], False),
        ({"gpu_memory_at_least_bytes": 40 * GIB, "gpu_memory_below_bytes": 100 * GIB}, [H100], True),
        ({"gpu_memory_at_least_bytes": 40 * GIB, "gpu_memory_below_bytes": 100 * GIB}, [H200], False),
        ({"gpu_memory_below_bytes": 100 * GIB, "gpu_name": "*A10*"}, [H100], False),
    ],
    ids=str,
)
def test_where_a_condition_holds(when: dict[str, Any], gpus: list[tuple[str, int]], holds: bool) -> None:
    expected = expected_kind(Expect(kind="gpu_oom", when=When(**when)), gpus)
    assert expected == ("gpu_oom" if holds else None)


def test_without_a_condition_it_always_applies() -> None:
    assert expected_kind(Expect(kind="crash"), []) == expected_kind(Expect(kind="crash"), [A10]) == "crash"
    assert expected_kind(None, [A10]) is None


def written(folder: Path, scenario: str, defaults: str = "{}", key: str = "expect") -> list[Any]:
    """The value of a key in the cases of a scenario over its defaults."""
    text = f"defaults: {defaults}\nscenarios:\n- {{name: s, processes: 1, trainer: {{target: x.py}}, {scenario}}}\n"
    (folder / "one.yaml").write_text(text)
    cases = load_scenarios(folder)
    assert all(isinstance(case, Case) for case in cases), cases
    return [getattr(case.scenario, key) for case in cases if isinstance(case, Case)]


OOM = Expect(kind="gpu_oom")
SMALL = Expect(kind="gpu_oom", when=When(gpu_memory_below_bytes=80 * GIB))
IN_DEFAULTS = "{expect: {kind: gpu_oom, when: {gpu_memory_below: 80GiB}}}"


@pytest.mark.parametrize(
    "scenario, defaults, expected",
    [
        ("expect: gpu_oom", "{}", [OOM]),
        ("expect: {kind: gpu_oom}", "{}", [OOM]),
        ("expect: none", "{}", [Expect(kind="none")]),
        ("expect: {kind: gpu_oom, when: {gpu_memory_below: 80GiB}}", "{}", [SMALL]),
        ("tags: []", IN_DEFAULTS, [SMALL]),
        ("expect: nccl", IN_DEFAULTS, [Expect(kind="nccl")]),
        ("expect: null", IN_DEFAULTS, [None]),
        (
            "expect: {when: {gpus_below: 2}}",
            IN_DEFAULTS,
            [Expect(kind="gpu_oom", when=When(gpu_memory_below_bytes=80 * GIB, gpus_below=2))],
        ),
        ("matrix: {expect: [gpu_oom, none]}", "{}", [OOM, Expect(kind="none")]),
        (
            "expect: gpu_oom, matrix: {expect.when.gpu_memory_below: [80GiB, 24GiB]}",
            "{}",
            [SMALL, Expect(kind="gpu_oom", when=When(gpu_memory_below_bytes=24 * GIB))],
        ),
        ("matrix: {env.A: ['1', '2'], include: [{env.A: '2', expect: gpu_oom}]}", "{}", [None, OOM]),
    ],
)
def test_expect(tmp_path: Path, scenario: str, defaults: str, expected: list[Expect | None]) -> None:
    assert written(tmp_path, scenario, defaults) == expected


@pytest.mark.parametrize(
    "scenario, defaults, expected",
    [
        ("tags: []", "{}", [{}]),
        ("retries: 2", "{}", [{"any": 2}]),
        ("retries: {nccl: 2, any: 1}", "{}", [{"nccl": 2, "any": 1}]),
        ("tags: []", "{retries: 2}", [{"any": 2}]),
        ("retries: {nccl: 1}", "{retries: {network: 3}}", [{"network": 3, "nccl": 1}]),
        ("retries: {nccl: 1}", "{retries: 2}", [{"nccl": 1}]),
        ("retries: 0", "{retries: {nccl: 1}}", [{"any": 0}]),
        ("retries: null", "{retries: 2}", [{}]),
        ("matrix: {retries: [0, 2]}", "{}", [{"any": 0}, {"any": 2}]),
        ("matrix: {retries.nccl: [0, 2]}", "{retries: {any: 1}}", [{"any": 1, "nccl": 0}, {"any": 1, "nccl": 2}]),
    ],
)
def test_retries(tmp_path: Path, scenario: str, defaults: str, expected: list[dict[str, int]]) -> None:
    assert written(tmp_path, scenario, defaults, "retries") == expected


def test_as_axes_they_stand_in_the_id(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(
        "name: s\nprocesses: 1\ntrainer: {target: x.py}\nmatrix: {expect: [gpu_oom, none], retries: [0, 2]}\n"
    )
    assert [case.id for case in load_scenarios(tmp_path)] == [
        "s-expect.gpu_oom-retries0-1proc",
        "s-expect.gpu_oom-retries2-1proc",
        "s-expect.none-retries0-1proc",
        "s-expect.none-retries2-1proc",
    ]


@pytest.mark.parametrize(
    "line, message",
    [
        ("expect: rain", "expect.kind: 'rain' is no kind of verdict; known: none, user_error,"),
        ("expect: gpu_om", "expect.kind: 'gpu_om' is no kind of verdict; did you mean 'gpu_oom'?"),
        ("expect: 3", "expect: must be a mapping, got 3; write keys and values"),
        ("expect: {when: {gpus_below: 3}}", "expect.kind: is missing; add it"),
        ("expect: {kind: gpu_oom, if: x}", "expect.if: unknown key; known: kind, when"),
        ("expect: {kind: gpu_oom, when: {}}", "expect.when: is empty; give it a condition, or remove it"),
        ("expect: {kind: gpu_oom, when: gpu}", "expect.when: must be a mapping, got 'gpu'; write keys and values"),
        (
            "expect: {kind: gpu_oom, when: {gpu_memory_bellow: 3GiB}}",
            "expect.when.gpu_memory_bellow: unknown key; did you mean 'gpu_memory_below'?",
        ),
        ("expect: {kind: gpu_oom, when: {gpu_memory_below: 3G}}", "expect.when.gpu_memory_below: '3G' is no size"),
        (
            "expect: {kind: gpu_oom, when: {gpu_memory_below_bytes: 3}}",
            "expect.when.gpu_memory_below_bytes: unknown key; did you mean 'gpu_memory_below'?",
        ),
        (
            "expect: {kind: gpu_oom, when: {gpu_memory_below: 3GiB, gpu_memory_at_least: 3GiB}}",
            "expect.when.gpu_memory_below: is not more than gpu_memory_at_least, so that both never hold; correct one",
        ),
        ("expect: {kind: gpu_oom, when: {gpus_below: 1}}", "expect.when.gpus_below: must be at least 2, got 1"),
        ("retries: -1", "retries.any: must be at least 0, got -1; correct the value"),
        ("retries: {nccl: 101}", "retries.nccl: must be at most 100, got 101; correct the value"),
        ("retries: {ncl: 2}", "retries.ncl: is no kind of verdict; did you mean 'nccl'?"),
        ("retries: {user_error: 1}", "retries.user_error: ends the same way every time; known: gpu_oom, host_oom,"),
        ("retries: {nccl: 1.5}", "retries.nccl: must be a whole number, got 1.5"),
        ("retries: true", "retries: must be a mapping, got true"),
        ("retries: twice", "retries: must be a mapping, got 'twice'"),
    ],
)
def test_what_is_wrong_is_said_with_line_key_and_remedy(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "one.yaml").write_text(f"name: s\nprocesses: 1\ntrainer: {{target: x.py}}\n{line}\n")
    (found,) = load_scenarios(tmp_path)
    assert not isinstance(found, Case)
    assert found.error.startswith(f"{tmp_path}/one.yaml:4: {message}")
