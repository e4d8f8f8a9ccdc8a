"""fms-hf-tuning as it is published, on the CPU: what trains and how it ends, where its own word for it says less.

Its environment is made of the files in examples/stacks, once, which takes minutes; HARNESS_TEST_FMS_PYTHON names one
that is there.
"""

import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.journal import read_document, read_events
from harness.record import Kind, Record, read_record
from tests.acceptance.conftest import HARNESS, Bench, properties
from tests.aim_faults import needs_aim
from tests.unit.forward.recorded import query

pytestmark = [pytest.mark.slow, pytest.mark.fms]

ROOT = Path(__file__).parents[2]
REQUIREMENTS, NO_DEPS = (ROOT / "examples" / "stacks" / f"fms-hf-tuning{end}" for end in (".txt", ".no-deps.txt"))
PYTHON = os.environ.get("HARNESS_TEST_FMS_PYTHON")
# Run by the interpreter of fms-hf-tuning: a checkpoint of 100,000 parameters with its tokenizer, and rows of text.
MAKE = """
import json, sys
from pathlib import Path
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
out = Path(sys.argv[1])
rows = [f"add {a} and {b} and {c}: {a + b + c}" for a in range(4) for b in range(4) for c in range(4)]
tokens = Tokenizer(models.BPE())
tokens.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
special = ["<unk>", "<s>", "</s>", "<pad>"]
alphabet = pre_tokenizers.ByteLevel.alphabet()
tokens.train_from_iterator(rows, trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet))
names = dict(zip(("unk_token", "bos_token", "eos_token", "pad_token"), special))
fast = PreTrainedTokenizerFast(tokenizer_object=tokens, **names)
fast.save_pretrained(out / "model")
size = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
ids = dict(vocab_size=len(fast), bos_token_id=1, eos_token_id=2, pad_token_id=3)
LlamaForCausalLM(LlamaConfig(**size, **ids, max_position_embeddings=128)).save_pretrained(out / "model")
(out / "data.jsonl").write_text("".join(json.dumps({"text": row}) + "\\n" for row in rows))
(out / "torn.jsonl").write_text('{"text": "a"}\\n{"text": ')
(out / "nothing").mkdir()
"""

SCENARIOS = r"""
defaults:
  {stack}
  trainer:
    fms:
      options: {{max_seq_length: 32, response_template: '\n### Response:',
                data_formatter_template: '\n### Response: {{{{text}}}}'}}
  model: {{path: ./model}}
  data: {{path: ./data.jsonl}}
  training: {{max_steps: 4, per_device_train_batch_size: 2, logging_steps: 1, logging_strategy: steps}}
  processes: 1
scenarios:
  - {{name: full, labels: {{bench: one}}, keep_outputs: true}}
  - {{name: adapters, method: {{lora: {{rank: 4, alpha: 8, targets: [q_proj, v_proj]}}}}, labels: {{bench: two}}}}
  - {{name: ranks, method: lora, processes: 2}}
  - {{name: packed, model: {{attention: eager}}, trainer: {{fms: {{options: {{packing: true, dataset_text_field: text,
        response_template: null, data_formatter_template: null}}}}}}}}
  - {{name: no-model, model: {{path: ./nothing}}}}
  - {{name: torn-data, data: {{path: ./torn.jsonl}}}}
  - {{name: no-number, training: {{max_steps: abc}}}}
  - {{name: unknown-option, trainer: {{fms: {{options: {{tracker: aim}}}}}}}}
  - {{name: unknown-tracker, trainer: {{fms: {{options: {{trackers: [nobody]}}}}}}}}
  - {{name: no-flash, model: {{attention: flash_attention_2}}}}
  - {{name: no-flash-ranks, model: {{attention: flash_attention_2}}, processes: 2}}
  - {{name: no-memory, trainer: {{fms: {{options: {{embedding_size_multiple_of: 1000000000000}}}}}}}}
"""


@dataclass(frozen=True)
class Ran:
    """What a session of all the scenarios left."""

    bench: Bench
    python: str

    def record(self, name: str) -> Record:
        (path,) = self.bench.session.glob(f"{name}-[fl]*-bs2-*/record.json")
        return read_record(path)

    def exit_code(self, name: str) -> int | None:
        end = self.record(name).attempts[-1].end
        assert end is not None
        code: int | None = end["exit_code"]
        return code

    def termination_log(self, name: str) -> str | None:
        """What fms-hf-tuning itself has said."""
        record = self.record(name)
        path = record.artifacts.get("termination_log")
        return (self.bench.session / record.case_id / path).read_text() if path else None


@pytest.fixture(scope="module")
def python() -> str:
    """An interpreter with fms-hf-tuning, by the documented command."""
    if PYTHON:
        return PYTHON
    text = (ROOT / "docs" / "foreign-programs.md").read_text()
    (command,) = re.findall(r"^    harness (stack examples/stacks/fms-.*)$", text, re.MULTILINE)
    done = subprocess.run([*HARNESS, *command.split()], stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def ran(python: str, make_bench: Callable[[str], Bench]) -> Ran:
    stack = f"python: {python}" if PYTHON else f"stack: {{requirements: {REQUIREMENTS}, no_deps: {NO_DEPS}}}"
    bench = make_bench(SCENARIOS.format(stack=stack))
    folder = bench.root / "scenarios"
    subprocess.run([python, "-c", MAKE, str(folder)], check=True, capture_output=True, cwd=folder)
    aim = ["--aim-repo", "runs", "--aim-timeout", "2m"] if not needs_aim.args[0] else ["--no-aim"]
    environ = {"HF_HOME": str(bench.root / "hf"), "TERMINATION_LOG_FILE": str(bench.root / "pod.log")}
    done = bench.run("-n", "2", "--label", "team=search", *aim, environ=environ)
    assert "8 failed, 4 passed" in done.stdout, done.stdout
    assert not (bench.root / "pod.log").exists()
    return Ran(bench, python)


@pytest.mark.parametrize(
    "name, ranks, tokens", [("full", 1, 4 * 2 * 32), ("adapters", 1, None), ("ranks", 2, None), ("packed", 1, None)]
)
def test_it_trains(ran: Ran, name: str, ranks: int, tokens: int | None) -> None:
    record = ran.record(name)
    assert record.verdict is not None
    assert (record.verdict.kind, record.verdict.reason) == (Kind.NONE, "")
    assert record.measurements is not None
    assert (record.measurements.steps_seen, record.measurements.ranks) == (4, ranks)
    assert ran.termination_log(name) is None
    assert record.environment["packages"]["fms-hf-tuning"] == "3.2.2"
    assert record.environment["packages"]["transformers"] == "4.55.4"
    assert (record.environment["stack"] is None) == (PYTHON is not None)
    outputs = ran.bench.session / record.case_id / "attempt-1" / "outputs"
    assert (outputs / "model" / "config.json").exists() == (name == "full")


def test_adapters_are_what_is_trained(ran: Ran) -> None:
    journal = ran.bench.session / ran.record("adapters").case_id / "attempt-1" / "rank-0" / "events.jsonl"
    (model,) = [event for _, event in read_events(journal) if event["e"] == "model"]
    # rank 4 on q_proj (64 to 64) and v_proj (64 to 32) of two layers
    assert model["trainable"] == 2 * 4 * (64 + 64 + 64 + 32)


@pytest.mark.parametrize(
    "name, exit_code, said, kind, reason",
    [
        ("no-model", 1, "Exception raised during training", Kind.USER_ERROR, "nothing"),
        ("torn-data", 1, "Exception raised during training", Kind.USER_ERROR, ""),
        ("no-number", 2, None, Kind.USER_ERROR, "argument --max_steps/--max-steps: invalid int value: 'abc'"),
        ("unknown-option", 1, None, Kind.USER_ERROR, "fms-hf-tuning has no option tracker; did you mean trackers?"),
        ("unknown-tracker", 1, "Exception raised during training", Kind.USER_ERROR, "nobody"),
        ("no-flash", 203, "Unhandled exception during training", Kind.USER_ERROR, "flash_attn"),
        ("no-memory", 203, "Unhandled exception during training", Kind.HOST_OOM, "allocate"),
    ],
)
def test_the_true_cause_beside_upstreams_code(
    ran: Ran, name: str, exit_code: int, said: str | None, kind: Kind, reason: str
) -> None:
    record = ran.record(name)
    assert record.verdict is not None
    assert (record.verdict.kind, record.verdict.rank, record.verdict.transient) == (kind, 0, False)
    assert reason in record.verdict.reason
    assert ran.exit_code(name) == exit_code
    log = ran.termination_log(name)
    assert (log or "").startswith(said or "")
    assert (log is None) == (said is None)
    case = ran.bench.case_elements()[record.case_id]
    assert properties(case)["verdict"] == kind


def test_a_launch_of_several_ranks_folds_their_codes_and_the_verdict_does_not(ran: Ran) -> None:
    record = ran.record("no-flash-ranks")
    assert record.verdict is not None
    assert (record.verdict.kind, record.verdict.rank is not None) == (Kind.USER_ERROR, True)
    assert "flash_attn" in record.verdict.reason
    assert ran.exit_code("no-flash-ranks") == 1  # torchrun's, whatever the ranks' were
    case = ran.bench.session / record.case_id / "attempt-1"
    errors = [read_document(case / f"rank-{rank}" / "error.json") for rank in (0, 1)]
    told = [error for error in errors if error is not None]
    assert {error["type"] for error in told} == {"builtins.ImportError"}
    assert {error["exit_code"] for error in told} == {203}


@needs_aim
@pytest.mark.parametrize("name, bench", [("full", "one"), ("adapters", "two")])
def test_labels_reach_record_junit_and_aim_without_exp_metadata(ran: Ran, name: str, bench: str) -> None:
    """Upstream, exp_metadata ends the job, never reaches Aim, and a second training has the first one's."""
    record = ran.record(name)
    assert {"bench": bench, "team": "search", "experiment": name}.items() <= record.labels.items()
    told = properties(ran.bench.case_elements()[record.case_id])
    assert {key[6:]: value for key, value in told.items() if key.startswith("label.")} == record.labels
    (run,) = query(ran.bench.root / "runs", f"run.benchmark.labels.bench == '{bench}'")
    assert run["benchmark"]["labels"] == record.labels
    assert len(run["series"]['loss {"rank": 0}'][0]) == 4


@pytest.mark.parametrize(
    "arguments",
    [["--exp_metadata", '{"a": "b"}'], ["--aim_remote_server_ip", "127.0.0.1", "--aim_remote_server_port", "53800"]],
    ids=["exp_metadata", "aim_remote_server"],
)
def test_what_a_scenario_may_not_ask_for_still_fails_upstream(
    python: str, tmp_path: Path, arguments: list[str]
) -> None:
    """Where this fails, upstream has mended it: take the option out of what scenarios refuse."""
    log = tmp_path / "termination.log"
    needed = ["--model_name_or_path", "m", "--training_data_path", "d", "--output_dir", str(tmp_path / "out")]
    done = subprocess.run(
        [python, "-m", "tuning.sft_trainer", *needed, "--use_cpu", "true", "--torch_dtype", "float32", *arguments],
        cwd=tmp_path,
        env={**os.environ, "TERMINATION_LOG_FILE": str(log), "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert log.read_text().startswith("Exception raised while parsing arguments.")


# As fms-hf-tuning's build/accelerate_launch.py, which is in no wheel: elastic ranks whose codes all become 203.  Rank 1
# is asked for an embedding that no memory holds.
FOLDING = """
import os, subprocess, sys, time
ranks = []
for rank in range(2):
    environ = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
               "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[1]}
    more = ["--embedding_size_multiple_of", "1000000000000"] if rank == 1 else []
    ranks.append(subprocess.Popen([sys.executable, "-m", "tuning.sft_trainer", *sys.argv[2:], *more], env=environ))
while all(rank.poll() is None for rank in ranks):
    time.sleep(0.1)
failed = any(rank.poll() for rank in ranks)
for rank in ranks:
    if failed:
        rank.terminate()
    rank.wait()
sys.exit(203 if failed else 0)
"""


def test_a_launcher_of_its_own_that_folds_every_code(
    ran: Ran, make_bench: Callable[[str], Bench], free_port: int
) -> None:
    folder = ran.bench.root / "scenarios"
    arguments = [
        *("--model_name_or_path", folder / "model", "--training_data_path", folder / "data.jsonl"),
        *("--output_dir", "{output_dir}", "--use_cpu", "true", "--use_flash_attn", "false"),
        *("--torch_dtype", "float32", "--max_steps", "4", "--report_to", "none", "--save_strategy", "no"),
        *("--packing", "true", "--dataset_text_field", "text", "--max_seq_length", "32"),
    ]
    words = ", ".join(f"'{argument}'" for argument in (free_port, *arguments))
    bench = make_bench(
        f"name: folding\npython: {ran.python}\nprocesses: 2\n"
        f"trainer: {{target: ../folding.py, launcher: own, args: [{words}]}}\n"
    )
    (bench.root / "folding.py").write_text(FOLDING)
    bench.run(environ={"HF_HOME": str(bench.root / "hf")})
    record = read_record(bench.session / "folding-2proc" / "record.json")
    assert record.verdict is not None
    assert (record.verdict.kind, record.verdict.rank) == (Kind.HOST_OOM, 1), record.verdict
    assert record.attempts[-1].end is not None
    assert record.attempts[-1].end["exit_code"] == 203


@pytest.fixture
def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
