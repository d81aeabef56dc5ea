"""Numbers with their units, short enough for a column; what is not a number is a dash."""

import math

NOTHING = "-"
_MINUTE, _HOUR = 60, 3600


def is_number(value: float | None) -> bool:
    """Whether there is something to show: neither None nor NaN nor infinite."""
    return value is not None and math.isfinite(value)


def duration(seconds: float | None) -> str:
    """How long something took: `0.3 ms`, `51 ms`, `2.4 s`, `3:25 min`, `1:02:03 h`."""
    if seconds is None or not is_number(seconds):
        return NOTHING
    milliseconds = max(0.0, seconds) * 1000
    if milliseconds < 9.95:
        return f"{milliseconds:.1f} ms"
    if milliseconds < 999.5:
        return f"{milliseconds:.0f} ms"
    if seconds < _MINUTE - 0.05:
        return f"{seconds:.1f} s"
    return f"{_minutes(seconds)} min" if seconds < _HOUR else f"{clock(seconds)} h"


def of_duration(done: float, whole: float, between: str = " of ") -> str:
    """A part of an expected duration, the unit said once: `61 of ~117 ms`, `1:01 of ~3:25 min`.

    What takes longer than expected says how many times as long: `187 ms 1.4x`.
    """
    if not is_number(done) or not is_number(whole):
        return duration(done)
    if done > whole:
        return f"{duration(done)} {count(done / whole, 1)}x" if whole > 0 else duration(done)
    whole_text = duration(whole)
    number, _, unit = whole_text.partition(" ")
    match unit:
        case "ms" | "s":
            decimals = 1 if "." in number else 0
            part = f"{max(0.0, done) * (1000 if unit == 'ms' else 1):.{decimals}f}"
        case "min":
            part = _minutes(max(0.0, done))
        case _:
            part = clock(done)
    return f"{part}{between}~{whole_text}"


def clock(seconds: float | None) -> str:
    """Hours, minutes and seconds: `0:00:44`; days too where there are some: `2d 03:00:44`."""
    if seconds is None or not is_number(seconds):
        return NOTHING
    minutes, rest = divmod(int(max(0.0, min(seconds, 1e12)) + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}:{minutes:02d}:{rest:02d}"
    days, hours = divmod(hours, 24)
    return f"{days}d {hours:02d}:{minutes:02d}:{rest:02d}"


def count(value: float | None, decimals: int = 0) -> str:
    """How many: `512`, `8.5k`, `3.2M`; those below ten with ``decimals``, where they are no whole numbers."""
    if value is None or not is_number(value):
        return NOTHING
    for limit, divisor, suffix in ((999.5, 1.0, ""), (999_500.0, 1e3, "k"), (999_500_000.0, 1e6, "M")):
        if abs(value) < limit:
            if not suffix and decimals and abs(value) < 9.95:
                return f"{value:.{decimals}f}"
            return _three(value / divisor, whole=not suffix) + suffix
    return f"{value / 1e9:.3g}G"


def num_bytes(value: float | None) -> str:
    """Bytes in the unit that suits them: `512 B`, `3.4 MiB`, `12 GiB`."""
    if value is None or not is_number(value):
        return NOTHING
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 999.5:
            return f"{_three(size, whole=unit == 'B')} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"


def of_bytes(used: int, total: int) -> str:
    """A part of memory, the unit said once: `0.41 of 12 GiB`."""
    if total <= 0:
        return num_bytes(used)
    whole = num_bytes(total)
    scale = 1024.0 ** {"B": 0, "KiB": 1, "MiB": 2, "GiB": 3}.get(whole.rpartition(" ")[2], 4)
    share = used / scale
    return f"{share:.{0 if share >= 9.95 else 1 if share >= 0.995 else 2}f} of {whole}"


def number(value: float | None) -> str:
    """A metric in at most seven cells: four digits that count, very small ones with their power."""
    if value is None or not is_number(value):
        return NOTHING
    size = abs(value)
    if size == 0:
        return "0"
    if size < 0.0001 or size >= 99_999.5:
        return f"{value:.0e}"
    return f"{value:.{4 if size < 0.1 else 3 if size < 10 else 1 if size < 1000 else 0}f}"


def percent(share: float | None) -> str:
    """A share of one: `43 %`, small ones with a decimal."""
    if share is None or not is_number(share):
        return NOTHING
    if abs(share) >= 9.995:
        return f"{count(share * 100)} %"
    return f"{share * 100:.1f} %" if 0 < abs(share) < 0.0995 else f"{share * 100:.0f} %"


def _three(value: float, *, whole: bool) -> str:
    return f"{value:.0f}" if whole or abs(value) >= 9.95 else f"{value:.1f}"


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(int(seconds + 0.5), _MINUTE)
    return f"{minutes}:{rest:02d}"
