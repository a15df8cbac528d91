"""Numbers as people read them."""


def short_number(value: float) -> str:
    """Return three digits and a unit: 804,096 -> 804 k, 124,439,808 -> 124 M."""
    for unit in ("", " k", " M", " G", " T"):
        if abs(value) < 999.5 or unit == " T":
            break
        value /= 1000
    digits = 0 if abs(value) >= 99.95 or value == int(value) else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{digits}f}{unit}"


def duration(seconds: float) -> str:
    """Return the two largest units: 75 -> 1 min 15 s."""
    whole = round(seconds)
    for size, unit, smaller, smaller_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {unit} {rest} {smaller_unit}" if rest else f"{whole // size} {unit}"
    return f"{whole} s" if seconds >= 10 else f"{seconds:.1f} s"
