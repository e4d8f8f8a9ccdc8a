"""fms-hf-tuning as it is published, on the CPU: what trains and how it ends, where its own word for it says less."""

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.journal import read_document, read_events
from harness.record import Kind, Record, read_record
from tests.acceptance.conftest import Bench, probe_errors, properties
from tests.acceptance.stacks import FMS
from tests.aim_faults import needs_aim
from tests.unit.forward.recorded import query

pytestmark = [pytest.mark.slow, pytest.mark.fms]

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
  stack: {stack}
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
  - name: no-gpu-memory
    trainer: {{fms: {{options: {{trackers: [hf_resource_scanner]}}}}}}
    env: {{PYTHONPATH: {scanner}}}
  - name: folding
    processes: 2
    trainer:
      target: ../folding.py
      launcher: own
      args: [--model_name_or_path, "{{model_dir}}", --training_data_path, "{{data_file}}",
             --output_dir, "{{output_dir}}", --use_cpu=true, --use_flash_attn=false, --torch_dtype=float32,
             --report_to=none, --save_strategy=no, --packing=true, --dataset_text_field=text, --max_seq_length=32,
             "{{training}}"]
    env: {{TERMINATION_LOG_FILE: folding.log}}
"""
# A callback of another package, which fms-hf-tuning loads where its option asks for it.
SCANNER = """
import torch
import transformers


class Scanner(transformers.TrainerCallback):
    def __init__(self, output_fmt):
        pass

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2:
            raise torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.15 GiB. GPU 0 has a total capacity of 79.25 GiB of which "
                "1.03 GiB is free. Including non-PyTorch memory, this process has 78.20 GiB memory in use."
            )
"""


@dataclass(frozen=True)
class Ran:
    """What a session of all the scenarios left."""

    bench: Bench
    python: Path

    def record(self, name: str) -> Record:
        (path,) = self.bench.session.glob(f"{name}-[0-9fl]*proc/record.json")
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
def ran(tmp_path_factory: pytest.TempPathFactory, make_bench: Callable[[str], Bench]) -> Ran:
    scanner = tmp_path_factory.mktemp("scanner")
    (scanner / "HFResourceScanner.py").write_text(SCANNER)
    (scanner / "HFResourceScanner-1.0.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: HFResourceScanner\nVersion: 1.0\n"
    (scanner / "HFResourceScanner-1.0.dist-info" / "METADATA").write_text(metadata)
    bench = make_bench(SCENARIOS.format(stack=FMS.key, scanner=scanner))
    python = FMS.lend(bench.root / "cache")
    folder = bench.root / "scenarios"
    subprocess.run([python, "-c", MAKE, str(folder)], check=True, capture_output=True, cwd=folder)
    aim = ["--aim-repo", "runs", "--aim-timeout", "2m"] if not needs_aim.args[0] else ["--no-aim"]
    environ = {"HF_HOME": str(bench.root / "hf"), "TERMINATION_LOG_FILE": str(bench.root / "pod.log")}
    done = bench.run("-n", "2", "--label", "team=search", *aim, environ=environ)
    assert "9 failed, 4 passed, 1 xfailed" in done.stdout, done.stdout
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
    assert record.environment["stack"]["requirements"] == [str(FMS.requirements)]
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
        (
            "no-gpu-memory",
            203,
            "OOM error during training.",
            Kind.GPU_OOM,
            "asked for 2.15 GiB, 1.03 GiB of 79.25 GiB free",
        ),
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
def test_what_a_scenario_may_not_ask_for_still_fails_upstream(ran: Ran, tmp_path: Path, arguments: list[str]) -> None:
    """Where this fails, upstream has mended it: take the option out of what scenarios refuse."""
    log = tmp_path / "termination.log"
    needed = ["--model_name_or_path", "m", "--training_data_path", "d", "--output_dir", str(tmp_path / "out")]
    done = subprocess.run(
        [ran.python, "-m", "tuning.sft_trainer", *needed, "--use_cpu", "true", "--torch_dtype", "float32", *arguments],
        cwd=tmp_path,
        env={**os.environ, "TERMINATION_LOG_FILE": str(log), "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1, done.stderr
    assert log.read_text().startswith("Exception raised while parsing arguments.")


def test_a_launcher_of_its_own_that_folds_every_code(ran: Ran) -> None:
    record = ran.record("folding")
    assert record.verdict is not None
    assert (record.verdict.kind, record.verdict.rank) == (Kind.HOST_OOM, 1)
    assert ran.exit_code("folding") == 203
    case = ran.bench.session / record.case_id / "attempt-1"
    error = read_document(case / "rank-1" / "error.json")
    assert error is not None
    assert (error["type"], error["exit_code"]) == ("builtins.RuntimeError", 203)
    assert "allocate" in error["message"]


def test_the_probe_itself_had_no_trouble(ran: Ran) -> None:
    assert probe_errors(ran.bench.session) == []
