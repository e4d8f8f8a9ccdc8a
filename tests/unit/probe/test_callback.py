"""What the callback counts of a model, and when: a program freezes parameters before or after it makes its Trainer."""

from types import SimpleNamespace
from typing import Any

import pytest

from harness.probe.measure import Meter
from harness.probe.model import describe_model, is_whole, trainable_names
from tests.unit.probe.test_hooks import events

ARGS = SimpleNamespace(device=None, n_gpu=0, per_device_train_batch_size=1, gradient_accumulation_steps=1)
STATE = SimpleNamespace(global_step=0, max_steps=1, train_batch_size=1)


def network() -> Any:
    import torch

    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))


def partition(model: Any) -> None:
    """As DeepSpeed's ZeRO-3 leaves it."""
    import torch

    for parameter in model.parameters():
        parameter.ds_numel, parameter.ds_shape = parameter.numel(), parameter.shape
        parameter.ds_tensor = parameter.detach().flatten()
        parameter.data = torch.empty(0)


@pytest.mark.parametrize(
    "freezes, partitions, trainable, frozen, why",
    [
        (False, False, 30, 0, "the model has no config"),
        (True, False, 10, 16, "the model has no config"),
        (False, True, 30, 0, "the model has no config"),
        (True, True, 10, 0, "other parameters train than when the Trainer was made, and the model has been sharded"),
    ],
    ids=["as-made", "trap-frozen-since", "partitioned", "frozen-since-and-partitioned"],
)
def test_a_model_that_is_frozen_after_its_trainer_was_made(
    meter: Meter, freezes: bool, partitions: bool, trainable: int, frozen: int, why: str
) -> None:
    from harness.probe.callback import injected

    callback, model = injected(meter)(), network()
    callback.on_init_end(ARGS, STATE, None, model=model)
    if freezes:
        model[0].requires_grad_(False)
    if partitions:
        partition(model)
    callback.on_train_begin(ARGS, STATE, None, model=model)
    told = {event["e"]: event for event in events(meter)}
    assert (told["model"]["parameters"], told["model"]["trainable"]) == (30, trainable)
    assert told["shape"]["matmul_frozen"] == frozen
    assert told["shape"]["reason"].startswith(why)
    assert "probe_error" not in told


def test_names_of_what_trains_are_those_without_wrappers() -> None:
    import torch

    plain, wrapped = network(), torch.nn.Module()
    wrapped._fsdp_wrapped_module = plain
    assert trainable_names(wrapped) == trainable_names(plain) == frozenset({"0.weight", "0.bias", "1.weight", "1.bias"})
    assert (is_whole(plain), is_whole(wrapped)) == (True, False)


def test_flattened_parameters_have_no_names() -> None:
    import torch

    flat = torch.nn.Module()
    flat._flat_param = torch.nn.Parameter(torch.ones(3))
    assert (trainable_names(flat), is_whole(flat)) == (None, False)


def test_a_model_trains_on_the_trainers_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parameters may wait in the host's memory."""
    import torch

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=None))
    told = describe_model(network(), None, torch.device("cuda", 1))
    assert (told["device"], told["device_name"]) == ("cuda:1", "GPU 1")
    assert describe_model(network(), None, torch.device("cpu"))["device"] == "cpu"


def test_a_model_of_which_a_rank_holds_parts_says_so() -> None:
    model = network()
    assert describe_model(model, None)["whole"] is True
    partition(model)
    assert describe_model(model, None)["whole"] is False


@pytest.mark.parametrize(
    "at_begin, at_end, told",
    [
        ([1, 2], [1, 3], [("first", 2, None), ("last", 2, 1)]),
        ([], [], [("first", 0, None), ("last", 0, 0)]),
        (None, [1, 3], [("last", 2, None)]),
        ([1, 2], None, [("first", 2, None)]),
        (RuntimeError("a tensor of another kind"), [1, 3], [("last", 2, None)]),
    ],
    ids=["changed", "empty-shards", "not-at-hand-at-first", "not-at-hand-at-last", "fault"],
)
def test_parameters_that_are_not_at_hand_are_not_compared(
    meter: Meter, monkeypatch: pytest.MonkeyPatch, at_begin: Any, at_end: Any, told: list[tuple[str, int, int | None]]
) -> None:
    from harness.probe.callback import injected

    answers = iter([[7, 7], [7, 7], at_begin, at_end])

    def sums(model: Any) -> Any:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr("harness.probe.described.tensor_sums", sums)
    callback, model = injected(meter)(), network()
    for _ in range(2):  # what an earlier segment began with is not compared with
        callback.on_train_begin(ARGS, STATE, None, model=model)
        callback.on_train_end(ARGS, STATE, None, model=model)
    seen = [event for event in events(meter) if event["e"] == "parameters" and event["segment"] == 1]
    assert [(event["when"], event["tensors"], event["changed"]) for event in seen] == told
