"""Seconds and bytes, both ways."""

import pytest

from harness.units import format_bytes, format_seconds, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    "written, seconds",
    [
        (90, 90.0),
        (0.5, 0.5),
        ("90", 90.0),
        ("1.5", 1.5),
        ("90s", 90.0),
        ("500ms", 0.5),
        ("90m", 5400.0),
        ("1.5h", 5400.0),
        ("1h30m", 5400.0),
        ("1h 30m", 5400.0),
        (" 2d ", 172800.0),
        ("1d2h3m4s5ms", 93784.005),
    ],
    ids=repr,
)
def test_seconds_are_read(written: str | float, seconds: float) -> None:
    assert parse_seconds(written) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "written",
    [
        "",
        "h",
        "1:30",
        "30m1h",
        "5m5m",
        "1h-30m",
        "-5",
        -1,
        "5 minutes",
        "1h30",
        float("nan"),
        float("inf"),
        True,
        None,
        "9" * 400,
    ],
    ids=lambda written: repr(written)[:20],
)
def test_what_is_no_time_is_refused_with_an_example(written: object) -> None:
    with pytest.raises(ValueError, match="90m"):
        parse_seconds(written)  # type: ignore[arg-type]  # what YAML may hold


@pytest.mark.parametrize(
    "seconds, text",
    [
        (0, "0.00 s"),
        (0.25, "0.25 s"),
        (12.34, "12.3 s"),
        (59.94, "59.9 s"),
        (59.96, "1m"),
        (90, "1m30s"),
        (3599.7, "1h"),
        (5400, "1h30m"),
        (86399, "1d"),
        (97200, "1d3h"),
        (-90, "-1m30s"),
    ],
    ids=repr,
)
def test_seconds_are_written(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    "written, count",
    [
        (1024, 1024),
        ("1024", 1024),
        ("40GiB", 40 * 2**30),
        ("40 gib", 40 * 2**30),
        ("2.15 GiB", 2308544922),
        ("80GB", 80 * 10**9),
        ("512MiB", 2**29),
        ("3KiB", 3072),
        ("1TiB", 2**40),
        ("7B", 7),
    ],
    ids=repr,
)
def test_bytes_are_read(written: str | int, count: int) -> None:
    assert parse_bytes(written) == count


@pytest.mark.parametrize("written", ["", "GiB", "40G", "40 Gi", "-1", -1, "1e9", 1.5, True, None, "40GiBs"], ids=repr)
def test_what_is_no_size_is_refused_with_an_example(written: object) -> None:
    with pytest.raises(ValueError, match="40GiB"):
        parse_bytes(written)  # type: ignore[arg-type]  # what YAML may hold


@pytest.mark.parametrize(
    "count, digits, text",
    [
        (0, 2, "0 B"),
        (1023, 2, "1023 B"),
        (1024, 2, "1.00 KiB"),
        (2308544922, 2, "2.15 GiB"),
        (40 * 2**30, 1, "40.0 GiB"),
        (2**30 - 1, 2, "1.00 GiB"),
        (2**40, 0, "1 TiB"),
        (2**60, 1, "1024.0 PiB"),
        (-2048, 2, "-2.00 KiB"),
    ],
    ids=repr,
)
def test_bytes_are_written(count: int, digits: int, text: str) -> None:
    assert format_bytes(count, digits) == text
