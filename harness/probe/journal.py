"""The journal of a rank: which events there are, and the writer that appends them.

One JSON object a line, one write(2) a line, so that a SIGKILL loses at most the line being written."""

import contextlib
import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SCHEMA = 1

# event -> field -> what it holds.  `docs/job-directory.md` prints this table; a test keeps the two equal.  Every line
# also has t (wall clock, seconds since the epoch), m (monotonic clock, seconds) and e (the event's name).
EVENTS: dict[str, dict[str, str]] = {
    "start": {
        "schema": "version of this table",
        "pid": "process id of the rank",
        "rank": "global rank",
        "local_rank": "rank on its node",
        "world_size": "number of ranks",
        "python": "version of the interpreter",
        "process_started": "when the process was created, seconds since the epoch; null where /proc does not tell",
        "target": "the target as asked for: a file, or `-m module`",
    },
    "phase": {
        "name": "the phase that begins: import, setup, model_load, data, first_step, steady, save, teardown",
    },
    "model": {
        "type": "class of the model",
        "parameters": "number of parameters, the frozen ones included",
        "trainable": "number of trainable parameters",
        "whole": "whether this rank holds all parameters in their own shapes: not sharded, partitioned or flattened",
        "dtype": "dtype of the first parameter",
        "device": "device that it trains on, as torch prints it: the Trainer's GPU, else the first parameter's device",
        "device_name": "name of the GPU; null on CPU",
        "device_uuid": "UUID of the GPU, to join with NVML; null on CPU or where torch does not tell",
        "torch": "version of torch",
        "transformers": "version of transformers; null when not imported",
    },
    "shape": {
        "layers": "number of blocks, as the model's config says; like all of its numbers null where it does not say",
        "hidden": "width of the residual stream",
        "heads": "attention heads",
        "kv_heads": "heads of keys and values, fewer with grouped-query attention",
        "head_dim": "width of a head; null: hidden over heads",
        "value_head_dim": "width of a value's head where it differs",
        "intermediate": "width of the feed-forward layer",
        "vocab": "size of the vocabulary",
        "experts": "experts of a layer; null in a dense model",
        "experts_per_token": "experts that a token is routed to",
        "window": "tokens that a layer with a sliding window sees",
        "window_layers": "number of such layers",
        "matmul_frozen": "frozen parameters that multiply every token: matrices without embeddings and experts, the "
        "output head included, also where it is the embedding",
        "matmul_trainable": "the same, trained; adapters among them",
        "expert_frozen": "frozen parameters of all experts",
        "expert_trainable": "trained parameters of all experts",
        "head": "parameters of the output head",
        "last_linear": "parameters of the last matrix of a block, which checkpointing need not compute again; 0: an "
        "expert's",
        "tied": "whether the output head is the embedding",
        "first_trainable_layer": "first block with a trained parameter; null: none has one",
        "first_norm_trained": "whether that block's norm is trained, so that what comes after it needs gradients",
        "input_gradient": "whether the first block's input needs a gradient",
        "checkpointing": "activation checkpointing: reentrant, non_reentrant; null: none",
        "attention": "attention implementation in effect, as transformers calls it",
        "compute_dtype": "type that matrices are multiplied in: autocast's, else the weights'; tf32 where float32 may "
        "use it",
        "reason": "why FLOPs cannot be counted from these; null when they can",
    },
    "parameters": {
        "when": "first: before a segment's first step; last: after its last, where it ended well",
        "segment": "segment it belongs to",
        "step": "global step that has ended",
        "tensors": "trainable tensors of which this rank holds a part",
        "checksum": "sum over the bits of all of them; equal numbers: equal parameters",
        "changed": "tensors that differ from those of `first`; null in `first`",
    },
    "segment": {
        "segment": "number of this stretch of training in the process, from 0: a call of train() or a restart in it; "
        "in the record and the series, those of the next process that is this rank are numbered on",
        "restart": "whether train() began again by itself (auto_find_batch_size)",
        "step": "global step it starts from (above 0 when resuming)",
        "max_steps": "global step it is to end at; this and the rest null in a program without a Trainer",
        "batch_asked": "micro-batch of a device as given in the training arguments",
        "batch_ran": "micro-batch of a device that really runs (smaller after auto_find_batch_size)",
        "accumulation": "micro-batches in a step",
        "data_rank": "which share of the data this rank sees; ranks with the same one (tensor or context parallel) are "
        "fed the same batches; slices of one (sequence parallel) are shares of their own; null where nobody tells",
        "data_ranks": "number of such shares",
        "split_reason": "why a part of its steps, other than the wait for data, is null; null when none is",
    },
    "arguments": {
        "segment": "segment whose Trainer has them; nothing is written where the scenario names no training arguments",
        "got": "of the training arguments that the scenario names, those that the program had, by name: text, numbers, "
        "true, false, null, lists and mappings of them; secrets redacted",
        "unknown": "names that the program's arguments do not have",
        "opaque": "names whose values are other objects, which cannot be compared",
    },
    "step": {
        "step": "global step that ended, from 1",
        "segment": "segment it belongs to",
        "ended_m": "when it ended on the host, on the clock of m; on a GPU the line is written later",
        "seconds": "wall time from the end of the step before (or the segment's start) to this step's end, host clock; "
        "in a program without a Trainer the first step counts from the start of its phase",
        "device_seconds": "between two CUDA events, without the overhead; null on CPU and for a segment's first step",
        "overhead_seconds": "time within `seconds` that logging, saving and evaluating took (predicting is the same), "
        "after the step before, before the first, or where a callback asks for it, host clock; and what "
        "`measure: until` takes to look at the steps so far",
        "overhead": "what took it: a list of log, save, eval",
        "data_wait_seconds": "time within `seconds` in which the loop waited for its batches, host clock; on a GPU "
        "earlier work may have run meanwhile; null when nobody was seen to fetch one",
        "forward_backward_seconds": "from the first micro-batch's forward to the end of the last one's backward, by "
        "the GPU's clock where there is one; null in a program without a Trainer",
        "optimizer_seconds": "from there to the step's end: clipping, the optimizer's step, the scheduler, zeroing of "
        "gradients; same clock; null as before, and where the optimizer steps within the backward",
        "epoch": "passes over the data so far, a part of one included; null in a program without a Trainer",
        "loss": "loss of the step on this rank: the sum of what training_step returned for its micro-batches (the "
        "Trainer has divided each by their number); null when unknown",
        "grad_norm": "gradient norm before clipping, with fp16 without the loss scale; null when the trainer computed "
        "none",
        "learning_rate": "learning rate of the first parameter group in this step",
    },
    "tokens": {
        "step": "global step these belong to",
        "segment": "segment they belong to",
        "padded": "slots: elements of input_ids",
        "non_pad": "slots that hold a token (attention_mask); equal to padded without a mask",
        "trainable": "labels that count in the loss after the shift by one",
        "samples": "rows of the step's micro-batches; where ranks hold slices of one (sequence parallel), those of the "
        "first of them alone have rows",
        "padded_squares": "sum over rows of the squared number of slots: what attention's work grows with",
        "non_pad_squares": "sum over documents of the squared number of tokens; documents of a packed row by "
        "position_ids, else by the numbers in attention_mask",
        "micro_batches": "micro-batches of the step",
        "reason": "why the counts are null; null when they are not",
    },
    "compile": {
        "segment": "segment in which it was told: after its first step, at its end and at the end, if it changed; null "
        "before the first",
        "step": "global step that has ended; null before the first",
        "seconds": "wall time that torch.compile has taken in the process so far; null where torch does not tell",
        "compilations": "pieces of code compiled, each time counted",
        "graphs": "graphs that they hold",
        "recompiles": "compilations of code that was compiled before, for other shapes, say; null as before",
        "graph_breaks": "places where a function could not be compiled as a whole",
        "cache_hits": "graphs whose compiled code was found in a cache on disk",
        "cache_misses": "graphs whose code was compiled anew",
    },
    "stop": {
        "step": "global step at which training stopped",
        "why": "what stopped it: interval, max_time, max_steps (of `measure: until`)",
        "interval": "width of the median step time's interval over the median, on rank 0; null before "
        "`min_steps`, or with too few measured steps",
        "measured": "steps that the interval is of",
    },
    "log": {
        "step": "global step",
        "epoch": "as in `step`",
        "logs": "what the program logged: numbers only",
    },
    "labels": {
        "labels": "labels that the program gives itself (BenchmarkAimCallback, Journal), secrets redacted; those given "
        "at launch win over them",
    },
    "eval": {"step": "global step after which the program evaluated"},
    "save": {"step": "global step after which the program saved"},
    "exception": {
        "type": "qualified name of the exception's class",
        "bases": "qualified names of its base classes, nearest first",
        "message": "its text, secrets redacted, at most 4,000 characters",
        "traceback": "the last frames, secrets redacted, at most 8,000 characters",
        "chain": "causes and contexts, nearest first: a list of {type, message, link}; link: cause (raised from it) or "
        "context (raised while it was handled)",
        "step": "global step that was running (last finished + 1); null outside train()",
        "phase": "phase in which it was seen",
        "part": "part of a step: data, forward, backward, optimizer, save, eval; null when not in one",
        "where": "who saw it: train (it left Trainer.train), main (it left the program), exit (behind SystemExit), "
        "log, retry (accelerate, asked whether a smaller batch may help: find_executable_batch_size)",
        "exit_code": "exit code of a SystemExit; null for others",
    },
    "memory": {
        "phase": "phase at whose end this was read",
        "allocated_peak_bytes": "peak of the allocator; null on CPU",
        "active_peak_bytes": "peak of allocated blocks and those that wait for the device to be freed; null on CPU",
        "reserved_peak_bytes": "peak reserved; null on CPU",
        "since": "what the peaks cover: `phase` this phase alone (the built-in target), `process` all before it too "
        "(other programs, whose own peak statistics are left alone); null on CPU",
        "total_bytes": "memory of the device; null on CPU",
        "alloc_retries": "allocations that were tried again after freeing cached blocks; null on CPU",
        "ooms": "out-of-memory errors of the allocator; null on CPU",
        "reason": "why the figures are null; null when they are not",
    },
    "probe_error": {"where": "the hook that failed", "message": "type and text of the failure in the probe itself"},
    "unmeasured": {
        "pid": "a process of the job that trains, and is not measured",
        "target": "what it runs",
        "why": "why it is not measured: this rank is another process",
    },
    "end": {
        "exit_code": "exit code of the rank; null when it left by a signal, and where the process cannot know it",
        "steps": "optimizer steps seen in all",
        "seen_by": "how steps were seen: trainer, optimizer, journal (told by the program itself); null when none was",
    },
}


def net_seconds(step: dict[str, Any]) -> float:
    """A step's time without logging, saving and evaluating, in seconds; by the GPU's clock where there is one.

    Raises KeyError, TypeError or ValueError for an event that has no time.
    The two clocks are never mixed: on a GPU the host waits, while it logs, for work of the step before.
    """
    device = step.get("device_seconds")
    if isinstance(device, (int, float)):
        return float(device)
    return max(0.0, float(step["seconds"]) - float(step.get("overhead_seconds") or 0.0))


class JournalFile:
    """Appends events to one file, from any thread; a failing disk is reported once on stderr, never raised."""

    fsync_every_s = 1.0

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._dirty = False  # written since the last sync
        self._closed = threading.Event()
        self._failed = False
        self._torn = False  # the file ends within a line: a full disk took a part of a write
        self._thread: threading.Thread | None = None

    def write(self, event: str, **fields: Any) -> None:
        """Append one event.  JSON has no non-finite numbers: they become the strings NaN, Infinity, -Infinity."""
        self.write_all([(event, fields)])

    def write_all(self, events: Sequence[tuple[str, dict[str, Any]]]) -> None:
        """Append several events that are known at the same time, in one write(2)."""
        t, m = time.time(), time.monotonic()
        lines = b"".join([_encode({"t": t, "m": m, "e": event, **fields}) for event, fields in events])
        if self._torn:
            lines = b"\n" + lines
        try:
            written = os.write(self._fd, lines)
        except OSError as error:  # nothing was written: the file ends as before
            self._lost(str(error))
        else:
            if written < len(lines):
                self._lost(f"{written} of {len(lines)} bytes written")
            self._torn = not lines[:written].endswith(b"\n")
        self._dirty = True

    def _lost(self, why: str) -> None:
        if not self._failed:
            self._failed = True
            os.write(2, f"harness: journal lost a line: {why}\n".encode())

    def sync_regularly(self) -> None:
        """From now on bring what was written to the disk once a second, in a thread.

        Not from the start: a program that never trains must not turn into one with several threads, of which os.fork
        warns.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._sync_regularly, name="harness-journal", daemon=True)
            self._thread.start()

    def sync(self) -> None:
        """Bring what was written to the disk itself; at phase marks and at the end, never within a step."""
        self._dirty = False
        with contextlib.suppress(OSError):  # a file system without fsync: write(2) has already left the process
            os.fsync(self._fd)

    def close(self) -> None:
        if not self._closed.is_set():
            self._closed.set()
            if self._thread is not None:
                self._thread.join(timeout=self.fsync_every_s)  # it must not find another file under our descriptor
            self.sync()
            os.close(self._fd)

    def _sync_regularly(self) -> None:
        while not self._closed.wait(self.fsync_every_s):
            if self._dirty:
                self.sync()


_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))  # json.dumps would make one for each line


def _encode(event: dict[str, Any]) -> bytes:
    try:
        return _ENCODER.encode(event).encode() + b"\n"
    except ValueError:
        return _ENCODER.encode(_finite(event)).encode() + b"\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        if value != value:
            return "NaN"
        return {float("inf"): "Infinity", float("-inf"): "-Infinity"}.get(value, value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value
