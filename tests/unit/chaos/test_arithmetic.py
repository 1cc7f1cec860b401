"""The second opinion on what a pod takes."""

import pytest

from chaos.arithmetic import asks_of, peaks
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


@pytest.mark.parametrize("shape", SPECS)
def test_what_the_api_server_makes_of_an_amount_is_understood(shape: str) -> None:
    pod = {"spec": SPECS[shape]()}
    plain = asks_of(pod)
    for each in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
        limits = each["resources"]["limits"]
        limits |= {name: f"{amount[:-3]}k" for name, amount in limits.items() if amount.endswith("000")}
    assert asks_of(pod) == plain
