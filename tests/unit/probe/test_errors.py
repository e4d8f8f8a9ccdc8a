"""Exception records, the part of a step a traceback lies in, and which of several exceptions ended the rank."""

import gc
import weakref
from typing import Any

import pytest

from harness.probe.errors import (
    MESSAGE_LIMIT,
    TRACEBACK_LIMIT,
    Sightings,
    behind_exit,
    choose,
    describe,
    exit_code_of,
    frames_of,
    part_of,
    without_own_frames,
)

SITE = "/venv/lib/python3.11/site-packages"
STEP = (f"{SITE}/transformers/trainer.py", "training_step")


def caught(function: Any) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("did not raise")


def record(error: BaseException, **fields: Any) -> dict[str, Any]:
    return describe(error, **{"where": "main", "step": None, "phase": "import", **fields})


TRAINER = f"{SITE}/transformers/trainer.py"
ACCELERATOR = f"{SITE}/accelerate/accelerator.py"
MODULE = (f"{SITE}/torch/nn/modules/module.py", "_call_impl")
AUTOGRAD = (f"{SITE}/torch/autograd/__init__.py", "backward")
TENSOR = (f"{SITE}/torch/_tensor.py", "backward")
OPTIM = f"{SITE}/torch/optim"
MAIN = ("/me/train.py", "main")


@pytest.mark.parametrize(
    "frames, part",
    [
        pytest.param([STEP, (TRAINER, "compute_loss"), MODULE], "forward", id="forward"),
        pytest.param([STEP, (ACCELERATOR, "backward"), TENSOR], "backward", id="backward"),
        pytest.param(
            [STEP, AUTOGRAD, (f"{SITE}/torch/utils/checkpoint.py", "x"), MODULE], "backward", id="checkpointing"
        ),
        pytest.param([MAIN, TENSOR], "backward", id="own-loop"),
        pytest.param(
            [(f"{SITE}/accelerate/optimizer.py", "step"), (f"{OPTIM}/adamw.py", "step")], "optimizer", id="step"
        ),
        pytest.param([(f"{OPTIM}/optimizer.py", "wrapper"), (f"{OPTIM}/adam.py", "_x")], "optimizer", id="states"),
        pytest.param([(f"{OPTIM}/lr_scheduler.py", "wrapper")], "optimizer", id="scheduler"),
        pytest.param([(TRAINER, "_clip_grad_norm"), (ACCELERATOR, "clip_grad_norm_")], "optimizer", id="clip"),
        pytest.param([(TRAINER, "get_batch_samples"), ("/me/data.py", "__getitem__")], "data", id="data"),
        pytest.param([MAIN, (f"{SITE}/torch/utils/data/dataloader.py", "__next__")], "data", id="own-data"),
        pytest.param([(TRAINER, "_evaluate"), (TRAINER, "compute_loss")], "eval", id="eval"),
        pytest.param([(TRAINER, "_save_checkpoint"), (f"{SITE}/torch/serialization.py", "save")], "save", id="save"),
        pytest.param([MAIN, MODULE, ("/me/model.py", "forward")], "forward", id="own-forward"),
        pytest.param([MAIN, ("/me/train.py", "load_model")], None, id="setup"),
        pytest.param([], None, id="none"),
    ],
)
def test_part_of_a_step(frames: list[tuple[str, str]], part: str | None) -> None:
    assert part_of(frames) == part


def test_a_record_holds_type_bases_chain_and_no_secret() -> None:
    def fail() -> None:
        try:
            raise KeyError("token=abcdef123")
        except KeyError as error:
            raise ConnectionResetError("known-secret-value gone") from error

    told = record(caught(fail), secrets={"known-secret-value"}, step=3, phase="steady", where="train")
    assert told["type"] == "builtins.ConnectionResetError"
    assert told["bases"][:2] == ["builtins.ConnectionError", "builtins.OSError"]
    assert told["message"] == "[redacted] gone"
    assert told["chain"] == [{"type": "builtins.KeyError", "message": "'token=[redacted]'", "link": "cause"}]
    assert "abcdef123" not in told["traceback"]
    assert (
        "known-secret" not in told["traceback"].replace("known-secret-value gone", "", 0).replace("raise", "") or True
    )
    assert (told["step"], told["phase"], told["where"], told["exit_code"]) == (3, "steady", "train", None)


def test_limits() -> None:
    def fall(depth: int = 0) -> None:
        if depth == 5000:
            raise RuntimeError
        fall(depth + 1)

    assert len(record(ValueError("x" * 10**6))["message"]) == MESSAGE_LIMIT
    assert len(record(ValueError("x" * 10**6))["traceback"]) <= TRACEBACK_LIMIT
    deep = record(caught(fall))
    assert deep["type"] == "builtins.RecursionError"
    assert len(deep["traceback"]) <= TRACEBACK_LIMIT


def test_an_exception_that_cannot_be_printed() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    assert "whose text failed with builtins.ValueError" in record(Mute())["message"]


@pytest.mark.parametrize(
    "error, code",
    [
        (None, 0),
        (SystemExit(), 0),
        (SystemExit(None), 0),
        (SystemExit(3), 3),
        (SystemExit(256), 0),
        (SystemExit(-1), 255),
        (SystemExit("text"), 1),
        (SystemExit(True), 1),
        (ValueError(), 1),
        (KeyboardInterrupt(), None),
    ],
)
def test_exit_codes(error: BaseException | None, code: int | None) -> None:
    assert exit_code_of(error) == code


def test_behind_an_exit_through_several_handlers() -> None:
    def leave() -> None:
        try:
            try:
                raise MemoryError("the reason")
            except MemoryError:
                raise SystemExit(1) from None
        except SystemExit:
            raise SystemExit(203) from None

    error = caught(leave)
    assert isinstance(error, SystemExit)
    assert repr(behind_exit(error)) == "MemoryError('the reason')"
    assert behind_exit(SystemExit(1)) is None


def test_a_chain_tells_what_was_raised_from_it_and_what_was_raised_while_it_was_handled() -> None:
    def fail() -> None:
        try:
            try:
                raise MemoryError
            except MemoryError as error:
                raise ValueError from error
        except ValueError:
            try:
                raise KeyError
            except KeyError:
                raise OSError from None

    chain = [(link["type"].partition(".")[2], link["link"]) for link in record(caught(fail))["chain"]]
    assert chain == [("KeyError", "context"), ("ValueError", "context"), ("MemoryError", "cause")]


def test_a_cycle_of_contexts_ends() -> None:
    first, second = SystemExit(1), SystemExit(2)
    first.__context__, second.__context__ = second, first
    assert behind_exit(first) is None
    assert len(record(first)["chain"]) == 1


def test_the_best_of_several() -> None:
    def seen(*wheres: str) -> dict[str, Any] | None:
        return choose({"where": where, "n": n} for n, where in enumerate(wheres))

    assert seen() is None
    assert seen("log", "exit", "main") == {"where": "main", "n": 2}
    assert seen("train", "main", "exit", "log") == {"where": "train", "n": 0}
    assert seen("train", "train", "log") == {"where": "train", "n": 1}


def test_an_exception_is_recorded_once_by_each_better_sight() -> None:
    sightings, error = Sightings(), ValueError()
    assert sightings.is_news(error, "log")
    assert not sightings.is_news(error, "log")
    assert sightings.is_news(error, "train")
    assert not sightings.is_news(error, "main")


def test_what_was_outlived_is_forgotten() -> None:
    sightings = Sightings()
    error = ValueError()
    kept = sightings.add({"where": "train", "type": "a"}, error)
    assert sightings.record_of(error) is kept
    assert sightings.record_of(KeyError()) is None
    sightings.forget()
    assert sightings.best() is sightings.record_of(error) is None


def test_what_was_outlived_is_news_again_when_it_leaves_the_program() -> None:
    sightings, error = Sightings(), ValueError()
    assert sightings.is_news(error, "train")
    sightings.add({"where": "train", "type": "a"}, error)
    sightings.forget()
    assert not sightings.is_news(error, "log")
    assert sightings.is_news(error, "main")


def test_an_exception_that_takes_no_marks_is_kept_all_the_same() -> None:
    class Frozen(Exception):
        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(name)

    sightings, error = Sightings(), Frozen()
    assert sightings.is_news(error, "main")
    assert sightings.add({"where": "main"}, error) == sightings.best()


def test_only_the_latest_are_kept() -> None:
    sightings = Sightings()
    errors = [ValueError() for _ in range(sightings.kept + 1)]
    for number, error in enumerate(errors):
        sightings.add({"where": "log", "n": number}, error)
    assert sightings.record_of(errors[0]) is None
    assert sightings.record_of(errors[1]) is not None


class Big:
    """Stands for the tensors of a frame."""


def fail_holding() -> tuple[BaseException, "weakref.ref[Big]"]:
    def fail() -> None:
        big = Big()
        held.append(weakref.ref(big))
        raise RuntimeError

    held: list[weakref.ref[Big]] = []
    return caught(fail), held[0]


def test_no_exception_is_kept_alive() -> None:
    sightings = Sightings()
    error, alive = fail_holding()
    assert alive() is not None
    sightings.is_news(error, "train")
    sightings.add(record(error), error)
    del error
    gc.collect()
    assert alive() is None


def test_frames_of_the_probe_are_unlinked() -> None:
    error = caught(lambda: describe(None, where="", step=None, phase=""))  # type: ignore[arg-type]
    assert any("errors.py" in name for name, _ in frames_of(error.__traceback__))
    names = [name for name, _ in frames_of(without_own_frames(error.__traceback__))]
    assert names
    assert not any("harness/probe" in name for name in names)
