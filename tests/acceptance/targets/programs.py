"""Programs as people write them around transformers' Trainer, unaware of any harness: `programs.py MANNER`.

Each prints, as its last line, the losses of its steps as JSON, so that two ways to start it can be compared.  Where
there are several ranks, what fails fails on the last one.  Works with transformers 4.46 and later."""

import errno
import json
import os
import sys
from typing import Any

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

LAST = int(os.environ.get("RANK", "0")) == int(os.environ.get("WORLD_SIZE", "1")) - 1
OOM = (
    "CUDA out of memory. Tried to allocate 2.15 GiB. GPU 1 has a total capacity of 79.25 GiB of which 1.03 GiB is "
    "free. Process 4242 has 78.20 GiB memory in use."
)


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """64 rows of 8 to 16 tokens."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(4, 256, (8 + index % 9,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def collate(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.stack([torch.nn.functional.pad(row["input_ids"], (0, longest - len(row["input_ids"]))) for row in rows])
    mask = torch.stack([torch.arange(longest) < len(row["input_ids"]) for row in rows]).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def llama(hidden: int = 32) -> Any:
    shape = {"hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=256, max_position_embeddings=64, **shape))


def options(**given: Any) -> dict[str, Any]:
    fields = {"output_dir": "out", "max_steps": 6, "per_device_train_batch_size": 2, "logging_steps": 1}
    return {**fields, "save_strategy": "no", "report_to": "none", "use_cpu": True, "disable_tqdm": True, **given}


def trainer(kind: type[Trainer] = Trainer, model: Any = None, rows: Any = None, **given: Any) -> Any:
    arguments = TrainingArguments(**options(**given))
    torch.manual_seed(7)
    return kind(model or llama(), arguments, train_dataset=rows or Rows(), data_collator=collate)


def tell(*trained: Any) -> None:
    print(json.dumps([entry["loss"] for each in trained for entry in each.state.log_history if "loss" in entry]))


def plain() -> None:
    one = trainer()
    one.train()
    tell(one)


def seq2seq() -> None:
    torch.manual_seed(7)
    shape = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "vocab_size": 256}
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**shape, decoder_start_token_id=0))
    arguments = transformers.Seq2SeqTrainingArguments(**options(predict_with_generate=True))
    one = transformers.Seq2SeqTrainer(model, arguments, train_dataset=Rows(), data_collator=collate)
    one.train()
    tell(one)


class OwnTrain(Trainer):
    def train(self, *args: Any, **kwargs: Any) -> Any:
        print("before")
        trained = super().train(*args, **kwargs)
        print("after")
        return trained


def own_train() -> None:
    one = trainer(OwnTrain)
    one.train()
    tell(one)


class OwnLoss(Trainer):
    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        outputs = model(**inputs)
        loss = outputs.loss + 0.01 * outputs.logits.float().pow(2).mean()
        return (loss, outputs) if return_outputs else loss


def own_loss() -> None:
    one = trainer(OwnLoss)
    one.train()
    tell(one)


class OwnLoop(Trainer):
    """Overrides train() and never calls the Trainer's."""

    def train(self, *args: Any, **kwargs: Any) -> Any:
        self.create_optimizer()
        for number, inputs in zip(range(6), self.get_train_dataloader(), strict=False):
            loss = self.model(**inputs).loss
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.state.log_history.append({"loss": loss.item(), "step": number + 1})


def own_loop() -> None:
    one = trainer(OwnLoop)
    one.train()
    tell(one)


def two_trainers() -> None:
    first, second = trainer(), trainer(model=llama(hidden=16), max_steps=4)
    first.train()
    second.train()
    tell(first, second)


class Lowers(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        control.should_log = True
        if state.global_step == 5:
            control.should_training_stop = True
        return control


def callbacks() -> None:
    one = trainer(logging_steps=100)
    one.add_callback(Lowers())
    one.train()
    tell(one)


def accelerate_loop() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    torch.manual_seed(7)
    model = llama()
    loader = torch.utils.data.DataLoader(Rows(), batch_size=2, collate_fn=collate)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3), loader)
    losses = []
    for _, batch in zip(range(6), loader, strict=False):
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    print(json.dumps(losses))


def fails_early() -> None:
    if LAST:
        raise torch.OutOfMemoryError(OOM)
    plain()


def fails_in_collator() -> None:
    def broken(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        if LAST and one.state.global_step == 2:
            raise KeyError("input_idz")
        return collate(rows)

    one = trainer()
    one.data_collator = broken
    one.train()


class Poisoned(Rows):
    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if LAST and index > 40:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", "/data/shard-00041.bin")
        return super().__getitem__(index)


def fails_in_worker() -> None:
    trainer(rows=Poisoned(), dataloader_num_workers=1, num_train_epochs=1, max_steps=-1).train()


class Full(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if LAST and state.global_step == 3:
            raise torch.OutOfMemoryError(OOM)


def fails_in_callback() -> None:
    one = trainer()
    one.add_callback(Full())
    one.train()


class Unsaved(Trainer):
    def _save(self, *args: Any, **kwargs: Any) -> None:
        if not LAST:
            super()._save(*args, **kwargs)
            return
        raise OSError(errno.ENOSPC, "No space left on device", "out/model.safetensors")


def fails_in_save() -> None:
    one = trainer(Unsaved)
    one.train()
    one.save_model()


def swallows() -> None:
    try:
        fails_in_callback()
    except torch.OutOfMemoryError:
        sys.exit(203)


class Exits(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if LAST and state.global_step == 3:
            os._exit(9)


def leaves() -> None:
    one = trainer()
    one.add_callback(Exits())
    one.train()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
