"""The second opinion on what a pod takes."""

import pytest

from chaos.arithmetic import DEVICES, asks_of, peaks, told
from chaos.pods import SPECS
from cluster.cluster import COUNT, MEMORY, container


def test_containers_that_follow_each_other_do_not_add_up() -> None:
    spec = {
        "initContainers": [
            container({COUNT: 1, MEMORY: 100}, "before", restartPolicy="Always"),
            container({COUNT: 1, MEMORY: 9000}, "first"),
            container({COUNT: 1, MEMORY: 10}, "after", restartPolicy="Always"),
        ],
        "containers": [container({COUNT: 1, MEMORY: 2000}, name) for name in ("a", "b")],
    }
    given = {"before": (100, 0), "first": (9000, 50), "after": (10, 0), "a": (2000, 10), "b": (2000, 10)}
    assert peaks({"spec": spec}, given) == {"memoryMiB": 9100, "cores": 50, "number": 4}


@pytest.mark.parametrize(
    ("quantity", "cards"),
    [("3", 3), ("4k", 4000), ("1G", 10**9), ("2Ki", 2048), ("1E", 10**18), ("1e3", 1000), ("500m", 0), ("1500m", 1)],
)
def test_every_quantity_is_understood(quantity: str, cards: int) -> None:
    asks = asks_of({"spec": {"containers": [container({COUNT: quantity})]}})
    assert sum(ask.cards for ask in asks) == cards


@pytest.mark.parametrize("text", ["[" * 100_000, "{", "[]", '{"main": 1}'])
def test_an_annotation_that_cannot_be_read_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="can't be read"):
        told({"metadata": {"annotations": {DEVICES: text}}})


@pytest.mark.parametrize("shape", SPECS)
def test_what_the_api_server_makes_of_an_amount_is_understood(shape: str) -> None:
    pod = {"spec": SPECS[shape]()}
    plain = asks_of(pod)
    for each in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
        limits = each["resources"]["limits"]
        limits |= {name: f"{amount[:-3]}k" for name, amount in limits.items() if amount.endswith("000")}
    assert asks_of(pod) == plain
