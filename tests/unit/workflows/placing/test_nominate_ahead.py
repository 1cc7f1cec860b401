"""On large clusters, pods that queue have a node before kube-scheduler asks for them; nothing relies on it."""

import asyncio
from copy import deepcopy
from typing import Any

import pytest

from builders import a_card
from fakes.api_server import ApiServer, Operation, hold_request, refuse
from fakes.counters import by_label
from fakes.objects import GPU, PERCENTAGE, a_pod_object, with_conditions
from fakes.operator_parts import HOLD_TTL_S, OperatorParts
from fakes.virtual_time import settle
from gpuledger.formats.scheduler import FilterArguments
from gpuledger.ledger.seats import Strength
from gpuledger.model.errors import Denied
from gpuledger.workflows.placing import nominate_ahead
from gpuledger.workflows.placing.nominate_ahead import FIRST_PAUSE_S
from gpuledger.workflows.placing.place_pod import FilterResult

Json = dict[str, Any]

NODES = ("node-a", "node-b", "node-c")
CARDS_PER_NODE = 2
WHOLE, QUARTER = {GPU: "1"}, {GPU: "1", PERCENTAGE: "25"}
TRIED = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}


class Queue:
    """Pods that come, and kube-scheduler, which asks for them one by one."""

    def __init__(self, api: ApiServer, nodes_offered: int = 1, least_nodes: int = len(NODES)) -> None:
        self.api = api
        for name in NODES:
            for index in range(CARDS_PER_NODE):
                api.put_card(a_card(index, name))
        self.parts = OperatorParts(api, nodes_offered=nodes_offered, nominate_ahead_nodes=least_nodes)
        self.parts.read_cards()

    def come(self, *names: str, limits: Json = WHOLE, priority: int = 0, **spec: object) -> None:
        for name in names:
            pod = a_pod_object(name, limits, priority=priority)
            self.api.put_pod({**pod, "spec": {**pod["spec"], **spec}})
        self.parts.watch()

    def show(self, name: str, condition: Json) -> None:
        self.api.put_pod(with_conditions(self.api.pods["default", name], [condition]))
        self.parts.watch()

    async def ask(self, name: str, *node_names: str, seen: Json | None = None) -> FilterResult:
        """Ask as kube-scheduler does, for the node of a nomination that it has seen, or for all."""
        pod = seen or self.api.pods["default", name]
        nominated = pod["status"].get("nominatedNodeName")
        names = list(node_names) or ([nominated] if nominated else list(NODES))
        answer = await self.parts.placer.answer(FilterArguments(deepcopy(pod), names))
        await settle()
        self.parts.watch()
        return answer

    async def bound(self, name: str) -> str:
        """Have a pod placed, on its node if it is nominated, else on any; return which."""
        [node_name] = (await self.ask(name)).node_names or (await self.ask(name, *NODES)).node_names
        await self.parts.bind(name, node_name)
        await self.parts.idle()
        return self.api.node_of(name)

    def nominated(self) -> dict[str, str]:
        nodes = {name: pod["status"].get("nominatedNodeName") for (_, name), pod in self.api.pods.items()}
        return {name: node for name, node in nodes.items() if node}

    def outcomes(self) -> dict[str, int]:
        return by_label(self.parts.counts.nominated_ahead)

    def is_early(self, name: str) -> bool:
        hold = self.parts.ledger.seats.of(f"uid-{name}")
        return hold is not None and hold.strength is Strength.OFFER


def held_nomination(api: ApiServer) -> asyncio.Event:
    """Let the next nomination wait before it is carried out, until that is set."""
    gate = asyncio.Event()
    api.queue(Operation.CHANGE_STATUS, hold_request(gate))
    return gate


@pytest.fixture
async def queue(api: ApiServer) -> Queue:
    return Queue(api)


async def test_pods_that_queue_are_nominated_but_for_the_one_that_is_asked_for_at_once(
    queue: Queue, api: ApiServer
) -> None:
    queue.come("asked", "next", "third", "fourth")
    await queue.ask("asked")
    assert queue.nominated() == {"third": "node-a", "fourth": "node-b"}
    assert len(api.called(Operation.CHANGE_STATUS)) == 2
    assert [await queue.bound(name) for name in ("next", "third", "fourth")] == ["node-b", "node-a", "node-b"]
    assert queue.outcomes() == {"followed": 2}
    assert len(api.called(Operation.CHANGE_STATUS)) == 2, "one write for each"
    assert api.called(Operation.READ_POD) == []


async def test_a_pod_that_comes_alone_is_not_nominated(queue: Queue) -> None:
    for name in "abc":
        queue.come(name)
        await queue.bound(name)
    assert queue.outcomes() == {}


@pytest.mark.parametrize(("nodes_offered", "least_nodes"), [(1, 0), (1, len(NODES) + 1), (2, len(NODES))])
async def test_where_it_does_not_pay_or_kube_scheduler_chooses_nobody_is_nominated(
    api: ApiServer, nodes_offered: int, least_nodes: int
) -> None:
    queue = Queue(api, nodes_offered, least_nodes)
    queue.come(*"abcd")
    await queue.ask("a")
    assert api.called(Operation.CHANGE_STATUS) == []
    assert queue.parts.workflows.ahead.known_pending() == set()


async def test_nodes_that_few_pods_may_go_to_are_looked_at_quickly_enough(queue: Queue) -> None:
    queue.come(*"abcd")
    await queue.ask("a", "node-a", "node-b")
    assert queue.nominated() == {}


async def test_a_pod_with_other_demands_waits_until_kube_scheduler_has_said_where_those_may_go(queue: Queue) -> None:
    queue.come("asked", "next")
    queue.come("here", nodeSelector={"zone": "a"})
    queue.come("there", "and-there", "last", nodeSelector={"zone": "b"})
    await queue.ask("asked")
    assert queue.nominated() == {}
    queue.come("late", "later", nodeSelector={"zone": "b"})
    await queue.ask("there")
    assert queue.nominated().keys() == {"late", "later"}


@pytest.mark.parametrize(
    "spec",
    [
        {
            "affinity": {
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}
            }
        },
        {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}},
        {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]},
        {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]},
        {"schedulingGates": [{"name": "later"}]},
        {"nodeSelector": {"zone": "a" * 9_000}},
    ],
)
async def test_a_pod_whose_nodes_depend_on_more_than_the_node_is_not_nominated(queue: Queue, spec: Json) -> None:
    queue.come("asked", "next")
    queue.come("third", **spec)
    await queue.ask("asked")
    assert queue.nominated() == {}
    assert queue.parts.workflows.ahead.known_pending() == {"uid-next"}


async def test_a_gang_is_placed_as_a_whole(queue: Queue, api: ApiServer) -> None:
    queue.come("asked", "next")
    for name in ("first", "second"):
        pod = a_pod_object(name, WHOLE)
        pod["metadata"]["labels"] = {"gpuledger.dev/gang": "train", "gpuledger.dev/gang-minimum": "2"}
        api.put_pod(pod)
    queue.parts.watch()
    await queue.ask("asked")
    assert queue.nominated() == {}


async def test_where_a_namespace_has_a_quota_nobody_is_counted_who_was_not_asked_for(
    queue: Queue, api: ApiServer
) -> None:
    hard = {"limits.nvidia.com/gpu": "3"}
    api.put_quota({"metadata": {"name": "gpus", "namespace": "default", "uid": "uid-gpus"}, "spec": {"hard": hard}})
    queue.come("asked", "next", "third")
    await queue.ask("asked")
    assert queue.nominated() == {}


async def test_those_of_higher_priority_come_first_then_the_older(queue: Queue) -> None:
    queue.come("old")
    queue.come("high", "highest", priority=5)
    queue.come("asked", priority=9)
    await queue.ask("asked")
    assert list(queue.nominated()) == ["old", "highest"]
    assert queue.parts.ledger.seats.of("uid-high") is None, "it is asked for at this moment"
    assert queue.nominated() == {"highest": "node-a", "old": "node-b"}


async def test_only_so_many_are_ahead_and_each_that_was_asked_for_makes_room_for_another(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nominate_ahead, "MOST_AHEAD", 3)
    names = "abcdefgh"
    queue.come("asked", "next", *names, limits=QUARTER)
    await queue.ask("asked")
    assert [*queue.nominated()] == ["a", "b"]
    await queue.ask("next")
    assert [*queue.nominated()] == ["a", "b", "c"]
    await queue.ask("a")
    assert [*queue.nominated()] == ["a", "b", "c", "d"]


async def test_cards_of_a_pod_that_was_not_asked_for_go_to_one_that_is(queue: Queue) -> None:
    queue.come("asked", "next", "third", "fourth", "fifth", "sixth")
    await queue.ask("asked")
    assert queue.nominated().keys() == {"third", "fourth", "fifth", "sixth"}
    queue.come("two", limits={GPU: "2"})
    [node_name] = (await queue.ask("two")).node_names
    assert sum(map(queue.is_early, ("third", "fourth", "fifth", "sixth"))) == 2, "only what is in the way is taken"
    nodes = [await queue.bound(name) for name in ("next", "third", "fourth")]
    assert node_name not in nodes
    assert queue.parts.waiting.waiting() == set()
    assert (await queue.ask("fifth")).node_names == []
    assert queue.parts.waiting.waiting() == set(), "kube-scheduler asks again, about all nodes"
    assert (await queue.ask("fifth", *NODES)).node_names == [], "the cards are all given out"
    assert queue.parts.waiting.waiting() == {"uid-fifth"}


async def test_a_nominated_pod_that_finds_its_node_full_takes_nothing_from_others_before_all_nodes_are_named(
    queue: Queue,
) -> None:
    queue.come("asked", "next", "third", "fourth")
    await queue.ask("asked")
    assert queue.nominated() == {"third": "node-a", "fourth": "node-b"}
    queue.parts.ledger.seats.give_up("uid-third")
    queue.come("other")
    assert (await queue.ask("other", "node-a")).node_names == ["node-a"]
    assert (await queue.ask("third")).node_names == []
    assert queue.is_early("fourth")
    assert await queue.bound("third") == "node-b"


async def test_what_is_held_ends_and_the_nomination_is_followed_all_the_same(queue: Queue) -> None:
    queue.come("asked", "next", "third")
    await queue.ask("asked")
    assert queue.is_early("third")
    await asyncio.sleep(HOLD_TTL_S)
    queue.parts.placer.expire_holds()
    assert not queue.is_early("third")
    assert await queue.bound("third") == "node-a"


async def test_a_nomination_that_has_outlived_its_hold_is_known_when_its_node_is_full(queue: Queue) -> None:
    """Or others would have to leave for a pod for which there is room elsewhere."""
    queue.come("asked", "next", "third")
    await queue.ask("asked")
    await asyncio.sleep(HOLD_TTL_S)
    queue.come("fourth", "fifth", limits=QUARTER)
    await queue.ask("next", "node-b")
    queue.come("both", limits={GPU: "2"})
    assert (await queue.ask("both", "node-a")).node_names == ["node-a"]
    assert (await queue.ask("third")).node_names == []
    assert queue.parts.waiting.waiting() == set()
    assert queue.outcomes() == {"followed": 1}
    assert await queue.bound("third") == "node-b"


async def test_kube_scheduler_that_refuses_the_node_ends_it_for_a_while(queue: Queue) -> None:
    """It knows more than was looked at here: ports, volumes, CPU that another pod has got meanwhile."""
    queue.come("asked", "next", "third", "fourth")
    await queue.ask("asked")
    queue.come("fifth", "sixth", "seventh", limits=QUARTER)
    await queue.ask("third", *NODES)
    assert queue.outcomes() == {"refused": 1}
    assert queue.nominated().keys() == {"third", "fourth"}
    await asyncio.sleep(FIRST_PAUSE_S)
    await queue.ask("fifth")
    assert "seventh" in queue.nominated()


async def test_a_pod_that_fits_nowhere_by_kube_schedulers_own_rules_keeps_no_cards(queue: Queue) -> None:
    queue.come("asked", "next", "third")
    await queue.ask("asked")
    queue.show("third", TRIED)
    assert not queue.is_early("third")
    assert queue.outcomes() == {"refused": 1}
    queue.show("next", TRIED)
    queue.come("fourth", "fifth")
    await asyncio.sleep(FIRST_PAUSE_S)
    await queue.ask("asked")
    assert queue.nominated().keys() == {"third", "fifth"}, "only the next one is left out"


async def test_a_binding_waits_for_a_nomination_on_its_way_and_more_are_left_out_then(
    queue: Queue, api: ApiServer
) -> None:
    gate = held_nomination(api)
    queue.come("asked", "next", "third")
    await queue.ask("asked")
    await queue.bound("next")
    bound = asyncio.create_task(queue.bound("third"))
    await settle()
    assert queue.outcomes() == {"late": 1}
    gate.set()
    assert await bound == "node-a"
    assert len(api.called(Operation.BIND)) == 2, "none was refused"
    assert api.called(Operation.READ_POD) == []
    queue.come("fourth", "fifth", "sixth", "seventh", "eighth", limits={GPU: "1", PERCENTAGE: "1"})
    await queue.ask("fourth")
    assert queue.nominated().keys() == {"third", "eighth"}, "three are left out instead of one"


async def test_a_binding_does_not_wait_for_ever_and_the_nomination_is_not_written_over_it(
    queue: Queue, api: ApiServer
) -> None:
    gate = held_nomination(api)
    queue.come("asked", "next", "third")
    await queue.ask("asked")
    assert await queue.bound("third") == "node-a"
    gate.set()
    await settle()
    assert queue.nominated() == {}


async def test_a_pod_that_is_asked_for_is_not_nominated_any_more(queue: Queue, api: ApiServer) -> None:
    queue.parts.workflows.ahead._at_once = asyncio.Semaphore(1)  # of which the first write takes long
    gate = held_nomination(api)
    queue.come("asked", "next", "third", "fourth", "fifth")
    await queue.ask("asked")
    await queue.ask("fourth")
    gate.set()
    await settle()
    assert queue.nominated().keys() == {"third", "fifth"}
    assert len(api.called(Operation.CHANGE_STATUS)) == 2


async def test_a_nomination_that_can_not_be_written_holds_nothing(queue: Queue, api: ApiServer) -> None:
    api.queue(Operation.CHANGE_STATUS, refuse(Denied("not here", 403)))
    queue.come("asked", "next", "third")
    await queue.ask("asked")
    assert not queue.is_early("third")
    assert queue.outcomes() == {"late": 1}


async def test_a_pod_that_goes_before_it_was_asked_for_leaves_nothing(queue: Queue, api: ApiServer) -> None:
    queue.come("asked", "next", "third")
    await queue.ask("asked")
    api.delete_pod("next")
    api.delete_pod("third")
    await queue.parts.idle()
    assert queue.parts.workflows.ahead.known_pending() == set()
    assert queue.parts.shares_left("uid-third") == []
