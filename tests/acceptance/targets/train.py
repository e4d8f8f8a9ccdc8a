"""A person's training script, as acceptance tests run it: `train.py MODE` ends in the way that MODE names.

`train.py flaky MARKER` ends as `nccl` where there is no file MARKER, which it leaves, and trains where there is."""

import os
import signal
import sys
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

RANK = int(os.environ.get("RANK", "0"))
OOM = (
    "CUDA out of memory. Tried to allocate 2.15 GiB. GPU 1 has a total capacity of 79.25 GiB of which 1.03 GiB is "
    "free. Process 4242 has 78.20 GiB memory in use."
)

NCCL = (
    "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3356, remote process exited or there was a "
    "network error, NCCL version 2.21.5\nncclRemoteError: A call failed possibly due to a network error or a remote "
    "process exiting prematurely."
)


class Data(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, 256, (16,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


class Full(torch.autograd.Function):
    """Raises in the backward pass, as the allocator does."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise torch.OutOfMemoryError(OOM)


class Idle(Trainer):
    """Its optimizer has a parameter that is none of the model's."""

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        self.optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
        return self.optimizer


class Unsaved(Trainer):
    """Its memory runs out when the trained model is saved."""

    def _save(self, *args: Any, **kwargs: Any) -> None:
        raise torch.OutOfMemoryError(OOM)


class Failing(Trainer):
    """Fails in the third step, on rank 1 where there are two."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        if self.state.global_step < 2 or int(os.environ.get("WORLD_SIZE", "1")) - 1 != RANK:
            return loss
        if MODE == "peer-death":
            os._exit(7)
        if MODE == "sigkill":
            os.kill(os.getpid(), signal.SIGKILL)
        if MODE in ("nccl", "flaky"):
            raise torch.distributed.DistBackendError(NCCL)
        return Full.apply(loss)


def trainer(kind: type[Trainer], batch: int = 2, **arguments: Any) -> Trainer:
    config = LlamaConfig(
        vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    given = TrainingArguments(
        output_dir="out",
        max_steps=6,
        per_device_train_batch_size=batch,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        **arguments,
    )
    return kind(LlamaForCausalLM(config), given, train_dataset=Data())


def main() -> None:
    if MODE == "success":
        trainer(Trainer).train()
    elif MODE in ("oom", "peer-death", "sigkill", "nccl"):
        if MODE == "peer-death" and RANK == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun's: it may come before the peer's end is noticed
        trainer(Failing).train()
    elif MODE == "flaky":
        seen = os.path.exists(sys.argv[2])
        open(sys.argv[2], "w").close()
        trainer(Trainer if seen else Failing).train()
    elif MODE == "user-error":
        trainer(Trainer, evaluation_strategy="no").train()
    elif MODE == "swallow":
        try:
            trainer(Failing).train()
        except Exception:
            sys.exit(1)
    elif MODE == "oom-save":
        trained = trainer(Unsaved)
        trained.train()
        trained.save_model()
    elif MODE == "idle":
        trainer(Idle).train()
    elif MODE == "nothing":
        print("all done")
    elif MODE == "recover":
        try:
            trainer(Failing, batch=4).train()
        except torch.OutOfMemoryError:
            trainer(Trainer, batch=2).train()
    else:
        sys.exit(f"no such mode: {MODE}")


if __name__ == "__main__":
    MODE = sys.argv[1]
    main()
