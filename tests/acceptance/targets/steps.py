"""A Trainer program that does the same each time, slowly: `steps.py [STEPS [GATE]]`.

A step takes a tenth of a second and more.  With a GATE it waits after step 15 until that file is there."""

import os
import sys
import time
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

STEPS = int((*sys.argv[1:], "20")[0])
GATE, GATED_STEP = "".join(sys.argv[2:3]), 15


class Data(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, 256, (16,), generator=torch.Generator().manual_seed(index))
        mask = torch.ones_like(ids)
        mask[16 - index % 4 :] = 0
        return {"input_ids": ids, "attention_mask": mask, "labels": ids}


class Slow(TrainerCallback):
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        time.sleep(0.1)
        while GATE and state.global_step == GATED_STEP and not os.path.exists(GATE):
            time.sleep(0.02)


def main(*callbacks: TrainerCallback) -> None:
    set_seed(7)
    config = LlamaConfig(
        vocab_size=256, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2
    )
    arguments = TrainingArguments(
        output_dir="out",
        max_steps=STEPS,
        per_device_train_batch_size=2,
        logging_steps=5,
        use_cpu=True,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        seed=7,
    )
    Trainer(LlamaForCausalLM(config), arguments, train_dataset=Data(), callbacks=[Slow(), *callbacks]).train()


if __name__ == "__main__":
    main()
