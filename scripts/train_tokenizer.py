"""Train the tokenizer that goes with checkpoints of random weights, and write it to harness/assets/tokenizer/.

    python scripts/train_tokenizer.py [FOLDER]

Byte-level BPE, so that every text can be encoded, with a vocabulary as small as the smallest model of the catalogue
has.  It is trained on the words that synthetic data is made of, so that each of them is one token, with a space before
it and at the start of a text.  Nothing is random: the files are the same every time."""

import argparse
import json
from pathlib import Path
from typing import Any

from harness.assets.rows import WORDS

FOLDER = Path(__file__).parent.parent / "harness" / "assets" / "tokenizer"
VOCABULARY = 512
PAD, BOS, EOS, UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
# What is left of the vocabulary after the words goes to English.
ENGLISH = """the of and a to in is it that for was on are as with they at be this have from or one had by word but not
what all were we when your can said there use an each which she do how their if will up other about out many then them
these so some her would make like him into time has look two more write go see number no way could people my than first
water been call who oil its now find long down day did get come made may part"""
# The turns of an assistant are marked for programs that train on them alone.
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}"
    "{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train() -> dict[str, Any]:
    """tokenizer.json."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[PAD, BOS, EOS, UNKNOWN, *ROLES],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    made: dict[str, Any] = json.loads(tokenizer.to_str())
    return made


def corpus() -> list[str]:
    """Lines that hold every word at the start and within, the first words most often, then English."""
    lines = [f"{word} {word} {word}" for number, word in enumerate(WORDS) for _ in range(1000 - number)]
    return lines + ENGLISH.split("\n") * 20


def config() -> dict[str, Any]:
    """tokenizer_config.json, in the words that transformers 4.46 to 5.x have in common."""
    special = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    tokens = [PAD, BOS, EOS, UNKNOWN, *ROLES]
    return {
        "added_tokens_decoder": {str(number): {"content": token, **special} for number, token in enumerate(tokens)},
        "additional_special_tokens": list(ROLES),
        "bos_token": BOS,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "eos_token": EOS,
        "model_input_names": ["input_ids", "attention_mask"],  # no token_type_ids, which decoders do not take
        "pad_token": PAD,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": UNKNOWN,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("tokenizer.json", train()), ("tokenizer_config.json", config())):
        (folder / name).write_text(json.dumps(content, indent=1, sort_keys=name != "tokenizer.json") + "\n", "utf-8")


if __name__ == "__main__":
    main()
