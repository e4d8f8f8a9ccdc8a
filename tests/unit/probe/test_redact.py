"""Secrets by name, by value and by shape; and what must stay readable."""

import pytest

from harness.probe.redact import (
    HIDDEN,
    is_secret_name,
    redact,
    redact_argv,
    redact_tree,
    secret_arguments,
    secret_values,
)


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN", "hf_token", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY", "wandbApiKey", "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID_KEY", "DB_PASSWORD", "DB_PASSWORD_FILE", "PGPASSWD", "MY_CREDENTIALS", "--hub-token",
        "--hub_token", "-api-key", "http_auth", "Authorization", "ssh_private_key", "key", "APIKEY", "OPENAI_KEY_2",
        "proxyPassword", "CLIENT_SECRET", "SESSION_COOKIE",
    ],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "PATH", "eos_token", "pad_token_id", "--bos-token", "max_new_tokens", "num_input_tokens_seen", "tokenizer",
        "TOKENIZERS_PARALLELISM", "keyboard", "num_key_value_heads", "k_proj", "monkey", "author", "authors",
        "CUDA_VISIBLE_DEVICES", "learning_rate", "image_token_index", "response_token", "sort_key", "keys", "donkey",
    ],
)  # fmt: skip
def test_names_of_other_things(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "text, hidden",
    [
        ("token hf_abcdefghijklmnop here", f"token {HIDDEN} here"),
        ("ghp_0123456789abcdefABCDEF and gho_0123456789abcdefABCDEF", f"{HIDDEN} and {HIDDEN}"),
        ("github_pat_0123456789abcdefABCDEF", HIDDEN),
        ("sk-proj-0123456789abcdefghij", HIDDEN),
        ("AKIAIOSFODNN7EXAMPLE", HIDDEN),
        ("Authorization: Bearer abc.def-123", f"Authorization: {HIDDEN} {HIDDEN}"),
        ("header 'bearer abcdef123456'", f"header 'bearer {HIDDEN}'"),
        ("https://user:pa55@host/x?y", f"https://{HIDDEN}@host/x?y"),
        ("git+ssh://me@host", f"git+ssh://{HIDDEN}@host"),
        ("https://host/a@b", "https://host/a@b"),
        ("WANDB_API_KEY=0123abcd and x=1", f"WANDB_API_KEY={HIDDEN} and x=1"),
        ('{"api_key": "a b\\"c", "lr": 1}', f'{{"api_key": {HIDDEN}, "lr": 1}}'),
        ("password: 'hunter22'", f"password: {HIDDEN}"),
        ("f(token='abc123x', lr=1)", f"f(token={HIDDEN}, lr=1)"),
        ("ValueError: 'token=abc123x'", f"ValueError: 'token={HIDDEN}'"),
        ("sorted(rows, key=len)", "sorted(rows, key=len)"),
        ("use_auth_token=True", "use_auth_token=True"),
        ("eos_token: </s>", "eos_token: </s>"),
        ("KeyError: 'labels'", "KeyError: 'labels'"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\nx", f"{HIDDEN}\nx"),
        ("CUDA out of memory. Tried to allocate 2.15 GiB.", "CUDA out of memory. Tried to allocate 2.15 GiB."),
    ],
)
def test_shapes_and_assignments(text: str, hidden: str) -> None:
    assert redact(text) == hidden


def test_redacting_twice_changes_nothing() -> None:
    once = redact("token=abcdef1 https://a:b@c hf_abcdefghijklmnop Bearer 0123456789")
    assert redact(once) == once


def test_known_values_go_wherever_they_stand() -> None:
    secrets = {"s3cr3tvalue", "s3cr3tvalue-longer", "short"}
    assert redact("x s3cr3tvalue-longer y/s3cr3tvalue! short", secrets) == f"x {HIDDEN} y/{HIDDEN}! short"


def test_values_of_an_environment() -> None:
    environ = {"HF_TOKEN": " abcdefgh\n", "API_KEY": "abc", "USE_AUTH": "false", "TOKEN": "12345", "PATH": "/usr/bin"}
    assert secret_values(environ) == {"abcdefgh"}


def test_command_lines() -> None:
    argv = ["--hub-token", "abc", "--lr", "1", "--api_key=xyz123", "--token", "--eos_token", "</s>", "--password"]
    hidden = ["--hub-token", HIDDEN, "--lr", "1", f"--api_key={HIDDEN}", "--token", "--eos_token", "</s>", "--password"]
    assert redact_argv(argv) == hidden


def test_values_of_the_environment_in_a_command_line() -> None:
    assert redact_argv(["x", "--url", "http://h/?q=verysecret"], {"verysecret"}) == [
        "x",
        "--url",
        f"http://h/?q={HIDDEN}",
    ]


def test_secrets_among_arguments() -> None:
    argv = ["train.py", "--hub-token", "staple-and-more", "--api_key=battery-horse", "--lr", "1e-4", "--use-auth-token"]
    assert secret_arguments(argv) == {"staple-and-more", "battery-horse"}
    assert secret_arguments(["--token", "--learning-rate", "1e-4"]) == set()
    assert secret_arguments([]) == set()


def test_nested_values() -> None:
    tree = {"env": {"HF_TOKEN": "x", "A": "see hf_abcdefghijklmnop"}, "args": ["Bearer abcdefgh"], "n": 3, "none": None}
    assert redact_tree(tree) == {
        "env": {"HF_TOKEN": HIDDEN, "A": f"see {HIDDEN}"},
        "args": [f"Bearer {HIDDEN}"],
        "n": 3,
        "none": None,
    }
