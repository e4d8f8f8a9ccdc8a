"""Seconds and bytes, from what people write and to what people read: the only conversions of units."""

import math
import re

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_BYTES: dict[str, int] = {"": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("KMGTP", start=1)
    for suffix, base in (("iB", 1024), ("B", 1000))
}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_UNITS = {unit.lower(): unit for unit in _BYTES} | {"b": ""}


def parse_seconds(value: str | int | float) -> float:
    """Seconds of a number, or of text such as `90`, `90s`, `1.5h`, `1h30m`, `2d`, `500ms`.

    Raises ValueError, whose text says what to write instead."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"{value!r:.60} is no time; write seconds (5400) or a time such as 90m or 1h30m")
    seconds = _seconds_of_text(value.strip()) if isinstance(value, str) else float(value)
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{value!r:.60} is no time that can pass; write seconds (5400) or a time such as 90m or 1h30m")
    return seconds


def _seconds_of_text(text: str) -> float:
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    parts = list(_DURATION.finditer(text))
    units = [part[2] for part in parts]
    whole = bool(parts) and not _DURATION.sub("", text).strip()
    # Largest unit first and each once: `30m1h` or `5m5m` is more likely a slip than a wish.
    if not whole or units != sorted(set(units), key=lambda unit: -_SECONDS[unit]):
        raise ValueError(f"{text!r:.60} is no time; write seconds (5400) or a time such as 90m or 1h30m")
    return sum(float(part[1]) * _SECONDS[part[2]] for part in parts)


def format_seconds(seconds: float) -> str:
    """`0.25 s`, `12.3 s`, `1m30s`, `1h30m`, `2d3h`: two units at most, to be read and not parsed back to the digit."""
    if seconds < 0:
        return "-" + format_seconds(-seconds)
    if seconds < 10:
        return f"{seconds:.2f} s"
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    if round(seconds) < 3600:
        return _two_units(round(seconds), 60, "m", "s")
    if round(seconds / 60) < 1440:
        return _two_units(round(seconds / 60), 60, "h", "m")
    return _two_units(round(seconds / 3600), 24, "d", "h")


def _two_units(count: int, per: int, large: str, small: str) -> str:
    whole, rest = divmod(count, per)
    return f"{whole}{large}{rest}{small}" if rest else f"{whole}{large}"


def parse_bytes(value: str | int) -> int:
    """Bytes of a whole number, or of text such as `40GiB`, `2.15 GiB`, `80GB` (1 GB = 10^9), `1024`.

    Raises ValueError, whose text says what to write instead."""
    remedy = "write bytes, or a size with a unit such as 40GiB, 80GB or 512MiB"
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ValueError(f"{value!r:.60} is no size; {remedy}")
    if isinstance(value, int):
        if value < 0:
            raise ValueError(f"{value!r:.60} is no size; {remedy}")
        return value
    match = _SIZE.fullmatch(value.strip())
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        hint = "; `G` alone may mean GB or GiB" if match and match[2].upper() in {*"KMGTP"} else ""
        raise ValueError(f"{value!r:.60} is no size{hint}; {remedy}")
    return round(float(match[1]) * _BYTES[unit])


def format_bytes(count: int | float, digits: int = 2) -> str:
    """`512 B`, `2.15 GiB`: binary units, as memory is built and as torch prints it."""
    if abs(count) < 1024:
        return f"{round(count)} B"
    value = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        value /= 1024
        if abs(round(value, digits)) < 1024:
            return f"{value:.{digits}f} {unit}"
    return f"{value / 1024:.{digits}f} PiB"
