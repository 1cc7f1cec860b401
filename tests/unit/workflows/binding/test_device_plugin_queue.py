"""Over HAMi's or Volcano's device plugin every pod gets its own cards, though the plugin guesses whose they are."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import orjson
import pytest

from builders import a_card
from fakes.api_server import ApiServer, Fault, Operation, hold_request, refuse
from fakes.counters import count
from fakes.device_plugins import HamiPlugin, PluginApi, PluginError, VolcanoPlugin, annotations
from fakes.objects import GPU, MEMORY, a_container, a_node_object, a_pod_object
from fakes.operator_parts import PLUGIN_TIMEOUT_S, OperatorParts
from fakes.virtual_time import now_s, settle, wall
from gpuledger.formats.annotations import DEVICES_ANNOTATION
from gpuledger.formats.dialects.assignments import HAMI_BIND_TIME, lock_text
from gpuledger.model.errors import BindFailed, Conflict, Denied
from gpuledger.model.node import Dialect
from gpuledger.model.share import Pod
from gpuledger.workflows.binding import device_plugin_queue
from gpuledger.workflows.leadership import Leadership

Json = dict[str, Any]
LOCK = "hami.io/mutex.lock"
CARDS = [a_card(index) for index in range(4)]
VGPU = "volcano.sh/vgpu-number"
VGPU_MEMORY = "volcano.sh/vgpu-memory"

STARTED_S = 1000.0
"""What the tests' clock shows at first."""


def passed_s() -> float:
    """Return how long the test has taken, on its own clock."""
    return now_s() - STARTED_S


class Plugged:
    """The API server as a device plugin sees it."""

    def __init__(self, api: ApiServer) -> None:
        self._api = api

    def node(self, name: str) -> Json:
        return self._api.nodes[name]

    def pod(self, namespace: str, name: str) -> Json:
        return self._api.pods[namespace, name]

    def all_pods(self) -> list[Json]:
        return [pod for _, pod in sorted(self._api.pods.items())]

    def annotate_pod(self, namespace: str, name: str, annotations: dict[str, str]) -> None:
        pod = self._api.pods[namespace, name]
        merged = {**pod["metadata"].get("annotations", {}), **annotations}
        self._api.put_pod({**pod, "metadata": {**pod["metadata"], "annotations": merged}})

    def annotate_node(self, name: str, annotations: dict[str, str | None], resource_version: str = "") -> bool:
        node = self._api.nodes[name]
        if resource_version not in ("", node["metadata"]["resourceVersion"]):
            return False
        merged = {**node["metadata"].get("annotations", {}), **annotations}
        kept = {key: value for key, value in merged.items() if value is not None}
        self._api.put_node({**node, "metadata": {**node["metadata"], "annotations": kept}})
        return True


def a_node_with(api: ApiServer, dialect: Dialect, **settings: Any) -> OperatorParts:
    """Return an operator over a node with four cards, whose device plugin is another system's."""
    for card in CARDS:
        api.put_card(card)
    api.put_node(a_node_of(dialect))
    return started(api, **settings)


def started(api: ApiServer, **settings: Any) -> OperatorParts:
    """Return an operator that has just read everything."""
    parts = OperatorParts(api, **settings)
    parts.read_cards()
    parts.watch()
    return parts


def a_node_of(dialect: Dialect) -> Json:
    """Return the node as the other system's device plugin reports it."""
    node = a_node_object("node-a")
    hami = "".join(f"{card.uuid},10,16000,100,NVIDIA-A100,0,true,{card.index},hami-core:" for card in CARDS)
    volcano = "".join(f"{card.uuid},10,16000,NVIDIA-A100,true,hami-core:" for card in CARDS)
    registers = {
        Dialect.HAMI: ("hami.io/node-nvidia-register", hami, GPU),
        Dialect.VOLCANO: ("volcano.sh/node-vgpu-register", volcano, VGPU),
    }
    annotation, register, resource = registers[dialect]
    node["metadata"]["annotations"] = {annotation: register}
    node["status"]["allocatable"] = {resource: "40"}
    return node


def a_pod(name: str, number: int = 1, dialect: Dialect = Dialect.HAMI, memory: str = "15k") -> Json:
    """Return a pod that leaves no room for another one on its cards."""
    count, memory_name = (GPU, MEMORY) if dialect is Dialect.HAMI else (VGPU, VGPU_MEMORY)
    return a_pod_object(name, {count: str(number), memory_name: memory})


async def come(parts: OperatorParts, *pods: Json) -> list[asyncio.Task[None]]:
    """Let pods be placed, and their binds begin, in this order."""
    binds = []
    for pod in pods:
        parts.api.put_pod(pod)
        name = pod["metadata"]["name"]
        assert parts.filter(name, "node-a").node_names == ["node-a"]
        binds.append(asyncio.create_task(bind(parts, name)))
        await settle()
    return binds


async def bind(parts: OperatorParts, name: str) -> None:
    """Have a pod bound as kube-scheduler does: again, when it takes longer than an answer may take."""
    while True:
        try:
            return await parts.bind(name, "node-a")
        except BindFailed as error:
            if "not bound yet" not in str(error):
                raise


def cards_of(api: ApiServer, name: str) -> list[str]:
    """Return the cards that the ledger has given a pod, in order."""
    told = orjson.loads(annotations(api.pods["default", name])[DEVICES_ANNOTATION])
    return [card["uuid"] for cards in told.values() for card in cards]


PLUGINS: list[tuple[Dialect, Callable[[PluginApi, str], HamiPlugin | VolcanoPlugin]]] = [
    (Dialect.HAMI, HamiPlugin),
    (Dialect.VOLCANO, VolcanoPlugin),
]


@pytest.mark.parametrize(("dialect", "plugin_of"), PLUGINS)
async def test_equal_pods_are_bound_one_after_the_other_and_none_is_mistaken_for_another(
    api: ApiServer, dialect: Dialect, plugin_of: Callable[[PluginApi, str], HamiPlugin | VolcanoPlugin]
) -> None:
    """Their names are in the opposite order of their coming: HAMi's plugin goes by names, if nothing else tells."""
    parts = a_node_with(api, dialect)
    plugin, names = plugin_of(Plugged(api), "node-a"), list("dcba")
    binds = await come(parts, *(a_pod(name, dialect=dialect) for name in names))
    for name in names:
        await settle()
        assert [n for n in names if api.node_of(n)] == names[: names.index(name) + 1]
        assert plugin.allocate(1) == cards_of(api, name)
        parts.watch()
    await asyncio.gather(*binds)
    assert annotations(api.nodes["node-a"]).get(LOCK) is None


async def test_pods_with_different_numbers_do_not_wait_for_each_other_at_volcanos_plugin(api: ApiServer) -> None:
    parts = a_node_with(api, Dialect.VOLCANO)
    plugin = VolcanoPlugin(Plugged(api), "node-a")
    await asyncio.gather(*await come(parts, a_pod("two", 2, Dialect.VOLCANO), a_pod("one", 1, Dialect.VOLCANO)))
    assert passed_s() < 0.1
    assert (plugin.allocate(1), plugin.allocate(2)) == (cards_of(api, "one"), cards_of(api, "two"))


async def test_hamis_plugin_serves_one_pod_at_a_time_whatever_their_numbers(api: ApiServer) -> None:
    parts = a_node_with(api, Dialect.HAMI)
    plugin = HamiPlugin(Plugged(api), "node-a")
    first, second = await come(parts, a_pod("two", 2), a_pod("one", 1))
    await first
    assert not api.node_of("one")
    assert plugin.allocate(2) == cards_of(api, "two")
    parts.watch()
    await second
    assert plugin.allocate(1) == cards_of(api, "one")


async def test_all_containers_of_a_pod_are_served_before_the_next_pod(api: ApiServer) -> None:
    """The one without a GPU between them has no card to get, and the init container comes first."""
    parts = a_node_with(api, Dialect.HAMI)
    plugin = HamiPlugin(Plugged(api), "node-a")
    both = a_pod_object("both", containers=[a_container("x"), a_container("none", {}), a_container("y")])
    both["spec"]["initContainers"] = [a_container("first", {GPU: "2", MEMORY: "1k"})]
    binds = await come(parts, both, a_pod("after"))
    await binds[0]
    told = orjson.loads(annotations(api.pods["default", "both"])[DEVICES_ANNOTATION])
    for container in ("first", "x", "y"):
        assert not api.node_of("after")
        uuids = [card["uuid"] for card in told[container]]
        assert plugin.allocate(len(uuids)) == uuids
        parts.watch()
    await binds[1]


@pytest.mark.parametrize(("dialect", "plugin_of"), PLUGINS)
async def test_a_plugin_that_never_answers_is_waited_for_no_longer_than_the_stated_time(
    api: ApiServer, dialect: Dialect, plugin_of: Callable[[PluginApi, str], HamiPlugin | VolcanoPlugin]
) -> None:
    parts = a_node_with(api, dialect)
    await asyncio.gather(*await come(parts, a_pod("a", dialect=dialect), a_pod("b", dialect=dialect)))
    assert PLUGIN_TIMEOUT_S <= passed_s() < PLUGIN_TIMEOUT_S + 5
    assert count(parts.counts.plugin_late) == 1
    if dialect is Dialect.HAMI:
        assert annotations(api.nodes["node-a"])[LOCK].endswith(",default,b")


async def test_a_pod_that_goes_before_its_plugin_finds_it_keeps_nobody_waiting(api: ApiServer) -> None:
    parts = a_node_with(api, Dialect.VOLCANO)
    first, second = await come(parts, *(a_pod(name, dialect=Dialect.VOLCANO) for name in "ab"))
    await first
    api.delete_pod("a")
    parts.watch()
    await second
    assert passed_s() < 0.1


async def test_a_pod_that_could_not_be_bound_gives_turn_and_lock_to_the_next(api: ApiServer) -> None:
    parts = a_node_with(api, Dialect.HAMI)
    api.queue(Operation.BIND, refuse(Conflict("no", 409)))
    api.put_pod(a_pod("a"))
    parts.filter("a", "node-a")
    with pytest.raises(BindFailed, match="no"):
        await parts.bind("a", "node-a")
    await settle()
    assert annotations(api.nodes["node-a"]).get(LOCK) is None
    await asyncio.gather(*await come(parts, a_pod("b")))
    assert annotations(api.nodes["node-a"])[LOCK].endswith(",default,b")


async def test_who_starts_anew_waits_for_the_pods_that_were_bound_before(api: ApiServer) -> None:
    before = a_node_with(api, Dialect.VOLCANO)
    await asyncio.gather(*await come(before, a_pod("a", dialect=Dialect.VOLCANO)))
    parts = started(api)
    (second,) = await come(parts, a_pod("b", dialect=Dialect.VOLCANO))
    assert not api.node_of("b")
    assert VolcanoPlugin(Plugged(api), "node-a").allocate(1) == cards_of(api, "a")
    parts.watch()
    await second


@pytest.mark.parametrize("text", ["1970-01-01T00:00:00Z,default,another", "nonsense", "", "1970-01-01T00:00:00Z"])
async def test_a_lock_that_nobody_will_remove_is_taken_over(api: ApiServer, text: str) -> None:
    """The pod it names is gone; or it says nothing that could be waited for, and is of the time of the first hour."""
    parts = a_node_with(api, Dialect.HAMI)
    await asyncio.sleep(PLUGIN_TIMEOUT_S + 1)
    Plugged(api).annotate_node("node-a", {LOCK: text})
    await asyncio.gather(*await come(parts, a_pod("a")))
    assert annotations(api.nodes["node-a"])[LOCK].endswith(",default,a")


async def test_a_lock_that_the_plugin_is_about_to_remove_is_not_taken_from_it(api: ApiServer) -> None:
    """It marks the pod, then removes the lock: old versions whosever it is, and the next pod would be without one."""
    parts = a_node_with(api, Dialect.HAMI)
    plugged = Plugged(api)
    first, second = await come(parts, a_pod("a"), a_pod("b"))
    await first
    plugged.annotate_pod("default", "a", {"hami.io/vgpu-devices-to-allocate": ";", "hami.io/bind-phase": "success"})
    parts.watch()
    await asyncio.sleep(device_plugin_queue.UNLOCKING_S / 2)
    assert annotations(api.nodes["node-a"])[LOCK].endswith(",default,a")
    plugged.annotate_node("node-a", {LOCK: None})
    await second
    assert annotations(api.nodes["node-a"])[LOCK].endswith(",default,b")
    assert passed_s() < device_plugin_queue.UNLOCKING_S


async def test_a_lock_that_the_plugin_forgets_is_taken_over_soon(api: ApiServer) -> None:
    parts = a_node_with(api, Dialect.HAMI)
    first, second = await come(parts, a_pod("a"), a_pod("b"))
    await first
    Plugged(api).annotate_pod("default", "a", {"hami.io/bind-phase": "success"})
    parts.watch()
    await second
    assert device_plugin_queue.UNLOCKING_S <= passed_s() < device_plugin_queue.UNLOCKING_S + 3


async def test_a_lock_in_force_is_waited_for(api: ApiServer) -> None:
    """As while HAMi's own scheduler still binds pods: the lock names one that its plugin has still to serve."""
    parts = a_node_with(api, Dialect.HAMI)
    theirs = a_pod_object("theirs", node_name="node-a", scheduler_name="hami-scheduler")
    theirs["metadata"]["annotations"] = {"hami.io/bind-phase": "allocating"}
    api.put_pod(theirs)
    Plugged(api).annotate_node("node-a", {LOCK: wall().strftime("%Y-%m-%dT%H:%M:%SZ") + ",default,theirs"})
    (waiting,) = await come(parts, a_pod("a"))
    await asyncio.sleep(2)
    assert not api.node_of("a")
    Plugged(api).annotate_node("node-a", {LOCK: None})
    await waiting
    assert passed_s() < PLUGIN_TIMEOUT_S


async def test_two_operators_never_hold_the_lock_together(api: ApiServer) -> None:
    """The lock is written on the node's version: of two that have both read it free, one is refused and waits."""
    one = a_node_with(api, Dialect.HAMI)
    other = started(api)
    for parts, name in ((one, "a"), (other, "b")):
        api.put_pod(a_pod(name, memory="4k"))
        assert parts.filter(name, "node-a").node_names == ["node-a"]
    binds = [asyncio.create_task(bind(parts, name)) for parts, name in ((one, "a"), (other, "b"))]
    await settle()
    (bound,) = [name for name in "ab" if api.node_of(name)]
    assert annotations(api.nodes["node-a"])[LOCK].endswith(f",default,{bound}")
    assert HamiPlugin(Plugged(api), "node-a").allocate(1) == cards_of(api, bound)
    await asyncio.gather(*binds)


async def test_our_own_agent_is_waited_for_by_nobody(api: ApiServer) -> None:
    for card in CARDS:
        api.put_card(card)
    parts = OperatorParts(api)
    parts.read_cards()
    await asyncio.gather(*await come(parts, *(a_pod(name) for name in "abcd")))
    assert passed_s() < 0.1
    assert api.called(Operation.READ_NODE, Operation.ANNOTATE_NODE) == []
    assert set(annotations(api.pods["default", "a"])) == {DEVICES_ANNOTATION}


async def test_without_turns_the_plugins_would_mistake_pods(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the turns are for: the fakes do guess wrong when two pods answer to one description."""
    parts = a_node_with(api, Dialect.HAMI)
    monkeypatch.setattr(device_plugin_queue, "unmatched", lambda *_: None)
    for name in "ba":
        await asyncio.gather(*await come(parts, a_pod(name)))
        Plugged(api).annotate_node("node-a", {LOCK: None})
        parts.watch()
    assert HamiPlugin(Plugged(api), "node-a").allocate(1) == cards_of(api, "a") != cards_of(api, "b")


async def test_a_bind_while_the_plugin_is_away_is_refused(api: ApiServer) -> None:
    parts = a_node_with(api, Dialect.HAMI)
    api.put_pod(a_pod("a"))
    parts.filter("a", "node-a")
    parts.ledger.set_offer("node-a", None)
    with pytest.raises(BindFailed, match="GPU node agent is not ready"):
        await parts.bind("a", "node-a")
    assert parts.shares_left("uid-a") == []


async def test_shares_of_an_earlier_attempt_do_not_keep_a_pod_on_a_node_whose_plugin_is_away(api: ApiServer) -> None:
    """An operator that died between its two writes has left them; the next one binds on what it finds, or not there."""
    parts = a_node_with(api, Dialect.HAMI)
    api.put_pod(a_pod("a"))
    api.queue(Operation.BIND, hold_request(asyncio.Event()))
    parts.filter("a", "node-a")
    asyncio.create_task(parts.bind("a", "node-a")).add_done_callback(lambda task: task.cancelled() or task.exception())
    await settle()
    successor = started(api)
    successor.ledger.set_offer("node-a", None)
    with pytest.raises(BindFailed, match="GPU node agent is not ready"):
        await successor.bind("a", "node-a")
    await successor.idle()
    assert successor.shares_left("uid-a") == []


def test_the_fake_of_hamis_plugin_finds_nobody_where_nobody_waits(api: ApiServer) -> None:
    api.put_node(a_node_object("node-a", CARDS))
    with pytest.raises(PluginError, match="no binding pod found"):
        HamiPlugin(Plugged(api), "node-a").allocate(1)


def told(pod: Json, **of: str) -> Json:
    """Return a pod with annotations that its owner has written: `hami` and `volcano` are phases, `cards` a list."""
    names = {
        "hami": "hami.io/bind-phase",
        "volcano": "volcano.sh/bind-phase",
        "cards": "volcano.sh/devices-to-allocate",
    }
    pod["metadata"]["annotations"] = {names[each]: value for each, value in of.items()}
    return pod


async def test_nobody_waits_for_a_pod_that_only_says_that_its_plugin_looks_for_it(api: ApiServer) -> None:
    parts = a_node_with(api, Dialect.HAMI)
    api.put_pod(told(a_pod_object("liar", {}, node_name="node-a"), hami="allocating"))
    parts.watch()
    await asyncio.gather(*await come(parts, a_pod("a")))
    assert passed_s() < 0.1


async def test_nobody_waits_twice_for_a_pod_whose_owner_writes_that_it_waits_again(api: ApiServer) -> None:
    parts = a_node_with(api, Dialect.VOLCANO)
    plugin = VolcanoPlugin(Plugged(api), "node-a")
    await asyncio.gather(*await come(parts, a_pod("a", dialect=Dialect.VOLCANO)))
    plugin.allocate(1)
    parts.watch()
    again = {"volcano.sh/bind-phase": "allocating", "volcano.sh/devices-to-allocate": "x:"}
    Plugged(api).annotate_pod("default", "a", again)
    parts.watch()
    await asyncio.gather(*await come(parts, a_pod("b", dialect=Dialect.VOLCANO)))
    assert passed_s() < 0.1


async def test_what_a_pod_says_of_another_systems_plugin_keeps_nobody_waiting(api: ApiServer) -> None:
    parts = a_node_with(api, Dialect.VOLCANO)
    await asyncio.gather(*await come(parts, told(a_pod("a", dialect=Dialect.VOLCANO), hami="allocating")))
    VolcanoPlugin(Plugged(api), "node-a").allocate(1)
    parts.watch()
    await asyncio.gather(*await come(parts, a_pod("b", dialect=Dialect.VOLCANO)))
    assert passed_s() < 0.1


async def test_nothing_is_kept_of_pods_and_numbers_that_are_past(api: ApiServer) -> None:
    parts = a_node_with(api, Dialect.VOLCANO)
    for number in range(1, 50):
        pod = told(a_pod(f"p{number}", dialect=Dialect.VOLCANO), volcano="allocating", cards="x:" * number)
        pod["spec"]["nodeName"] = "node-a"
        api.put_pod(pod)
    parts.watch()
    await asyncio.sleep(PLUGIN_TIMEOUT_S + 1)
    for number in range(1, 50):
        api.delete_pod(f"p{number}")
    await parts.observer.resync()  # the watch has missed it
    kept = vars(parts.turns)
    assert [name for name in ("_queues", "_keys", "_over") if kept[name]] == []
    assert not parts.workflows.context.tasks._running


async def test_a_pod_that_another_operator_has_bound_elsewhere_leaves_no_turn_open(api: ApiServer) -> None:
    """It is seen on node-b while its own bind waits for its turn on node-a."""
    parts = a_node_with(api, Dialect.HAMI)
    first, second = await come(parts, a_pod("a"), a_pod("b"))
    await first
    elsewhere = told(a_pod("b"), hami="allocating")
    elsewhere["spec"]["nodeName"] = "node-b"
    api.put_pod(elsewhere)
    parts.watch()
    HamiPlugin(Plugged(api), "node-a").allocate(1)
    parts.watch()
    with pytest.raises(BindFailed):
        await second
    await asyncio.sleep(PLUGIN_TIMEOUT_S + 1)
    kept = vars(parts.turns)
    assert [queue for queue in kept["_queues"].values() if queue.open] == []
    assert not kept["_keys"]


async def test_a_pod_that_another_operator_has_bound_here_keeps_turn_and_lock_until_it_is_found(api: ApiServer) -> None:
    one = a_node_with(api, Dialect.HAMI)
    other = started(api)
    answer = asyncio.Event()
    api.queue(Operation.BIND, Fault(before=answer))
    (first,) = await come(one, a_pod("a"))
    api.put_pod(a_pod("x"))
    other.filter("x", "node-a")  # so that the other one chooses another card for the pod
    assert other.filter("a", "node-a").node_names == ["node-a"]
    await bind(other, "a")
    answer.set()
    with pytest.raises(BindFailed):
        await first
    await settle()
    assert annotations(api.nodes["node-a"])[LOCK].endswith(",default,a")
    one.watch()
    (second,) = await come(one, a_pod("b"))
    assert not api.node_of("b")
    assert HamiPlugin(Plugged(api), "node-a").allocate(1) == cards_of(api, "a")
    one.watch()
    await second


async def test_who_comes_after_the_plugin_was_replaced_is_not_told_the_old_ones_words(api: ApiServer) -> None:
    parts = a_node_with(api, Dialect.HAMI)
    first, second = await come(parts, a_pod("a"), a_pod("b"))
    await first
    api.put_node(a_node_of(Dialect.VOLCANO))
    parts.watch()
    with pytest.raises(BindFailed, match="has changed since the pod was placed"):
        await second
    assert not api.node_of("b")
    assert parts.shares_left("uid-b") == []


async def test_an_operator_that_is_not_active_removes_no_lock(api: ApiServer) -> None:
    active = a_node_with(api, Dialect.HAMI)
    await asyncio.gather(*await come(active, a_pod("a")))
    passive = started(api)
    passive.leadership = Leadership("another")
    passive.turns._is_active = passive.leadership.is_active
    active.turns.forget_bound("uid-a", api.pods["default", "a"])  # it gives up nothing any more
    written = len(api.called(Operation.ANNOTATE_NODE))
    await asyncio.sleep(PLUGIN_TIMEOUT_S + 1)
    assert count(passive.counts.plugin_late) == 1
    assert len(api.called(Operation.ANNOTATE_NODE)) == written


async def test_a_lock_of_the_same_pod_from_long_ago_is_set_anew(api: ApiServer) -> None:
    """Else another operator would take it for one that nobody will remove."""
    parts = a_node_with(api, Dialect.HAMI)
    Plugged(api).annotate_node("node-a", {LOCK: "1970-01-01T00:00:00Z,default,a"})
    await asyncio.gather(*await come(parts, a_pod("a")))
    assert not annotations(api.nodes["node-a"])[LOCK].startswith("1970")


async def test_a_lock_from_the_future_is_waited_for_no_longer_than_the_stated_time(api: ApiServer) -> None:
    parts = a_node_with(api, Dialect.HAMI)
    api.put_pod(a_pod("theirs"))
    Plugged(api).annotate_node("node-a", {LOCK: "2999-01-01T00:00:00Z,default,theirs"})
    (waiting,) = await come(parts, a_pod("a"))
    async with asyncio.timeout(PLUGIN_TIMEOUT_S + 5):
        await waiting
    assert passed_s() >= PLUGIN_TIMEOUT_S


async def test_a_lock_that_names_no_pod_is_in_force_until_it_is_old(api: ApiServer) -> None:
    parts = a_node_with(api, Dialect.HAMI)
    Plugged(api).annotate_node("node-a", {LOCK: wall().strftime("%Y-%m-%dT%H:%M:%SZ")})
    await asyncio.gather(*await come(parts, a_pod("a")))
    assert passed_s() >= PLUGIN_TIMEOUT_S


async def test_a_lock_is_as_old_as_the_machines_clock_says_and_so_are_the_new_one_and_what_the_pod_is_told(
    api: ApiServer,
) -> None:
    parts = a_node_with(api, Dialect.HAMI)
    since = wall() - timedelta(seconds=PLUGIN_TIMEOUT_S + 1)
    Plugged(api).annotate_node("node-a", {LOCK: since.strftime("%Y-%m-%dT%H:%M:%SZ")})
    await asyncio.gather(*await come(parts, a_pod("a")))
    assert passed_s() < 1.0
    assert annotations(api.nodes["node-a"])[LOCK] == lock_text(Pod("uid-a", "default", "a"), wall())
    assert annotations(api.pods["default", "a"])[HAMI_BIND_TIME] == str(int(wall().timestamp()))


async def test_the_next_attempt_of_a_pod_keeps_its_lock(api: ApiServer) -> None:
    """What the first one gives back late must not be the lock of the second."""
    parts = a_node_with(api, Dialect.HAMI)
    api.put_pod(a_pod("a"))
    api.queue(Operation.BIND, refuse(Conflict("no", 409)))
    late = asyncio.Event()
    parts.filter("a", "node-a")
    api.queue(Operation.READ_NODE, Fault(), Fault(after=late))
    first = asyncio.create_task(parts.bind("a", "node-a"))
    await asyncio.sleep(0.01)
    second = asyncio.create_task(parts.bind("a", "node-a"))
    await asyncio.sleep(0.01)
    late.set()
    await asyncio.gather(first, second, return_exceptions=True)
    if not api.node_of("a"):
        parts.filter("a", "node-a")
        await parts.bind("a", "node-a")
    await settle()
    assert annotations(api.nodes["node-a"])[LOCK].endswith(",default,a")


async def test_who_gives_a_lock_back_does_not_try_for_ever(api: ApiServer) -> None:
    parts = a_node_with(api, Dialect.HAMI)
    Plugged(api).annotate_node("node-a", {LOCK: "2030-01-01T00:16:40Z,default,a"})
    api.queue(Operation.ANNOTATE_NODE, *(refuse(Denied("no rule for that", 403)) for _ in range(1000)))
    api.put_pod(a_pod("a"))
    parts.filter("a", "node-a")
    with pytest.raises(BindFailed):
        await bind(parts, "a")
    await asyncio.sleep(2 * PLUGIN_TIMEOUT_S)
    tried = len(api.called(Operation.ANNOTATE_NODE))
    await asyncio.sleep(60)
    assert len(api.called(Operation.ANNOTATE_NODE)) == tried


async def test_who_waits_for_the_plugin_is_told_so(api: ApiServer) -> None:
    parts = a_node_with(api, Dialect.HAMI, bind_timeout_s=3.0)
    first, second = await come(parts, a_pod("a"), a_pod("b"))
    await first
    with pytest.raises(BindFailed, match="device plugin has to find another pod first; the pod is not bound yet"):
        await parts.bind("b", "node-a")
    await second
    assert api.node_of("b") == "node-a"
    assert not parts.turns.is_waiting("uid-b")


async def test_a_pod_that_goes_while_it_waits_for_its_turn_keeps_no_cards(api: ApiServer) -> None:
    parts = a_node_with(api, Dialect.HAMI)
    binds = await come(parts, *(a_pod(name) for name in "abc"))
    await binds[0]
    api.delete_pod("c")
    parts.watch()
    assert parts.shares_left("uid-c") == []
    with pytest.raises(BindFailed):
        await binds[2]
    await binds[1]
    assert parts.shares_left("uid-c") == []


async def test_who_waits_is_not_bound_to_a_card_that_its_node_has_lost_meanwhile(api: ApiServer) -> None:
    parts = a_node_with(api, Dialect.HAMI)
    first, second = await come(parts, a_pod("a"), a_pod("b"))
    await first
    node = a_node_of(Dialect.HAMI)
    (lost,) = [entry.card for entry in parts.ledger.entries() if "uid-b" in entry.seats]
    register = node["metadata"]["annotations"]["hami.io/node-nvidia-register"].split(":")
    left = ":".join(item for item in register if not item.startswith(lost.uuid))
    node["metadata"]["annotations"]["hami.io/node-nvidia-register"] = left
    api.put_node(node)
    parts.watch()
    with pytest.raises(BindFailed, match="no longer takes new pods"):
        await second
    assert not api.node_of("b")
