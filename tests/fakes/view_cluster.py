"""A cluster to look at: the real ledger with cards and pods, and made-up answers of the operator's other parts."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import Any

from fakes.usage_records import a_record, days_until, held_hours
from gpuledger.agent.simulated import MODELS_MIB
from gpuledger.controller.web.feed import LedgerSource
from gpuledger.ledger.book import Ledger
from gpuledger.model.card import Amounts, Card
from gpuledger.model.errors import NotFound
from gpuledger.model.gang import GangStage
from gpuledger.model.node import NodeUsage
from gpuledger.model.request import Demand
from gpuledger.model.share import ContainerShare, Holder, HolderState, Pod, Share, StoredCard
from gpuledger.model.usage import Line
from gpuledger.reports.account import Question, Tally
from gpuledger.reports.explanation import (
    Explanation,
    FitsOn,
    GangProgress,
    GangTurn,
    Kind,
    Lacking,
    MemberState,
    State,
    asked,
)
from gpuledger.workflows.trail import RecordFilter

Json = dict[str, Any]

NAMESPACES = ("search", "vision", "speech", "research", "ads", "default")
NOW = datetime(2026, 11, 30, 17, 20, tzinfo=UTC)
"""By which reports are made: the same ones every day."""
PROGRAMS = ("chat", "embedding", "render", "speech", "train", "notebook", "detect", "decode")


class ViewCluster:
    """Cards that can be filled, emptied and broken; what the page is served from is `source`."""

    def __init__(self, seed: int = 1, grafana_url: str = "") -> None:
        self.ledger = Ledger()
        self.active_elsewhere: str | None = None
        self.source = LedgerSource(
            self.ledger,
            self.waiting_pods,
            self.explain,
            self.history,
            lambda: self.active_elsewhere,
            lambda uid: self.gangs.get(uid, ""),
            namespaces=lambda: [
                {"namespace": name, "quota": self.quotas.get(name, []), "budgets": self.budgets.get(name, [])}
                for name in sorted({*self.quotas, *self.budgets})
            ],
            queues=lambda: list(self.queues),
            grafana_url=grafana_url,
            agents_answers=self.agents_answers,
            report=self.report,
            now=lambda: NOW,
        )
        self.usages: list[Json] = []  # records of what namespaces held
        self.asked_reports: list[Question] = []
        self.measured: dict[str, NodeUsage | str] = {}  # node name -> what its agent says, or why it says nothing
        self.asked_agents = 0
        self.gangs: dict[str, str] = {}  # pod UID -> its gang
        self.gang_reports: dict[str, Json] = {}  # namespace/name -> how far it has come
        self.waiting: list[Json] = []
        self.quotas: dict[str, list[Json]] = {}  # namespace -> its limits
        self.budgets: dict[str, list[Json]] = {}  # namespace -> its budgets
        self.queues: list[Json] = []
        self.explanations: dict[str, Json] = {}
        self.records: list[Json] = []
        self.explained: list[str] = []
        self._random = random.Random(seed)  # noqa: S311 - the same cluster every time
        self._pods = 0

    def add_nodes(self, count: int, cards: int = 8, model: str = "A100-40GB", prefix: str = "gpu-node") -> list[Card]:
        """Register nodes of one model, idle; return their cards."""
        capacity = Amounts(MODELS_MIB[model], 100, 10)
        added = [
            Card(
                f"GPU-{prefix}-{node:05}-{index}",
                f"{prefix}-{node}",
                index,
                capacity,
                model=f"NVIDIA-{model}",
                numa_node=index // 4,
            )
            for node in range(1, count + 1)
            for index in range(cards)
        ]
        for card in added:
            self.put(card)
        return added

    def put(self, card: Card, *holders: Holder, phase: str = "Ready", reason: str = "") -> None:
        """Let the API server have a card so, in a new version."""
        entry = self.ledger.entry(card.uuid)
        version = entry.resource_version + 1 if entry else 1
        self.ledger.load(StoredCard(card, version, holders, phase, reason))
        self.source.note(card.node_name)

    def holders(self, card: Card) -> Sequence[Holder]:
        """Return who holds a card."""
        entry = self.ledger.entry(card.uuid)
        return list(entry.holders.values()) if entry else []

    def remove(self, card: Card) -> None:
        """Let the API server lose a card that nobody holds."""
        entry = self.ledger.entry(card.uuid)
        assert entry is not None
        self.ledger.unload(card.uuid, entry.resource_version + 1)

    def holder(
        self,
        card: Card,
        memory_mib: int,
        cores: int,
        *,
        namespace: str = "",
        name: str = "",
        exclusive: bool = False,
        state: HolderState = HolderState.ALLOCATED,
    ) -> Holder:
        """Return a pod's share of a card; a name is made up if there is none."""
        self._pods += 1
        pod = Pod(
            f"uid-{self._pods}",
            namespace or self._random.choice(NAMESPACES),
            name or f"{self._random.choice(PROGRAMS)}-{self._pods}",
            0,
        )
        share = Share(card.uuid, Amounts(memory_mib, cores, 1), exclusive, (ContainerShare("main", memory_mib, cores),))
        return Holder(pod, share, state)

    def fill(self, cards: Sequence[Card]) -> None:
        """Put pods on most of the cards; a few are broken, cordoned or without their node."""
        for card in cards:
            chance = self._random.random()
            if chance < 0.18:
                holders = [self.holder(card, card.capacity.memory_mib, 100, exclusive=True)]
            elif chance < 0.75:
                holders = self._shares(card)
            else:
                holders = []
            state = self._random.random()
            if state < 0.006:
                self.put(card, *holders, phase="Unhealthy", reason="Xid 79: the GPU has fallen off the bus")
            elif state < 0.01:
                self.put(card, *holders, phase="Cordoned", reason="fan is loud, to be looked at on Monday")
            elif state < 0.013:
                self.put(card, *holders, phase="Unavailable", reason="the node does not report the card any longer")
            else:
                self.put(card, *holders)

    def _shares(self, card: Card) -> list[Holder]:
        holders, left = [], card.capacity.memory_mib
        for _ in range(self._random.randint(1, 4)):
            memory_mib = self._random.choice((2000, 4000, 8000, 12000))
            if memory_mib <= left:
                holders.append(self.holder(card, memory_mib, self._random.choice((0, 10, 20, 25))))
                left -= memory_mib
        return holders

    def wait(
        self,
        namespace: str,
        name: str,
        request: str,
        reasons: Sequence[tuple[str, str, int]],
        age_s: float = 190,
        gang: str | None = None,
    ) -> Json:
        """Let a pod wait for these reasons: code, text, number of nodes."""
        entry = {
            "namespace": namespace,
            "pod": name,
            "podUID": f"uid-{name}",
            "gang": gang,
            "priority": 0,
            "since": moment(age_s),
            "lastTried": moment(4),
            "request": request,
            "reasons": [{"reason": code, "text": text, "nodes": nodes} for code, text, nodes in reasons],
        }
        self.waiting.append(entry)
        return entry

    def waiting_pods(self) -> Iterable[Json]:
        """Return the waiting pods."""
        return list(self.waiting)

    async def explain(self, kind: Kind, namespace: str, name: str) -> Json:
        """Return what was put down for a pod or a gang."""
        asked = f"{namespace}/{name}"
        self.explained.append(asked)
        known = self.gang_reports if kind is Kind.GANG else self.explanations
        if asked not in known:
            gang = f"no pod of namespace {namespace} is of a gang {name!r}"
            raise NotFound(gang if kind is Kind.GANG else f"nothing is known of a pod {asked} that asks for cards", 404)
        return known[asked]

    async def agents_answers(self) -> Mapping[str, NodeUsage | str]:
        """Return what the agents say: nothing, where the test has not said what."""
        self.asked_agents += 1
        return {name: self.measured.get(name, "no agent of gpuledger runs there") for name in self.ledger.node_names()}

    async def report(self, asked: Question) -> Json:
        """Return what is in the records."""
        self.asked_reports.append(asked)
        tally = Tally(asked, NOW)
        for each in self.usages:
            tally.add_record(each)
        return tally.report([NOW - timedelta(days=40)] * sum(1 for _ in self.ledger.entries()))

    def history(self, wanted: RecordFilter, limit: int) -> Json:
        """Return the last records of a pod or a gang, or of all."""
        found = [
            record
            for record in self.records
            if wanted.pod in ("", record["pod"]) and wanted.gang in ("", record.get("gang"))
        ]
        return {"kept": len(self.records), "dropped": 0, "records": found[-limit:]}


def moment(age_s: float) -> str:
    """Return a time so many seconds ago, RFC 3339."""
    return (datetime.now(UTC) - timedelta(seconds=age_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


def demo(grafana_url: str = "") -> ViewCluster:
    """Return three nodes with eight cards each, the pods of examples/, and one that waits."""
    cluster = ViewCluster(grafana_url=grafana_url)
    cards = cluster.add_nodes(3)
    one, two = cards[:8], cards[8:16]

    def share(
        card: Card,
        name: str,
        memory_mib: int,
        cores: int,
        namespace: str = "default",
        *,
        exclusive: bool = False,
        state: HolderState = HolderState.ALLOCATED,
    ) -> Holder:
        return cluster.holder(card, memory_mib, cores, namespace=namespace, name=name, exclusive=exclusive, state=state)

    cluster.put(
        one[0],
        share(one[0], "chat-1", 12000, 30),
        share(one[0], "chat-2", 12000, 30),
        share(one[0], "embedding", 10240, 0, "search"),
        share(one[0], "video", 4000, 10, "vision"),
    )
    for card in one[1:3]:
        cluster.put(card, share(card, "render", 40960, 100, "vision", exclusive=True))
    cluster.put(one[3], share(one[3], "latency", 20000, 100, exclusive=True))
    cluster.put(one[4], share(one[4], "speech", 8000, 20, "speech"), share(one[4], "video", 16000, 20, "vision"))
    cluster.put(
        one[5],
        share(one[5], "speech", 8000, 20, "speech"),
        share(one[5], "notebook-7", 6000, 0, "research", state=HolderState.RELEASING),
    )
    for card in two[:4]:
        cluster.put(card, share(card, "train-0", 40960, 100, "research", exclusive=True))
    cluster.put(two[5], share(two[5], "ranker", 24000, 40, "search"))
    for card in cards[16:20]:
        cluster.put(card, share(card, "train-1", 40960, 100, "research", exclusive=True))
    cluster.put(cards[23], phase="Cordoned", reason="fan is loud, to be looked at on Monday")
    cluster.wait("default", "too-large", "1 x 60000 MiB", [("too-large", "no card as large as 60000 MiB", 3)])
    cluster.explanations["default/too-large"] = explanation(cards)
    cluster.records = [
        record(800, "assigned", "default", "chat-1", one[0], "gets GPU 0 of gpu-node-1: the fullest node that fits"),
        record(798, "bound", "default", "chat-1", one[0], "bound to gpu-node-1"),
        record(190, "refused", "default", "too-large", None, "no node fits: 3 no card as large as 60000 MiB"),
        record(
            60, "evicted", "research", "train-0", two[4], "evicted: pod default/urgent of priority 1000 needs its place"
        ),
        record(12, "released", "research", "notebook-7", one[5], "ended; 6000 MiB are free again"),
    ]
    return cluster


def limit(key: str, counted: str, most: int, model: str | None = None, quota: str = "gpus") -> Json:
    """Return a limit of a namespace."""
    name = f"limits.nvidia.com/{key}" + (f".{model}" if model else "")
    return {"resourceQuota": quota, "key": name, "counted": counted, "vendor": "nvidia", "model": model, "limit": most}


def teams() -> ViewCluster:
    """Return the demo's cluster with two teams in it: each has a quota, and pods that have more than it allows."""
    cluster = demo("https://grafana.example.com/d/gpuledger?orgId=1")
    cards = [entry.card for entry in cluster.ledger.entries()]
    free = [card for card in cards if not cluster.holders(card)]
    for number, card in enumerate([cards[5], free[0], free[0]]):
        share = cluster.holder(card, 16_000, 30, namespace="team-a", name=f"llm-{number}")
        cluster.put(card, *cluster.holders(card), share)
    share = cluster.holder(free[0], 6_000, 0, namespace="team-a", name="notebook-0")
    cluster.put(free[0], *cluster.holders(free[0]), share)
    for number, card in enumerate(free[1:4]):
        alone = cluster.holder(card, 40_960, 100, namespace="team-b", name=f"bert-{number}", exclusive=True)
        cluster.put(card, alone)
    cluster.quotas = {
        "team-a": [
            limit("gpumem", "memoryMiB", 80_000),
            limit("gpucores", "cores", 200),
            limit("gpumem", "memoryMiB", 60_000, "A100"),
        ],
        "team-b": [limit("gpu", "number", 3)],
        "team-c": [limit("gpu", "number", 1)],
    }
    of = "the quota of the pod's namespace does not allow it: limits.nvidia.com/{} of ResourceQuota gpus"
    wide = "asks for 90,000 MiB, more than namespace team-a may have in all: ask for at most 80,000"
    cluster.wait("team-a", "wide", "3 cards with 30,000 MiB each", [("quota", of.format("gpumem"), 1)], 640)
    cluster.explanations["team-a/wide"] = {
        **cluster.explanations["default/too-large"],
        "namespace": "team-a",
        "name": "wide",
        "reason": "quota",
        "summary": wide,
        "quota": {"resourceQuota": "gpus", "key": "limits.nvidia.com/gpumem", "limit": 80_000, "asked": 90_000},
    }
    for number in range(6):
        cluster.wait("team-b", f"six-{number}", "1 whole card", [("quota", of.format("gpu"), 1)], 300, "six")
    cluster.queues = [
        {
            "queue": "low",
            "cohort": "all",
            "quota": [{"resource": "nvidia.com/gpu", "nominal": 4, "reserved": 6, "borrowed": 2}],
            "workloads": {"admitted": 3, "waitingForCards": 1, "waitingForQuota": 2},
        }
    ]
    cluster.records.append(record(8, "refused", "team-a", "wide", None, of.format("gpumem")))
    return cluster


def record(
    age_s: float, kind: str, namespace: str, pod: str, card: Card | None, text: str, gang: str | None = None
) -> Json:
    """Return a Record."""
    cards = [{"uuid": card.uuid, "memoryMiB": 12000, "cores": 30, "number": 1}] if card else []
    return {
        "time": moment(age_s),
        "kind": kind,
        "namespace": namespace,
        "pod": pod,
        "podUID": f"uid-{pod}",
        "gang": gang,
        "node": card.node_name if card else "",
        "cards": cards,
        "text": text,
        "alternatives": [],
    }


def explanation(cards: Sequence[Card], name: str = "too-large", short_mib: int = 19040) -> Json:
    """Return why a pod fits on none of these cards."""
    nodes: dict[str, list[Card]] = {}
    for card in cards:
        nodes.setdefault(card.node_name, []).append(card)
    request = asked("main", Demand(1, memory_mib=60000))
    waits = Explanation(
        Kind.POD,
        "default",
        name,
        State.WAITING,
        f"No node has a card as large as 60000 MiB; the largest has {cards[0].capacity.memory_mib} MiB.",
        uid=f"uid-{name}",
        since=moment(190),
        last_tried=moment(4),
        requests=[request],
        scheduler_says=f"0/{len(nodes)} nodes are available: {len(nodes)} no card as large as 60000 MiB.",
    )
    return {
        **waits.json(),
        "nodes": [
            {
                "node": node,
                "fits": False,
                "offered": True,
                "reason": "too-large",
                "text": "no card as large as 60000 MiB",
                "kubeScheduler": None,
                "remedy": f"would fit on a card with {short_mib} MiB more",
                "wouldHaveToLeave": [],
                "cards": [
                    {
                        "uuid": card.uuid,
                        "index": card.index,
                        "fits": False,
                        "reason": "too-large",
                        "text": f"short by {short_mib} MiB",
                        "short": {"memoryMiB": short_mib},
                        "by": [],
                    }
                    for card in there
                ],
            }
            for node, there in nodes.items()
        ],
    }


def with_gangs(cluster: ViewCluster) -> ViewCluster:
    """Return a cluster in which one gang runs, and another waits: five of nine members would find cards."""
    running: list[MemberState] = []
    cards = [entry.card for entry in cluster.ledger.entries()]
    for card in [card for card in cards if not cluster.holders(card)][:4]:
        holder = cluster.holder(card, 40960, 100, namespace="speech", name=f"asr-{len(running)}", exclusive=True)
        cluster.put(card, holder)
        cluster.gangs[holder.pod.uid] = "asr"
        running.append(MemberState(holder.pod.name, holder.pod.uid, "running", card.node_name))
    text = "fewer than 9 members of the pod's gang find cards at once"
    waiting = [Pod(f"uid-pretrain-{number}", "vision", f"pretrain-{number}") for number in range(9)]
    for pod in waiting:
        cluster.wait("vision", pod.name, "1 whole card", [("gang", text, 3)], 420, "pretrain")
    where = ["gpu-node-2"] * 2 + ["gpu-node-3"] * 3
    cluster.gang_reports["speech/asr"] = Explanation(
        Kind.GANG,
        "speech",
        "asr",
        GangStage.RUNNING,
        "gang asr: 4 members run of the 4 that have to start together",
        gang="asr",
        gang_words="label gpuledger.dev/gang=asr: 4 of its pods start together",
        members=GangProgress(state=GangStage.RUNNING, minimum=4, needed=0, running=4, waiting=0, pods=running),
    ).json()
    pretrain = Explanation(
        Kind.GANG,
        "vision",
        "pretrain",
        GangStage.WAITING,
        "gang pretrain: 5 of 9 members find cards at once (gpu-node-3 3, gpu-node-2 2). "
        "Missing: 4 cards, for 4 members that ask for 1 whole card",
        priority=100,
        since=moment(420),
        gang="pretrain",
        gang_words="label gpuledger.dev/gang=pretrain: 9 of its pods start together",
        members=GangProgress(
            state=GangStage.WAITING,
            minimum=9,
            needed=9,
            running=0,
            waiting=9,
            on_hold=0,
            in_bind=0,
            fits=5,
            turn=GangTurn("speech/asr", "alone", 12),
            fits_on=[FitsOn("gpu-node-3", 3), FitsOn("gpu-node-2", 2)],
            missing=[Lacking("1 whole card", 4, 4)],
            pods=[
                MemberState(pod.name, pod.uid, "fits" if node else "no-cards", node)
                for pod, node in zip_longest(waiting, where, fillvalue="")
                if isinstance(pod, Pod)
            ],
        ),
        example="pretrain-5",
    )
    cluster.gang_reports["vision/pretrain"] = {**pretrain.json(), "nodes": explanation(cards)["nodes"]}
    cluster.records += [
        record(420, "refused", "vision", "pretrain-0", None, text, "pretrain"),
        record(33, "gang-planned", "speech", "", None, "cards for 4 of 4 members are kept", "asr"),
        record(30, "gang-bound", "speech", "", None, "4 members are bound, 3.1 s after the last was seen", "asr"),
    ]
    return cluster


TEAMS = (
    "research",
    "vision",
    "search",
    "team-a",
    "team-b",
    "speech",
    "ads",
    "genomics",
    "climate",
    "robots",
    "maps",
    "qa",
)


def with_reports(cluster: ViewCluster) -> ViewCluster:
    """Return a cluster with records of the last hundred days: of twelve namespaces, quieter on weekends."""
    chance, days = random.Random(4), days_until(NOW.date(), 100)  # noqa: S311 - the same records every time
    for place, namespace in enumerate(TEAMS):
        models = ("NVIDIA A100-SXM4-40GB", "NVIDIA H100 80GB HBM3")
        for number, day in enumerate(days):
            quiet = (0.35 if day.weekday() > 4 else 1) * (0.4 + number / len(days)) * (0.7 if day == days[-1] else 1)
            lines = {
                Line(f"{day}", model, f"gpu-node-{1 + (place + share) % 3}", queue, f"{kind}-{place}"): held_hours(
                    quiet * chance.uniform(6, 60) / (1 + place), 1 + chance.randrange(4), chance.randrange(900)
                )
                for share, (model, queue, kind) in enumerate(
                    [
                        (models[0], "batch", "Job/train"),
                        (models[1], "", "Deployment/serve"),
                        (models[0], "", "Job/eval"),
                    ]
                )
            }
            cluster.usages.append(a_record(namespace, day, lines))
    return cluster
