"""A plain Hugging Face Trainer program as a user writes it; its first argument says what goes wrong, if anything.

Knows nothing of the harness.  Prints one line of JSON at the end: what it logged, and how many steps it made."""

import json
import logging
import os
import sys
import tempfile
import time
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

# As the allocator words it (torch 2.13).
OOM = (
    "CUDA out of memory. Tried to allocate 2.15 GiB. GPU 0 has a total capacity of 79.25 GiB of which 1.03 GiB is "
    "free. Including non-PyTorch memory, this process has 78.21 GiB memory in use. Of the allocated memory 76.50 GiB "
    "is allocated by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated."
)


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Eight tokens counting upwards, from the row's number."""

    def __init__(self, field: str = "input_ids", slow_s: float = 0.0) -> None:
        self.field, self.slow_s = field, slow_s

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(self.slow_s)
        ids = (torch.arange(8) + index) % 64
        if self.field == "inputs_embeds":
            return {"inputs_embeds": torch.nn.functional.one_hot(ids % 16, 16).float(), "labels": ids}
        return {"input_ids": ids, "labels": ids}


class RaisesInBackward(torch.autograd.Function):
    """Fails where an allocation of a gradient fails."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError(OOM)


class FailingModel(LlamaForCausalLM):
    """Runs out of memory in the given step (from 1) and part, on the given rank."""

    fails_in: str | None = None
    step = 3
    calls = 0
    largest_batch: int | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += self.training
        if self.largest_batch is not None and len(kwargs["input_ids"]) > self.largest_batch:
            raise torch.OutOfMemoryError(OOM)
        output = super().forward(*args, **kwargs)
        if self.calls == self.step and self.fails_in == "forward":
            raise torch.OutOfMemoryError(OOM)
        if self.calls == self.step and self.fails_in == "backward":
            output.loss = RaisesInBackward.apply(output.loss)
        return output


class OwnStep(Trainer):
    """Trains without the Trainer's own training_step and get_batch_samples."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        loss = self.compute_loss(model, self._prepare_inputs(inputs))
        self.accelerator.backward(loss)
        detached: torch.Tensor = loss.detach()
        return detached

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, *args: Any, **kwargs: Any) -> Any:
        return [next(epoch_iterator) for _ in range(num_batches)], None


class FailsInOptimizer(TrainerCallback):
    """Fails after the second step, as user code in a callback does."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2:
            raise ValueError("a callback failed, token hf_abcdefghijklmnopqrstuvwxyz")


class Evaluates(TrainerCallback):
    """Evaluates once the first step has ended, as user code does that watches another set."""

    trainer: Any = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 1:
            self.trainer.evaluate()
            self.trainer.predict(Rows(slow_s=0.05))


def make(kind: type[Any] = Trainer, *, field: str = "input_ids", slow_s: float = 0.0, **fields: Any) -> Any:
    """A Trainer of a model so small that the imports take all the time."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 64}
    model = FailingModel(LlamaConfig(**shape, num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=32))
    options: dict[str, Any] = {
        "output_dir": tempfile.mkdtemp(),
        "max_steps": 4,
        "per_device_train_batch_size": 4,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "remove_unused_columns": False,  # the model's own forward hides the names
    }
    args = TrainingArguments(**{**options, **fields})
    return kind(model=model, args=args, train_dataset=Rows(field, slow_s), eval_dataset=Rows(field, slow_s))


def report(trainer: Any) -> None:
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print(json.dumps({"steps": trainer.state.global_step, "losses": losses}))


def oom(part: str) -> Any:
    trainer = make()
    if int(os.environ.get("RANK", "0")) == int(os.environ.get("FAILING_RANK", "0")):
        trainer.model.fails_in = part
    return trainer


def swallow(how: str) -> None:
    """Ends with exit code 1 and keeps the exception for itself, in three ways; `other`: a bug after it ends it."""
    try:
        oom("backward").train()
    except Exception as error:
        if how == "inside":
            sys.exit(1)
        if how == "logged":
            logging.getLogger(__name__).error("training failed: %s", error)
    if how == "other":
        raise KeyError("a bug of the clean-up")
    sys.exit(1)


def catch_and_retry() -> None:
    try:
        oom("forward").train()
    except torch.OutOfMemoryError:
        trainer = make(per_device_train_batch_size=2)
    trainer.train()
    report(trainer)


def two_calls() -> None:
    trainer = make(max_steps=2, save_strategy="steps", save_steps=2, eval_strategy="no")
    trainer.train()
    again = make(max_steps=3, output_dir=trainer.args.output_dir)
    again.train(resume_from_checkpoint=True)
    report(again)


def main(how: str, *rest: str) -> None:
    if how in ("forward", "backward"):
        trainer = oom(how)
    elif how == "swallow":
        return swallow(*rest)
    elif how == "retry":
        return catch_and_retry()
    elif how == "two":
        return two_calls()
    elif how == "callback":
        trainer = make()
        trainer.add_callback(FailsInOptimizer)
    elif how == "smaller":
        trainer = make(auto_find_batch_size=True, max_steps=2)
        trainer.model.largest_batch = 3
    elif how == "own":
        trainer = make(OwnStep)
    elif how == "embeds":
        trainer = make(field="inputs_embeds")
    elif how == "slow":  # to read, in this process
        trainer = make(slow_s=0.05, eval_strategy="steps", eval_steps=2, per_device_eval_batch_size=16)
    elif how == "evaluates":  # before the first step, and in a callback
        trainer = make(slow_s=0.05, eval_on_start=True, per_device_eval_batch_size=16)
        watching = Evaluates()
        watching.trainer = trainer
        trainer.add_callback(watching)
    elif how == "evaluate":
        trainer = make(eval_strategy="steps", eval_steps=2, save_strategy="steps", save_steps=3)
    else:
        trainer = make()
    trainer.train()
    report(trainer)
    return None


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["good"]))
