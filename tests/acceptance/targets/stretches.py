"""A Trainer program whose training comes in stretches, or whose steps differ: `stretches.py MODE`."""

import sys
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

ROWS, LENGTH = 20, 16


class Data(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, 64, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


class Spoiled(Trainer):
    """Its loss is no number in the third step and after."""

    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(*args, **kwargs)
        return loss * float("nan") if self.state.global_step >= 2 else loss


def trainer(kind: type[Trainer] = Trainer, **arguments: Any) -> Trainer:
    set_seed(7)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    given: dict[str, Any] = {"max_steps": 6, "save_strategy": "no", "logging_steps": 1, "report_to": "none"}
    given |= {"per_device_train_batch_size": 2, "use_cpu": True, "disable_tqdm": True, "output_dir": "out"}
    return kind(LlamaForCausalLM(config), TrainingArguments(**{**given, **arguments}), train_dataset=Data())


def main(mode: str) -> None:
    if mode == "nan":
        trainer(Spoiled).train()
    elif mode == "twice":
        trained = trainer()
        trained.train()
        trained.train()
    elif mode == "resumed":
        trainer(max_steps=4, save_strategy="steps", save_steps=4).train()
        trainer(max_steps=10).train(resume_from_checkpoint=True)
    elif mode == "uneven":  # 10 micro-batches an epoch, in steps of 4, 4 and 2
        trainer(max_steps=-1, num_train_epochs=2, gradient_accumulation_steps=4).train()
    else:
        sys.exit(f"no such mode: {mode}")


if __name__ == "__main__":
    main(sys.argv[1])
