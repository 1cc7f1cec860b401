"""What Prometheus' counters have counted."""

from prometheus_client import Counter


def count(counter: Counter) -> int:
    """Return how often something has happened, whatever its label."""
    return sum(by_label(counter).values())


def by_label(counter: Counter) -> dict[str, int]:
    """Return the value of the label, empty if there is none -> how often it has happened; without what never has."""
    return {
        "".join(sample.labels.values()): int(sample.value)
        for family in counter.collect()
        for sample in family.samples
        if sample.name.endswith("_total") and sample.value
    }
