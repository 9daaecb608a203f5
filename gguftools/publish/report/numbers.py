"""Write numbers with their significant digits, and a dash for missing ones."""

import math

NOTHING = "–"


def significant(value: float | None, digits: int = 3) -> str:
    """Write a number with so many significant digits; very small and large ones in scientific notation."""
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    if not 1e-5 <= abs(value) < 1e6:
        mantissa, _, power = f"{value:.{digits - 1}e}".partition("e")
        return f"{mantissa.rstrip('0').rstrip('.')}e{int(power)}".replace("-", "−")
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{places}f}".replace("-", "−")


def fixed(value: float | None, places: int, signed: bool = False) -> str:
    if value is None or not math.isfinite(value):
        return significant(value)
    return f"{value:{'+' if signed else ''}.{places}f}".replace("-", "−")


def percent(fraction: float | None, places: int = 2, signed: bool = False) -> str:
    """Write a fraction as a percentage."""
    shown = fixed(None if fraction is None else 100 * fraction, places, signed)
    return shown if shown == NOTHING else f"{shown} %"


def with_error(value: float | None, error: float | None, digits: int = 3) -> str:
    """Write a value with its standard error, both to the second digit of the error."""
    if value is None or error is None or not math.isfinite(value) or not math.isfinite(error) or error <= 0:
        return significant(value, digits)
    places = max(0, 1 - math.floor(math.log10(error)))
    if places > 8:
        return significant(value, digits)
    return f"{fixed(value, places)} ± {fixed(error, places)}"


def byte_size(size: float | None) -> str:
    """Write bytes in kB, MB or GB (powers of ten)."""
    if size is None or not math.isfinite(size):
        return NOTHING
    for power, unit in ((9, "GB"), (6, "MB"), (3, "kB")):
        if size >= 10**power:
            return f"{significant(size / 10**power)} {unit}"
    return f"{size:.0f} bytes"
