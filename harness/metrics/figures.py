"""Every figure of a record's `measurements`: its unit, scope, formula, source, and what null means.

`docs/metrics.md` prints this table, and a test keeps the two and the record's fields equal."""

from dataclasses import dataclass

MEASURED = "measured steps"
SEGMENT = "last segment"
JOB = "whole job"


@dataclass(frozen=True)
class Figure:
    """What a field of `Measurements` holds."""

    unit: str
    scope: str
    formula: str
    source: str
    null: str = "never null"


_NO_STEP = "no step was measured"
_NO_COUNT = "a rank's step has no count; the reason names it"
_NO_FLOPS = "the shape or the tokens are not known"
_NO_UNTIL = "the scenario has no `measure: until`, or training did not end well"
_UNCOMPILED = "nothing was compiled"
_UNSEEN = "no model was seen to train"
_NOT_ALL = "not all ranks told"
_CPU = "on CPU, or no rank told"

FIGURES: dict[str, Figure] = {
    "ranks": Figure("ranks", JOB, "ranks that left a journal", "rank folders"),
    "device": Figure("text", JOB, "cuda or cpu", "`model`, rank 0", "no model was seen to train, or another device"),
    "steps_seen": Figure("steps", JOB, "steps of all segments, rank 0", "`step`"),
    "first_cut": Figure(
        "steps", SEGMENT, "steps left out at the start: MSER on winsorised times, at least 3, at most half", "`step`"
    ),
    "steps_measured": Figure("steps", MEASURED, "their number", "`step`"),
    "steps_left_out": Figure(
        "steps", SEGMENT, "steps after the cut that are left out for what they did besides", "`step`", _NO_STEP
    ),
    "left_out_for": Figure(
        "list",
        SEGMENT,
        "what a step is left out for: log, save, eval; fewer where too few steps would remain",
        "`step`",
    ),
    "steady_state": Figure(
        "text",
        MEASURED,
        "steady, drifting, bimodal, unsettled, too_few_steps; see [below](#steady-state)",
        "`step`, slowest rank",
        _NO_STEP,
    ),
    "window_s": Figure(
        "s",
        MEASURED,
        "sum of the step times, the slowest rank's",
        "`step`",
        "none was measured, or they took no time",
    ),
    "step_time_median_s": Figure("s", MEASURED, "median of the slowest rank's step times", "`step`", _NO_STEP),
    "step_time_median_low_s": Figure(
        "s", MEASURED, "lower bound of the median's 95 % bootstrap interval", "`step`, slowest rank", _NO_STEP
    ),
    "step_time_median_high_s": Figure(
        "s", MEASURED, "upper bound of the median's 95 % bootstrap interval", "`step`, slowest rank", _NO_STEP
    ),
    "step_time_mad_s": Figure(
        "s", MEASURED, "median absolute deviation from the median, not scaled", "`step`, slowest rank", _NO_STEP
    ),
    "step_time_mean_s": Figure("s", MEASURED, "arithmetic mean", "`step`, slowest rank", _NO_STEP),
    "step_time_stdev_s": Figure(
        "s", MEASURED, "sample standard deviation", "`step`, slowest rank", "fewer than two steps were measured"
    ),
    "step_time_min_s": Figure("s", MEASURED, "shortest step", "`step`, slowest rank", _NO_STEP),
    "step_time_p5_s": Figure("s", MEASURED, "5th percentile, interpolated", "`step`, slowest rank", _NO_STEP),
    "step_time_p95_s": Figure("s", MEASURED, "95th percentile, interpolated", "`step`, slowest rank", _NO_STEP),
    "step_time_max_s": Figure("s", MEASURED, "longest step", "`step`, slowest rank", _NO_STEP),
    "stragglers": Figure("steps", MEASURED, "steps longer than the bound", "`step`, slowest rank", _NO_STEP),
    "straggler_bound_s": Figure(
        "s",
        MEASURED,
        "median + 7.4 median absolute deviations (5 sigma), at least median + 10 %",
        "`step`, slowest rank",
        _NO_STEP,
    ),
    "slowest_rank": Figure("rank", MEASURED, "the one with the longest window", "`step`", _NO_STEP),
    "rank_step_time_median_s": Figure(
        "s by rank", MEASURED, "median of each rank's step times; empty where no step was measured", "`step`"
    ),
    "stopped_by": Figure(
        "text",
        SEGMENT,
        "what ended it: interval (the median was known well enough), max_time or max_steps of `measure: until`",
        "`stop`, rank 0",
        _NO_UNTIL,
    ),
    "stop_interval": Figure(
        "share",
        SEGMENT,
        "width of the median step time's interval over the median when training ended, rank 0's own steps",
        "`stop`, rank 0",
        f"{_NO_UNTIL}; or too few steps",
    ),
    "data_wait_s": Figure(
        "s",
        MEASURED,
        "mean time of a step in which the loop waited for its batches, host clock; see [below](#parts-of-a-step)",
        "`step`, slowest rank",
        "no step was measured, or no batch was seen to be fetched",
    ),
    "forward_backward_s": Figure(
        "s",
        MEASURED,
        "mean time from the first micro-batch's forward to the end of the last one's backward",
        "`step`, slowest rank",
        "no step was measured, or the program has no Trainer",
    ),
    "optimizer_s": Figure(
        "s",
        MEASURED,
        "mean time from there to the step's end: clipping, the optimizer's step, the scheduler",
        "`step`, slowest rank",
        "as before, or the optimizer steps within the backward",
    ),
    "step_rest_s": Figure(
        "s",
        MEASURED,
        "what is left of the mean step",
        "`step`, slowest rank",
        "a part is not known, or the wait for data passed while the device was at work",
    ),
    "step_shares": Figure(
        "share by part",
        MEASURED,
        "data_wait, forward_backward, optimizer, step_rest over the mean step",
        "`step`, slowest rank",
    ),
    "rank_data_wait_s": Figure("s by rank", MEASURED, "`data_wait_s` of each rank that tells it", "`step`"),
    "log_save_eval_s": Figure(
        "s",
        SEGMENT,
        "sum of the time that logging, saving, evaluating and the looks of `measure: until` took, host clock",
        "`step`, slowest rank",
        _NO_STEP,
    ),
    "data_ranks": Figure(
        "ranks",
        SEGMENT,
        "ranks that see data of their own; the others of a tensor- or context-parallel group do not count again",
        "`segment`",
        "the program does not tell; then every rank counts",
    ),
    "samples_per_s": Figure(
        "samples/s", MEASURED, "rows of all data ranks / `window_s`; a packed row is one", "`tokens`", _NO_COUNT
    ),
    "padded_tokens_per_s": Figure(
        "tokens/s", MEASURED, "slots of all data ranks / `window_s`, padding included", "`tokens`", _NO_COUNT
    ),
    "non_pad_tokens_per_s": Figure(
        "tokens/s", MEASURED, "tokens of all data ranks that are no padding / `window_s`", "`tokens`", _NO_COUNT
    ),
    "trainable_tokens_per_s": Figure(
        "tokens/s", MEASURED, "labels of all data ranks that count in the loss / `window_s`", "`tokens`", _NO_COUNT
    ),
    "samples_per_s_per_device": Figure(
        "samples/s", MEASURED, "`samples_per_s` / ranks; a device is a GPU, or a process on CPU", "`tokens`", _NO_COUNT
    ),
    "padded_tokens_per_s_per_device": Figure(
        "tokens/s", MEASURED, "`padded_tokens_per_s` / ranks", "`tokens`", _NO_COUNT
    ),
    "non_pad_tokens_per_s_per_device": Figure(
        "tokens/s", MEASURED, "`non_pad_tokens_per_s` / ranks: **the headline**", "`tokens`", _NO_COUNT
    ),
    "trainable_tokens_per_s_per_device": Figure(
        "tokens/s", MEASURED, "`trainable_tokens_per_s` / ranks", "`tokens`", _NO_COUNT
    ),
    "model_flops_per_step": Figure(
        "FLOP",
        MEASURED,
        "what the mathematics needs for the tokens that are no padding, all devices; mean over the steps; see "
        "[below](#flops)",
        "`shape`, `tokens`",
        _NO_FLOPS,
    ),
    "hardware_flops_per_step": Figure(
        "FLOP", MEASURED, "what is computed: padding and recomputation too", "`shape`, `tokens`", _NO_FLOPS
    ),
    "model_flops_per_s_per_device": Figure(
        "FLOP/s", MEASURED, "model FLOPs of the window / `window_s` / ranks", "`shape`, `tokens`, `step`", _NO_FLOPS
    ),
    "hardware_flops_per_s_per_device": Figure(
        "FLOP/s", MEASURED, "hardware FLOPs of the window / `window_s` / ranks", "`shape`, `tokens`, `step`", _NO_FLOPS
    ),
    "peak_flops_per_s": Figure(
        "FLOP/s",
        JOB,
        "dense peak of a device in the type that matrices are multiplied in",
        "the scenario, else [the table](#peaks) by `model`'s exact name",
        "a card or type that is not in the table, or several cards",
    ),
    "peak_source": Figure("text", JOB, "where the peak was read", "as `peak_flops_per_s`", "the peak is not known"),
    "mfu": Figure(
        "share",
        MEASURED,
        "`model_flops_per_s_per_device` / `peak_flops_per_s`",
        "as its parts",
        "a part is not known, or it or `hfu` would be over 1: the reason has both numbers",
    ),
    "hfu": Figure(
        "share",
        MEASURED,
        "`hardware_flops_per_s_per_device` / `peak_flops_per_s`",
        "as its parts",
        "a part is not known, or it would be over 1: the reason has both numbers",
    ),
    "loss_first": Figure("loss", SEGMENT, "loss of the first step, rank 0", "`step`", "not told, or no finite number"),
    "loss_last": Figure("loss", SEGMENT, "loss of the last step, rank 0", "`step`", "not told, or no finite number"),
    "grad_norm_last": Figure(
        "norm",
        SEGMENT,
        "gradient norm before clipping, last step, rank 0; see [below](#gradient-norm)",
        "`step`",
        "not computed, or not finite",
    ),
    "learning_rate_sum": Figure(
        "rate", SEGMENT, "sum over the steps: 0 means that nothing was to change", "`step`, rank 0", "not told"
    ),
    "trainable_tensors": Figure(
        "tensors",
        SEGMENT,
        "trainable tensors that a rank holds, least of the ranks",
        "`parameters`",
        _NOT_ALL,
    ),
    "changed_tensors": Figure(
        "tensors", SEGMENT, "those that training changed, least of the ranks", "`parameters`", _NOT_ALL
    ),
    "ranks_agree": Figure(
        "yes or no",
        SEGMENT,
        "whether all ranks, which began with the same trainable parameters, ended with the same",
        "`parameters`, `model`",
        "one rank, not all told, they began with different ones, or hold parts (FSDP, ZeRO-3, tensor parallel)",
    ),
    "peak_allocated_bytes": Figure("B", JOB, "peak that torch's allocator gave out, largest rank", "`memory`", _CPU),
    "peak_active_bytes": Figure(
        "B", JOB, "the same with blocks that wait for the device to be freed, largest rank", "`memory`", _CPU
    ),
    "peak_reserved_bytes": Figure("B", JOB, "peak that it holds of the device, largest rank", "`memory`", _CPU),
    "largest_memory_rank": Figure("rank", JOB, "the one with the largest allocated peak", "`memory`", _CPU),
    "alloc_retries": Figure("times", JOB, "allocations tried again with an emptied cache, all ranks", "`memory`", _CPU),
    "allocator_ooms": Figure("times", JOB, "out-of-memory errors of the allocator, all ranks", "`memory`", _CPU),
    "memory": Figure("list", JOB, "by rank and phase: the three peaks, retries, OOMs, size of the device", "`memory`"),
    "host_peak_rss_bytes": Figure(
        "B", JOB, "resident memory of all processes; a shared page counts once for each", "sampler", "never sampled"
    ),
    "host_peak_pss_bytes": Figure(
        "B",
        JOB,
        "the same with shared pages shared out; sampled more rarely",
        "sampler",
        "never sampled, or not permitted",
    ),
    "wall_s": Figure(
        "s",
        JOB,
        "making or fetching model and data + wait for the lease + the attempt's end - its start",
        "record",
        "the attempt's end is not known",
    ),
    "phases_s": Figure(
        "s by phase",
        JOB,
        "assets, lease, queue, launch, phases of rank 0, shutdown, other; they add up to `wall_s`: [below](#phases)",
        "record, `phase`",
        "never null; a phase is null where it would be negative",
    ),
    "compile_s": Figure(
        "s",
        JOB,
        "wall time that torch.compile took, of the rank where it took longest; in the phases `first_step` and, when "
        "code is compiled again, `steady`",
        "`compile`",
        _UNCOMPILED,
    ),
    "compilations": Figure("times", JOB, "pieces of code compiled, each time, that rank", "`compile`", _UNCOMPILED),
    "recompiles": Figure(
        "times", JOB, "those of code compiled before, for other shapes, say, that rank", "`compile`", _UNCOMPILED
    ),
    "graph_breaks": Figure(
        "places", JOB, "where a function could not be compiled as a whole, that rank", "`compile`", _UNCOMPILED
    ),
    "compile_cache": Figure(
        "text",
        JOB,
        "cold (all graphs were compiled), warm (all were found in a cache on disk), mixed; that rank",
        "`compile`",
        "nothing was compiled, or no cache was asked",
    ),
    "parameters": Figure("parameters", JOB, "all, the frozen ones included", "`model`, rank 0", _UNSEEN),
    "trainable_parameters": Figure("parameters", JOB, "those that train", "`model`, rank 0", _UNSEEN),
    "built": Figure("table", JOB, "the model as it was really built", "`model`, `shape`, rank 0", _UNSEEN),
    "tokens": Figure(
        "tokens, samples",
        SEGMENT,
        "padded, non_pad, trainable, samples: sums over all steps and data ranks",
        "`tokens`",
        "never null; a count is null where a step has none",
    ),
    "segments": Figure("list", JOB, "each stretch of training: steps, batch asked and ran, accumulation", "`segment`"),
    "reported": Figure(
        "list", JOB, "figures that the program logged of itself, ours beside them, the ratio, why they differ", "`log`"
    ),
    "flags": Figure("text by name", JOB, "what a reader of the figures must know; see [below](#flags)", "all"),
    "series": Figure("list", JOB, "journals with the raw steps, relative to the attempt's folder", "rank folders"),
    "reasons": Figure("text by figure", JOB, "why a figure is null", "all"),
}


def table() -> str:
    """The table as Markdown."""
    rows = ["| figure | unit | scope | what it is | source | null means |", "|---|---|---|---|---|---|"]
    for name, figure in FIGURES.items():
        cells = (f"`{name}`", figure.unit, figure.scope, figure.formula, figure.source, figure.null)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"
