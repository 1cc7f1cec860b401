"""What a user can do with gangs: crowds, labels that others use too, numbers that change, members that never come."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import pytest

from chaos.gang_rule import GANG, MINIMUM
from cluster.cluster import COUNT, MEMORY, MERGE_PATCH, Cluster, pod
from cluster.gangs import bound, explained, gang, member, names
from effort import seeds_for, times
from gpuledger.formats.dialects.selection import USE_UUID
from hostile.catalogue import NAMESPACE, PATHS, a_gang, a_pod
from hostile.others import ASKED, BOUND_WITHIN_S, FILTERS, TIMEOUT_S, Say, check_others, create

Json = dict[str, Any]

MEMBERS = times(200, 10_000)
EDITS = times(100, 1_000)
SLOWEST_PER_S = 8
"""Pods that kube-scheduler tries, on a machine on which much else runs: it was 26 to 58 on two cores."""
ASKED_PER_S = 150
"""Questions about members: 260 to 450 on a machine that does nothing else. Whatever is bound has kube-scheduler ask for
all again whom an extender has refused, and others stand behind them in its queue."""
SMALL: dict[str, Any] = {COUNT: 1, MEMORY: 1_000}
LARGE: dict[str, Any] = {COUNT: 8, MEMORY: 30_000}
"""Of which a few find room: what a gang of them waits for is no room that others need."""
AT_ONCE_S = 5.0
"""How soon an ordinary gang has to start whatever another namespace does: it takes less than a second."""
GANGS_TO_NO_END = 40
OVERTAKING, OVERTAKEN_FOR_S = 10, 12.0
FIRST, GIVEN_UP = "gpuledger_gangs_first_total", 'gpuledger_gang_gathers_given_up_total{reason="late"}'

NO_LABEL, NO_MEMORY = "no node has its label", "no node has so much memory"
NEVER: dict[str, Callable[[Json], Json]] = {
    NO_LABEL: lambda body: {**body, "spec": {**body["spec"], "nodeSelector": {"name": "none"}}},
    NO_MEMORY: lambda body: with_memory(body, "100Ti"),
}
"""Why kube-scheduler never asks the operator about a member."""

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.parametrize("attacked", [False], indirect=True, ids=["without policies"]),
]


def with_memory(body: Json, memory: str) -> Json:
    """Return a pod that also asks for memory of a node."""
    found = deepcopy(body)
    found["spec"]["containers"][0]["resources"]["requests"] = {"memory": memory}
    return found


def set_labels(cluster: Cluster, name: str, **labels: str | None) -> None:
    """Edit the labels of a hostile pod: `gang` and `minimum`."""
    said = {{"gang": GANG, "minimum": MINIMUM}[key]: value for key, value in labels.items()}
    cluster.request("PATCH", f"{PATHS['Pod']}/{name}", {"metadata": {"labels": said}}, MERGE_PATCH)


def hostile_bound(cluster: Cluster) -> set[str]:
    found = cluster.request("GET", PATHS["Pod"])["items"]
    return {each["metadata"]["name"] for each in found if each["spec"].get("nodeName")}


def shares(cluster: Cluster, *names: str) -> list[tuple[str, str]]:
    """Return card and name of each of these pods that has a share of it."""
    held = cluster.holders().items()
    return sorted((uuid, holder["pod"]) for uuid, holders in held for holder in holders if holder["pod"] in names)


@pytest.mark.timeout(1_800)
def test_a_gang_of_thousands_delays_others_by_one_or_two_questions_for_each_member(cluster: Cluster, say: Say) -> None:
    """kube-scheduler asks for the oldest pod first, whoever's it is: so single pods would delay others, too."""
    for body in a_gang("thousands", MEMBERS, 256, lambda _: LARGE):
        assert create(cluster, body)
    before, begin_s = cluster.metric(FILTERS), time.monotonic()
    cluster.create(pod("behind-thousands", SMALL))
    cluster.wait_bound("behind-thousands", timeout_s=TIMEOUT_S + MEMBERS / SLOWEST_PER_S)
    asked, waited_s = cluster.metric(FILTERS) - before, time.monotonic() - begin_s
    say(f"behind a gang of {MEMBERS}, a pod of others was bound after {asked:.0f} questions and {waited_s:.0f} s")
    assert asked < 2 * MEMBERS
    within_s = BOUND_WITHIN_S + MEMBERS / ASKED_PER_S
    check_others(cluster, [], f"beside a gang of {MEMBERS}", say, max(ASKED, 10 * MEMBERS), within_s)


def test_one_label_in_two_namespaces_makes_two_gangs(cluster: Cluster) -> None:
    mine = gang("train", 3, **SMALL)
    cluster.create(*mine[:2])
    for body in a_gang("train", 5, 3):
        assert create(cluster, body)
    cluster.wait(lambda: len(hostile_bound(cluster)) == 5, "the gang of the other namespace is bound")
    cluster.wait_refused("train-0", "fewer than 3 members of the pod's gang have been created")
    assert bound(cluster) == set()
    cluster.create(mine[2])
    cluster.wait_bound(*names(mine))


def test_numbers_that_change_on_pods_that_run_concern_nobody_else(cluster: Cluster, say: Say) -> None:
    dice = random.Random(seeds_for("labels", 1)[0])  # noqa: S311 - no secret
    pods = a_gang("flips", 4, 4)
    for body in pods:
        assert create(cluster, body)
    cluster.wait(lambda: len(hostile_bound(cluster)) == 4, "the gang runs")
    before = shares(cluster, *names(pods))
    for _ in range(EDITS):
        name = dice.choice(names(pods))
        set_labels(cluster, name, gang=dice.choice(("flips", "other", None)), minimum=dice.choice(("1", "200", "many")))
    assert shares(cluster, *names(pods)) == before
    check_others(cluster, a_gang("flips", 6, 4)[4:], f"labels of running pods, edited {EDITS} times", say)
    for name in names(pods):
        set_labels(cluster, name, gang="flips", minimum="4")
    cluster.wait(lambda: len(hostile_bound(cluster)) == 6, "the newcomers of a gang that is complete are bound")


def starts_at_once(cluster: Cluster, beside: str, say: Say) -> None:
    """Create an ordinary gang of another namespace, and check that it starts."""
    mine = gang("mine", 4, **SMALL)
    begin_s = time.monotonic()
    cluster.create(*mine)
    cluster.wait_bound(*names(mine), timeout_s=TIMEOUT_S)
    waited_s = time.monotonic() - begin_s
    say(f"beside {beside}, a gang of others started within {waited_s:.1f} s")
    assert waited_s < AT_ONCE_S, explained(cluster, "mine")


@pytest.mark.promise("hostile objects")
@pytest.mark.parametrize("never", [NO_LABEL, pytest.param(NO_MEMORY, marks=pytest.mark.long)])
def test_members_that_never_come_keep_no_other_gang_from_starting(cluster: Cluster, never: str, say: Say) -> None:
    """They find cards, and kube-scheduler never asks for one of each gang; names of gangs are free."""
    before = cluster.metric(GIVEN_UP)
    for number in range(GANGS_TO_NO_END):
        *most, last = a_gang(f"late-{number}", 4, 4)
        for body in [*most, NEVER[never](last)]:
            assert create(cluster, body)
    cluster.wait(lambda: cluster.metric(GIVEN_UP) > before, "a gang was given up", timeout_s=TIMEOUT_S)
    if never == NO_MEMORY:  # others may have it, for all that is known, and the gang is tried alone
        late = partial(explained, cluster, "late-0", NAMESPACE)
        cluster.wait(lambda: late()["members"]["turn"] is not None, "one is tried alone", timeout_s=TIMEOUT_S)
    starts_at_once(cluster, f"{GANGS_TO_NO_END} gangs whose last members never come", say)
    assert hostile_bound(cluster) == set()
    check_others(cluster, [], "gangs whose last members never come", say)


def test_a_gang_that_its_own_namespace_overtakes_holds_back_no_other(cluster: Cluster, say: Say) -> None:
    """It would find its card if another gang of its own namespace ended, which it never does."""
    before = cluster.metric(FIRST)
    assert create(cluster, *a_gang("holder", 1, 1, lambda _: {COUNT: 1}))
    cluster.wait(lambda: hostile_bound(cluster) == {"holder-0"}, "a card is taken")
    cluster.wait(lambda: bool(shares(cluster, "holder-0")), "the ledger shows it")
    ((card, _),) = shares(cluster, "holder-0")
    (waits,) = a_gang("waits", 1, 1, lambda _: {COUNT: 1})
    waits["metadata"]["annotations"] = {USE_UUID[0]: card}
    assert create(cluster, waits)
    time.sleep(1.5)  # it is older than the others, by the API server's seconds
    for number in range(OVERTAKING):
        assert create(cluster, *a_gang(f"overtakes-{number}", 1, 1, lambda _: {COUNT: 1, MEMORY: 1}))
        if number == 0:
            time.sleep(OVERTAKEN_FOR_S)
    cluster.wait(lambda: cluster.metric(FIRST) > before, "it goes first, before the last of these or after them")
    starts_at_once(cluster, "a gang that is overtaken by its own namespace", say)
    assert "waits-0" not in hostile_bound(cluster)


def test_a_pod_that_says_it_is_of_a_gang_takes_nothing_from_one_of_that_name(cluster: Cluster) -> None:
    """Names that look like others': the namespace decides, whatever the name is."""
    cluster.create(*gang("train", 2, **SMALL))
    cluster.wait_bound("train-0", "train-1")
    for number, name in enumerate(("train", "train-0", "default.train", "default-train")):
        body = a_pod(f"pretends-{number}")
        body["metadata"]["labels"] = {GANG: name, MINIMUM: "2"}
        assert create(cluster, body)
    cluster.create(member("train-2", "train", 2, **SMALL))
    cluster.wait_bound("train-2")
    assert hostile_bound(cluster) == set()
