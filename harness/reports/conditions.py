"""Cases that were measured on GPUs that somebody else used, or whose clocks were held down: flagged, not discarded."""

from harness.reports.results import CaseResult

THROTTLED = 0.05  # share of the time from which on a case is marked
MARK = "*"


def told(result: CaseResult) -> str | None:
    """What a reader of the case's figures must know; None where nothing speaks against them."""
    said = []
    if result.properties.get("contended") == "true":
        pids = result.properties.get("foreign_pids")
        who = f"process {pids}" if pids else "others"
        said.append(f"contended: {who} computed on its GPUs, too")
    share = result.figure("throttled_share")
    if share is not None and share >= THROTTLED:
        said.append(f"throttled for {share:.0%} of the time")
    if not said:
        return None
    degrees, clock = result.figure("gpu_start_temperature_c"), result.figure("gpu_start_sm_clock_mhz")
    began = [f"{degrees:g} degrees C"] if degrees is not None else []
    began += [f"{clock:g} MHz"] if clock is not None else []
    return "; ".join([*said, *([f"began at {', '.join(began)}"] if began else [])])
