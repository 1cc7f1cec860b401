"""A cluster as Kubernetes objects describe it, in a ledger of its own, and pods that are placed there in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.formats.inspection import offers_without_cards
from gpuledger.formats.kubernetes.budgets import budgets_of, shown_as_spent
from gpuledger.formats.kubernetes.constraints import (
    NodeRules,
    PodRules,
    node_rules,
    pod_rules,
    refused_by_host,
    refused_by_rules,
)
from gpuledger.formats.kubernetes.gang import gang_of
from gpuledger.formats.kubernetes.node import NodeFacts, node_facts, read_registers
from gpuledger.formats.kubernetes.other import limits_of
from gpuledger.formats.kubernetes.pod import (
    bound_node,
    controller_uid,
    has_succeeded,
    is_finished,
    pod_facts,
    scheduler_of,
)
from gpuledger.formats.quantity import host_request
from gpuledger.formats.resource_claims.claims import ListedClaims
from gpuledger.kube_api.reads import CLUSTERS_OWN
from gpuledger.ledger.adoption import missing_shares
from gpuledger.ledger.book import Ledger
from gpuledger.ledger.seats import FOREVER, Seat
from gpuledger.model.card import Card
from gpuledger.model.errors import BadInput, Reason, Refusal, ShareRefused
from gpuledger.model.gang import QuotaLimit
from gpuledger.model.node import PodFacts
from gpuledger.model.request import PodRequest
from gpuledger.model.share import Placement, Pod, StoredCard
from gpuledger.placement.choose import Choice, Chooser
from gpuledger.placement.growth import copied
from gpuledger.placement.policy import Policy
from gpuledger.reports.tables import listed
from gpuledger.what_if.gangs import Presence, SceneGang, SceneGangs, SceneMember, asking_of, hold_all
from gpuledger.what_if.scene import Given, PodOutcome, PodStatus, Remark, Scene, as_if_served
from gpuledger.workflows.placing.place_pod import choose_first
from gpuledger.workflows.quota import QuotaGate

NODES_NAMED = 5

NEW = "-new-"
"""Between the name of a node and the number of one that is like it."""

HOSTNAME = "kubernetes.io/hostname"
"""The label with a node's own name."""


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A node of a scene."""

    rules: NodeRules
    cards: tuple[Card, ...]
    facts: NodeFacts
    given: Given
    is_added: bool = False


class ObjectCluster:
    """The nodes of a scene with their cards, and the pods that run there; the scene's other pods are taken in turn."""

    def __init__(self, scene: Scene, dialects: Dialects, policy: Policy) -> None:
        self._dialects = dialects
        self._claims = scene.claims.merged(ListedClaims())  # of its own: it changes as pods take claims
        self._ledger = Ledger(scene.zone_labels)
        self._chooser = Chooser(self._ledger, policy)
        self.gangs = SceneGangs(scene.groups)
        self._gate = QuotaGate(self._ledger, self._chooser, 1)
        self._nodes: dict[str, ClusterNode] = {}
        self._seen: set[str] = set()  # UIDs of the pods that were given
        self.problems: list[Remark] = []
        self._taken_as_served: list[Given] = []  # nodes that do not say what their device plugins serve
        self._without_cards: list[Remark] = []  # why pods get nothing of what a node offers
        for node in scene.nodes:
            self._add_node(node, scene.cards.get(node.content["metadata"]["name"]))
        self._set_quotas(scene.quotas)
        for pod in scene.running:
            self._count_host(pod)
        self._expect([*scene.running, *scene.entered], have_cards=True)
        self._expect(scene.pods)

    @property
    def has_nodes(self) -> bool:
        """Return whether there is a node at all."""
        return bool(self._nodes)

    @property
    def notes(self) -> list[Remark]:
        """Return what was assumed, of all nodes of which it was, once; and what of the nodes counts for nothing."""
        if not self._taken_as_served:
            return self._without_cards
        first, *others = self._taken_as_served
        name, text = first.name, "its status does not say what its device plugin serves; taken as if that answered"
        if others:
            name = f"{name}, and {len(others)} more node{'s' * (len(others) != 1)}"
            text = "their status does not say what a device plugin serves; taken as if that answered"
        return [Remark(first.file, name, text), *self._without_cards]

    # Its cards, for what reads annotations.

    def card(self, uuid: str) -> Card | None:
        """Return the card of this UUID."""
        entry = self._ledger.entry(uuid)
        return entry.card if entry else None

    def cards_of(self, node_name: str) -> Sequence[Card]:
        """Return a node's cards."""
        return [entry.card for entry in self._ledger.entries_of_node(node_name)]

    # Filling it.

    def _add_node(self, given: Given, stored: Sequence[StoredCard] | None) -> None:
        """Add a node with the cards that its registers list; or with those that a ledger has of it, if given."""
        try:
            rules = node_rules(given.content)
            facts = self._facts(given)
            inventory = read_registers(facts)
        except BadInput as error:
            self.problems.append(Remark(given.file, given.name, str(error)))
            return
        if facts.name in self._nodes:
            self.problems.append(Remark(given.file, given.name, "there is a node of this name already"))
            return
        self.problems += [Remark(given.file, given.name, problem) for problem in inventory.problems]
        if not (facts.host and facts.host.cards):
            self._without_cards += [Remark(given.file, given.name, note) for note in offers_without_cards(facts)]
        cards = [card for card in inventory.cards if stored is not None or self._is_new(card, given)]
        self._nodes[facts.name] = ClusterNode(rules, tuple(cards), facts, given)
        self._register(facts, [StoredCard(card, 1, (), "Ready") for card in cards] if stored is None else stored)
        for entry in self._ledger.entries_of_node(facts.name):
            self._ledger.set_reported(entry.card.uuid, any(card.uuid == entry.card.uuid for card in cards))

    def add_like(self, name: str, count: int) -> list[str]:
        """Add idle nodes with the cards of another one, and UUIDs of their own; return their names. Raises BadInput."""
        model = model_of(self._nodes, name, self._dialects)
        added = []
        for number in range(1, count + 1):
            new = f"{name}{NEW}{number}"
            if new in self._nodes:
                raise BadInput(f"there is a node {new} already: copy another one")
            cards = [copied(card, new) for card in model.cards]
            facts = replace(model.facts, name=new)
            self._nodes[new] = ClusterNode(rules_of_new(model, new), tuple(cards), facts, model.given, True)
            self._register(facts, [StoredCard(card, 1, (), "Ready") for card in cards])
            added.append(new)
        return added

    def _count_host(self, pod: Given) -> None:
        """Count the CPU and memory of a bound pod whose cards the ledger has already, or that has none.

        Policies learn from what it asks for of cards.
        """
        request = self._facts_of(pod).request
        if request is not None:
            self._learn_of_bound(request)
        self._ledger.hosts.bound(
            pod.content["metadata"]["uid"], bound_node(pod.content), host_request(pod.content, self._dialects.elsewhere)
        )

    def _set_quotas(self, quotas: Sequence[Given]) -> None:
        """Note what the pods of each namespace may have together."""
        limits: dict[str, list[QuotaLimit]] = {}
        for given in quotas:
            found, problems = limits_of(given.content, self._dialects)
            budgets, no_budgets = budgets_of(given.content)
            found += shown_as_spent(given.content, budgets)
            problems += no_budgets
            self.problems += [Remark(given.file, given.name, f"spec.hard, {problem}") for problem in problems]
            limits.setdefault(given.content["metadata"]["namespace"], []).extend(found)
        for namespace, each in limits.items():
            self._ledger.quotas.set_limits(namespace, each)

    # Pods.

    def _expect(self, pods: Sequence[Given], have_cards: bool = False) -> None:
        """Note who of the pods belongs together, before the first of them is taken. What can't be read is left out."""
        for given in pods:
            try:
                gang, facts = gang_of(given.content), self._facts_of(given)
            except BadInput:
                continue  # said when it is taken
            member = _member(facts, given, have_cards) if gang is not None else None
            if gang is not None and member is not None:
                self.gangs.expect(gang, facts.pod.uid, controller_uid(given.content), member)

    def take(self, given: Given) -> PodOutcome | None:
        """Let a bound pod have the cards that it says, and place any other.

        Return None if it has ended, is bound and asks for no card, or can't be read.
        """
        try:
            return self._take(given)
        except BadInput as error:
            self.problems.append(Remark(given.file, given.name, str(error)))
            return None

    def _take(self, given: Given) -> PodOutcome | None:
        facts = self._facts_of(given)
        if facts.pod.uid in self._seen:
            raise BadInput("a pod of this name was given before")
        self._seen.add(facts.pod.uid)
        if is_finished(given.content):
            return None
        if facts.bad_request:
            raise BadInput(facts.bad_request)
        if facts.request is None:
            if facts.node_name:
                self._count_host(given)
                return None
            return PodOutcome(str(facts.pod), PodStatus.NO_GPU)
        if facts.node_name:
            outcome = self._hold(facts, facts.request)
        else:
            gang_of(given.content)  # raises for one that can't be had
            placed = self._place_member(facts, facts.request)
            outcome = placed or self._place(facts, facts.request, pod_rules(given.content))
        for claim in facts.request.claims:
            if claim.shared and outcome.node_name:
                self._claims.take(facts.pod.uid, facts.pod.namespace, claim.object_name, outcome.node_name)
        return outcome

    def _learn_of_bound(self, request: PodRequest) -> None:
        """Learn what an operator learns from a pod that runs when it starts."""
        self._chooser.arrived(request)
        self._chooser.taken_over()

    def _hold(self, facts: PodFacts, request: PodRequest) -> PodOutcome:
        self._learn_of_bound(request)
        if facts.node_name not in self._nodes:
            raise BadInput(f"it is bound to node {facts.node_name}, which was not given")
        counted = self._ledger.only_counts(facts.node_name)
        shares = () if counted else missing_shares(facts, (), self)
        placement = Placement(facts.node_name, shares, request.host)
        try:
            self._ledger.seats.take(Seat(facts.pod.uid, placement, FOREVER))
        except ShareRefused as error:
            raise BadInput(f"it is bound, and its cards are taken by others: {error}") from None
        self._ledger.quotas.knows(facts.pod.uid, facts.pod.namespace)  # not before: it is there, whatever it may have
        return self._outcome(facts, PodStatus.BOUND, placement)

    def _outcome(self, facts: PodFacts, status: PodStatus, placement: Placement) -> PodOutcome:
        node = self._nodes[placement.node_name]
        indexes = {share.uuid: card.index for share in placement.shares if (card := self.card(share.uuid))}
        return PodOutcome(str(facts.pod), status, placement.node_name, placement.shares, indexes, node.is_added)

    def _place_member(self, facts: PodFacts, request: PodRequest) -> PodOutcome | None:
        """Return the outcome of a pod that is placed with others, None if it is placed by itself."""
        gang = self.gangs.of(facts.pod.uid)
        if gang is None or gang.missing <= 0:
            return None
        if not gang.tried:
            gang.tried = True
            self._chooser.arrived(request)
            self._plan(gang)
        elif facts.pod.uid in gang.places:
            self._chooser.arrived(request)
        placement = gang.places.get(facts.pod.uid)
        if placement is not None:
            return self._outcome(facts, PodStatus.PLACED, placement)
        if gang.places:  # the gang is there without it
            return None
        return PodOutcome(str(facts.pod), PodStatus.NO_ROOM, reasons={gang.why_not(): len(self._nodes)})

    def _plan(self, gang: SceneGang) -> None:
        """Place all members that a gang needs, or none."""
        members = gang.together()
        for each in members:
            self._ledger.quotas.knows(each.uid, gang.name.namespace)
        rules_of = {name: node.rules for name, node in self._nodes.items()}
        seats = asking_of(members, rules_of)
        gang.fitted = hold_all(self._ledger, self._chooser, seats)
        if gang.fitted == len(seats):
            held = ((each.uid, self._ledger.seats.of(each.uid)) for each in members)
            gang.places = {uid: hold.placement for uid, hold in held if hold is not None}
            return
        for number, (seat, member) in enumerate(zip(seats, members, strict=True)):
            if not hold_all(self._ledger, self._chooser, [seat]):
                gang.reasons = self._look(Pod(member.uid, gang.name.namespace, ""), member.request, member.rules)[1]
                break
            gang.fitted = max(gang.fitted, number + 1)
        for seat in seats:
            self._ledger.seats.give_up(seat.key)

    def _place(self, facts: PodFacts, request: PodRequest, rules: PodRules) -> PodOutcome:
        if not request.shape:
            return self._join(facts, request, rules)
        self._chooser.arrived(request)
        choice, reasons = self._look(facts.pod, request, rules)
        if not choice.placements:
            return PodOutcome(str(facts.pod), PodStatus.NO_ROOM, reasons=reasons)
        [placement] = choice.placements
        self._ledger.seats.take(Seat(facts.pod.uid, placement, FOREVER))
        return self._outcome(facts, PodStatus.PLACED, placement)

    def _join(self, facts: PodFacts, request: PodRequest, rules: PodRules) -> PodOutcome:
        """Place a pod that has all its cards by claims of others: it can go where these are."""
        reasons = Counter(why for name in self._nodes if (why := self._refused(request, rules, name)))
        if request.joined_node not in self._nodes or reasons.total() == len(self._nodes):
            return PodOutcome(str(facts.pod), PodStatus.NO_ROOM, reasons=reasons)
        self._ledger.hosts.bound(facts.pod.uid, request.joined_node, request.host)
        return self._outcome(facts, PodStatus.PLACED, Placement(request.joined_node, ()))

    def _refused(self, request: PodRequest, rules: PodRules, name: str) -> tuple[str, str] | None:
        """Return why a node does not take a pod, whatever its cards, as reason and sentence; None if it may."""
        if request.joined_node not in ("", name):
            return claim_elsewhere(request)
        node, free = self._nodes[name].rules, self._ledger.hosts.free(name)
        return refused_by_rules(rules, node) or refused_by_host(request.host, free)

    def _look(self, pod: Pod, request: PodRequest, rules: PodRules) -> tuple[Choice, Counter[tuple[str, str]]]:
        """Return where a pod can go now, and for how many nodes which reason holds that it can't."""
        refusal = self._gate.refuses(pod, request)
        if refusal is not None:
            return Choice((), {}), Counter({_reason(refusal): len(self._nodes)})
        reasons: Counter[tuple[str, str]] = Counter()
        possible = []
        for name in self._nodes:
            why = self._refused(request, rules, name)
            if why:
                reasons[why] += 1
            else:
                possible.append(name)
        for variant in request.variants:
            self._chooser.best(variant, possible)  # so that the ask is known
            while self._chooser.look_further():
                pass  # the operator does this between its questions
        chosen, choice = choose_first(self._chooser, request, possible, 1)
        choice = self._gate.within(pod, chosen, possible, choice)
        reasons.update(_reason(refusal) for refusal in choice.refusals.values())
        return choice, reasons

    # Inside.

    def _facts_of(self, pod: Given) -> PodFacts:
        return pod_facts(pod.content, self._dialects, self._claims)

    def _facts(self, given: Given) -> NodeFacts:
        """Return what matters of a node; one that says nothing of its device plugin counts as if that answered."""
        facts = node_facts(given.content, self._dialects)
        allocatable = (given.content.get("status") or {}).get("allocatable") or {}
        counts = {*self._dialects.counts(), *(register.served for register, _ in facts.registers)}
        if facts.offer is not None or not facts.registers or counts & {*allocatable}:
            return facts
        self._taken_as_served.append(given)
        return as_if_served(given.content, facts, self._dialects)

    def _register(self, facts: NodeFacts, stored: Sequence[StoredCard]) -> None:
        for card in stored:
            self._ledger.load(card)
        self._ledger.zones.observe(facts.name, self._nodes[facts.name].rules.labels)
        self._ledger.set_offer(facts.name, facts.offer)
        self._ledger.hosts.set_capacity(facts.name, facts.host)
        self._ledger.hosts.set_replicated(facts.name, facts.replicated)

    def _is_new(self, card: Card, given: Given) -> bool:
        entry = self._ledger.entry(card.uuid)
        if entry is not None:
            text = f"card {card.uuid} is on node {entry.card.node_name} already; that one counts"
            self.problems.append(Remark(given.file, given.name, text))
        return entry is None


def model_of(nodes: Mapping[str, ClusterNode], name: str, dialects: Dialects) -> ClusterNode:
    """Return a node as new ones are that are like it: their device plugin answers. Raises BadInput."""
    model = nodes.get(name)
    if model is None:
        raise BadInput(f"there is no node {name!r} to copy; nodes are {listed(sorted(nodes), NODES_NAMED)}")
    if model.facts.offer is not None:
        return model
    return replace(model, facts=as_if_served(model.given.content, model.facts, dialects))


def rules_of_new(model: ClusterNode, name: str) -> NodeRules:
    """Return what a node like another one says."""
    labels = {**model.rules.labels, **({HOSTNAME: name} if HOSTNAME in model.rules.labels else {})}
    return NodeRules(name, labels, model.rules.taints)


def claim_elsewhere(request: PodRequest) -> tuple[str, str]:
    """Return why a pod that shares a claim goes to no other node than the claim's, as reason and sentence."""
    text = f"claim {request.joined[0].name} of the pod is allocated on node {request.joined_node}"
    return Reason.CLAIM_ELSEWHERE.value, text


def _reason(refusal: Refusal) -> tuple[str, str]:
    return refusal.reason.value, refusal.text


def _member(facts: PodFacts, given: Given, has_cards: bool) -> SceneMember | Presence | None:
    """Return what a pod is to its gang, None if it does not count."""
    if is_finished(given.content):
        return Presence.DONE if has_succeeded(given.content) else None
    if facts.bad_request:
        return None
    if facts.request is None:  # the operator sees it if it is not of the cluster's own scheduler
        return Presence.THERE if scheduler_of(given.content) not in ("", CLUSTERS_OWN) else None
    if has_cards or facts.node_name:
        return Presence.THERE
    return SceneMember(facts.pod.uid, facts.request, pod_rules(given.content))
