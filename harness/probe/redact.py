"""Takes secrets out of text, by the names that hold them and by the values themselves; pure."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

HIDDEN = "[redacted]"
SHORTEST_SECRET = 6  # shorter values would hide half of every log

# Words of a name that mark it as holding a secret, wherever they stand: HF_TOKEN, --hub-token, DB_PASSWORD_FILE.
_SECRET_WORDS = frozenset(
    ["token", "secret", "secrets", "password", "passwd", "passphrase", "apikey", "credential", "credentials"]
    + ["auth", "authorization", "bearer", "cookie"]
)
# `key` marks a name only at its end (`keyboard`, `key_value_heads` hold none); the same for numbered ones (KEY_2).
_SECRET_END = re.compile(r"key[_-]?\d*$")
_PLAIN_KEYS = frozenset(["sort_key", "primary_key", "label_key", "text_key", "dict_key", "metric_key"])
# Words beside `token` that make it a thing of the model (eos_token); a plural (max_new_tokens) never matches.
_TOKEN_OF_MODEL = frozenset(
    ["pad", "padding", "eos", "bos", "unk", "sep", "cls", "mask", "image", "video", "audio", "special", "begin"]
    + ["start", "stop", "end", "decoder", "forced", "response", "instruction"]
)

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

# What secrets of known issuers look like.  Group `keep`, where there is one, stays readable.
_SHAPES = (
    re.compile(r"\bhf_[A-Za-z0-9]{10,}"),  # Hugging Face
    re.compile(r"\bapi_org_[A-Za-z0-9]{10,}"),  # Hugging Face, organisation
    re.compile(r"\bgh[pousr]_[A-Za-z0-9]{16,}"),  # GitHub
    re.compile(r"\bgithub_pat_[A-Za-z0-9_]{16,}"),
    re.compile(r"\bglpat-[A-Za-z0-9_-]{16,}"),  # GitLab
    re.compile(r"\bsk-[A-Za-z0-9_-]{16,}"),  # OpenAI, Anthropic
    re.compile(r"\bxox[abprs]-[A-Za-z0-9-]{10,}"),  # Slack
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),  # AWS access key id
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+"),  # JSON web token
    re.compile(r"(?P<keep>\b(?:Bearer|Basic)\s+)[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE),
    re.compile(r"(?P<keep>\b[A-Za-z][A-Za-z0-9+.-]*://)[^\s/?#@'\"]+(?=@)"),  # user:password@ of a URL
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
)

# `name=value`, `name: value`, `"name": "value"`, `--name=value`: the value goes when the name is a secret's.  In
# `--name value` nothing tells a value from a positional argument; `redact_argv` hides it.
_ASSIGNMENT = re.compile(
    r"""(?P<name>(?<![A-Za-z0-9_-])-{0,2}[A-Za-z_][A-Za-z0-9_.-]*)
        (?P<between>["']?\s*[=:]\s*)
        (?P<value>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s,;&'"()\[\]{}]+)""",
    re.VERBOSE,
)


def is_secret_name(name: str) -> bool:
    """Whether a variable, option or key of this name holds a secret."""
    plain = name.strip("-").lower()
    if _SECRET_END.search(plain) and plain.replace("-", "_") not in _PLAIN_KEYS and _ends_in_word_key(name):
        return True
    words = [word.lower() for word in _WORDS.findall(name)]
    found = _SECRET_WORDS.intersection(words)
    if found == {"token"} and _TOKEN_OF_MODEL.intersection(words):
        return False
    run_together = plain.replace("_", "").replace("-", "")  # PGPASSWD, OPENAIAPIKEY
    return bool(found) or any(word in run_together for word in ("apikey", "passwd", "password", "secret"))


def secret_values(environ: Mapping[str, str]) -> set[str]:
    """The values of the variables that hold secrets, at least 6 characters long each."""
    return {
        value.strip()
        for name, value in environ.items()
        if is_secret_name(name) and len(value.strip()) >= SHORTEST_SECRET and not _is_harmless(value.strip())
    }


def secret_arguments(argv: Sequence[str]) -> set[str]:
    """The values of a command line's secret options, as `secret_values` gives those of variables."""
    found: set[str] = set()
    for number, argument in enumerate(argv):
        option, assigned, value = argument.partition("=")
        if not assigned and number + 1 < len(argv) and not argv[number + 1].startswith("-"):
            value = argv[number + 1]
        if option.startswith("-"):
            found |= secret_values({option: value})
    return found


def redact(text: str, secrets: Collection[str] = ()) -> str:
    """`text` with known secret values, values under a secret's name, and values of a known issuer's shape replaced."""
    for secret in sorted(secrets, key=len, reverse=True):  # longest first: one may contain another
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, HIDDEN)
    for shape in _SHAPES:
        text = shape.sub(_hide_shape, text)
    return _ASSIGNMENT.sub(_hide_value, text)


def redact_argv(argv: Sequence[str], secrets: Collection[str] = ()) -> list[str]:
    """A command line with the values of secret options hidden, given as `--token VALUE` or as `--token=VALUE`."""
    return list(_argv(argv, secrets))


def redact_tree(value: Any, secrets: Collection[str] = ()) -> Any:
    """A copy of nested mappings and lists: texts below a secret's name hidden whole, all others redacted, keys too."""
    return _tree(value, secrets, hidden=False)


def _tree(value: Any, secrets: Collection[str], *, hidden: bool) -> Any:
    if isinstance(value, Mapping):
        return {
            redact(key, secrets) if isinstance(key, str) else key: _tree(
                item, secrets, hidden=hidden or is_secret_name(str(key))
            )
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_tree(item, secrets, hidden=hidden) for item in value]
    if not isinstance(value, str):
        return value
    return HIDDEN if hidden else redact(value, secrets)


def _argv(argv: Sequence[str], secrets: Collection[str]) -> Iterable[str]:
    after_secret = False
    for argument in argv:
        is_option = argument.startswith("-")
        if after_secret and not is_option:
            yield HIDDEN
            after_secret = False
            continue
        after_secret = is_option and "=" not in argument and is_secret_name(argument)
        yield redact(argument, secrets)


def _hide_shape(match: "re.Match[str]") -> str:
    return (match.groupdict().get("keep") or "") + HIDDEN


def _hide_value(match: "re.Match[str]") -> str:
    start, value = match["name"] + match["between"], match["value"]
    if value.startswith(HIDDEN) or _is_harmless(value.strip("\"'")):
        return match[0]
    if is_secret_name(match["name"]) and match["name"] != "key":  # sorted(rows, key=len)
        return start + HIDDEN
    if value[0] in "\"'":  # KeyError: 'token=...'
        return start + value[0] + _ASSIGNMENT.sub(_hide_value, value[1:-1]) + value[-1]
    return match[0]


def _is_harmless(value: str) -> bool:
    """Switches and small numbers under a secret's name (`use_auth_token=True`, `token: 3`) tell nothing."""
    return value.lower() in ("", "true", "false", "none", "null", "yes", "no") or (value.isdigit() and len(value) < 6)


def _ends_in_word_key(name: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(name) if not word.isdigit()]
    return bool(words) and words[-1] in ("key", "apikey")
