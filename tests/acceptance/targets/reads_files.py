"""A plain Hugging Face Trainer program that reads a checkpoint and JSON lines: MODEL_DIR DATA_FILE [training options].

Knows nothing of the harness.  With OVERRIDES in the environment it does not train as its options say."""

import json
import os
import sys
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer, HfArgumentParser, Trainer, TrainingArguments


def main() -> None:
    model_dir, data_file, *options = sys.argv[1:]
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(options)
    if "OVERRIDES" in os.environ:
        args.weight_decay = 0.5
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    with open(data_file, encoding="utf-8") as file:
        texts = [json.loads(line)["text"] for line in file]

    def collate(rows: list[str]) -> Any:
        batch = tokenizer(rows, padding=True, return_tensors="pt")
        batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        return batch

    model = AutoModelForCausalLM.from_pretrained(model_dir)
    Trainer(model=model, args=args, train_dataset=texts, data_collator=collate).train()


if __name__ == "__main__":
    main()
