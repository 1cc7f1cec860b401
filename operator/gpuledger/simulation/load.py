"""How a load is written: the GPUs that are asked for, as a multiple of the cluster's."""

DIGITS = 6
"""That are shown, and that count: loads that differ in later ones only are the same."""


def as_shown(load: float) -> float:
    """Return the load that is meant."""
    return float(f"{load:.{DIGITS}g}")


def percent(load: float | str) -> str:
    """Return a load as people read it; different loads are different texts."""
    return f"{100 * float(load):.{DIGITS}g}%"
