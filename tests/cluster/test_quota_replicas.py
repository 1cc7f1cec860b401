"""A quota and two replicas: whoever is active keeps to it, also when the other one dies in the middle of its work."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest

from chaos.history import History
from cluster.cluster import CORES, COUNT, DEADLINE_S, MEMORY, pod
from cluster.gangs import bound
from cluster.test_quotas import GPUMEM, QUOTAS, Most, is_stable, set_quota
from cluster.test_replicas import active_and_passive, require_host_names, stop, two_installations
from control_plane import ControlPlane
from effort import seeds_for, times
from gpuledger.formats.quantity import whole_number

ALLOWED_MIB = 60_000
CHANGES = times(2, 6)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", seeds_for("quotas and replicas", 1))
def test_no_change_of_the_active_replica_lets_a_namespace_have_more(seed: int, say: Callable[[str], None]) -> None:
    require_host_names()
    dice, number, most, asked = random.Random(seed), 0, Most(), dict[str, int]()  # noqa: S311 - no secret
    own = ControlPlane.run(json_storage=True)  # what the namespace has is followed in etcd
    with two_installations(own, replicated=True) as replicas, History(replicas.plane.etcd_url) as history:
        history.listeners = (most.take,)
        replicas.add_nodes(2, gpus=4)
        active, passive = active_and_passive(replicas)
        for installation in (passive, active):
            replicas.installation = installation
            set_quota(replicas, GPUMEM, ALLOWED_MIB)

        def more() -> None:
            nonlocal number
            for _ in range(dice.randint(4, 8)):
                number += 1
                cards, memory = dice.choice(((1, 4_000), (1, 9_000), (2, 7_500), (1, 20_000)))
                asked[f"p{number}"] = cards * memory
                replicas.create(pod(f"p{number}", {COUNT: cards, MEMORY: memory, CORES: 1}))

        for _ in range(CHANGES):
            more()
            replicas.wait(lambda: bool(bound(replicas)), "work has begun")
            active, passive = active_and_passive(replicas)
            stop(active)
            replicas.installation = passive
            more()
            stable = partial(is_stable, replicas, asked, ALLOWED_MIB)
            replicas.wait(stable, "the other replica has placed all that may start", timeout_s=2 * DEADLINE_S)
            assert most.mib <= ALLOWED_MIB
            replicas.check_consistent()
            active.start_operator()
            active.start_scheduler()
            running = sorted(bound(replicas))
            for name in dice.sample(running, dice.randint(1, len(running))):
                replicas.delete(name)
                del asked[name]
            replicas.wait(lambda: all(name in asked for name in bound(replicas)), "those are gone")
        replicas.wait(partial(is_stable, replicas, asked, ALLOWED_MIB), "all that may start have", 2 * DEADLINE_S)

        def shown() -> int:
            status = replicas.request("GET", f"{QUOTAS}/gpus").get("status") or {}
            return whole_number((status.get("used") or {}).get(GPUMEM, "0"))

        replicas.wait(lambda: shown() == most.now, "the status says so")
        say(f"{CHANGES} changes, {number} pods; at most {most.mib} of {ALLOWED_MIB} MiB")
        assert history.failure is None
    assert most.mib <= ALLOWED_MIB
