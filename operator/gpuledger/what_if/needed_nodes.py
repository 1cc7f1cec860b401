"""How many more nodes, like one of a scene, its pods need; and their places with so many."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from gpuledger.formats.dialects.vocabulary import Dialects
from gpuledger.formats.kubernetes.constraints import NodeRules, pod_rules, refused_by_rules
from gpuledger.formats.kubernetes.pod import bound_node, is_finished
from gpuledger.model.errors import BadInput
from gpuledger.model.node import NodeOffer
from gpuledger.placement.group import Asking
from gpuledger.placement.growth import Growth, NodeTemplate, Seeker, Seekers, find_growth
from gpuledger.placement.policy import Policy
from gpuledger.what_if.answer import Answer, Unhelped, answer
from gpuledger.what_if.cluster import NEW, ObjectCluster, claim_elsewhere, model_of, rules_of_new
from gpuledger.what_if.gangs import SceneMember, asking_of
from gpuledger.what_if.scene import Given, PodStatus, Scene
from gpuledger.workflows.tasks import run_to_end

MOST_ADDED = 10_000
"""Nodes that can be added."""

MOST_LOOKS = 10_000_000
"""Some minutes of search: nobody else waits for it."""

MORE_TRIED = 8
"""Nodes more than the search has found, before it is said that not all whom it has placed find room."""


def answer_needed(scene: Scene, dialects: Dialects, policy: Policy, like: str) -> Answer:
    """Place the pods of a scene in turn, with as many more nodes as are needed. Raises BadInput, see `answer`.

    The number is looked for as the operator does it, and then tried here: with one node less, not all of the same pods
    find room. Only here do pods arrive one after the other, so that prices can differ, and share claims that are yet
    to be allocated.
    """
    without = answer(scene, dialects, policy)
    if not without.has_nodes:
        return without
    at_most = min(MOST_ADDED, len(scene.pods))
    growth, pods_of = _WaitingCluster(scene, dialects, policy).growth(scene.pods, like, at_most)
    helped = {pod for name, pods in pods_of.items() if name not in growth.unhelped for pod in pods}
    found = _tried(scene, dialects, policy, like, growth, helped)
    placed = _placed(found)
    unhelped = tuple(
        Unhelped(tuple(pods_of[name]), why)
        for name, reasons in growth.unhelped.items()
        for why in reasons.values()
        if not placed.issuperset(pods_of[name])
    )
    return replace(found, like=like, before=without, unhelped=unhelped)


def _tried(
    scene: Scene, dialects: Dialects, policy: Policy, like: str, growth: Growth, helped: Collection[str]
) -> Answer:
    """Return the answer with the number of nodes that holds here."""
    number = sum(growth.nodes.values())
    found = [answer(scene, dialects, policy, number, like)]
    while not _placed(found[-1]).issuperset(helped) and len(found) <= MORE_TRIED:
        found.append(answer(scene, dialects, policy, number + len(found), like))
    best = found[-1] if _placed(found[-1]).issuperset(helped) else found[0]
    wanted = _placed(best)
    while best.added and wanted.issubset(_placed(fewer := answer(scene, dialects, policy, len(best.added) - 1, like))):
        best = fewer
    return best


def _placed(answer: Answer) -> set[str]:
    return {each.pod for each in answer.pods if each.status is PodStatus.PLACED}


@dataclass(frozen=True, slots=True)
class _Group:
    """Pods that are placed together: a pod's UID and it alone, or a gang."""

    name: str
    members: Sequence[SceneMember]
    is_gang: bool = False


class _WaitingCluster(ObjectCluster):
    """A cluster whose pods are looked at while they wait, all at once."""

    def growth(self, pods: Sequence[Given], like: str, at_most: int) -> tuple[Growth, Mapping[str, Sequence[str]]]:
        """Return how many more nodes like another one the pods need, and who of the growth's names has which pods.

        Those that are bound get their cards first. The cluster is of no use afterwards. Raises BadInput.
        """
        model = model_of(self._nodes, like, self._dialects)
        offer = model.facts.offer or NodeOffer()
        prefix = f"{like}{NEW}"
        template = NodeTemplate(like, model.cards, offer, model.facts.host, model.rules.labels, at_most, prefix)
        for given in pods:
            if bound_node(given.content):
                self.take(given)
        groups = list(self._groups(pods))
        waiting = self._seekers(groups, like, rules_of_new(model, f"{prefix}1"))
        growth = run_to_end(find_growth(self._ledger, self._chooser, [template], waiting, MOST_LOOKS))
        names = {given.content["metadata"]["uid"]: given.name.removeprefix("Pod ") for given in pods}
        return growth, {group.name: [names[each.uid] for each in group.members] for group in groups}

    def _groups(self, pods: Sequence[Given]) -> Iterator[_Group]:
        """Yield who is to be placed, in the order of the pods; what can't be read is left out, and incomplete gangs."""
        gangs: set[int] = set()
        for member in filter(None, map(self._member, pods)):
            gang = self.gangs.of(member.uid)
            if gang is None or gang.missing <= 0:
                yield _Group(member.uid, [member])
                continue
            together = gang.together()
            if together and id(gang) not in gangs:
                gangs.add(id(gang))
                yield _Group(f"gang {gang.name}", together, is_gang=True)
            if together and member not in together:
                yield _Group(member.uid, [member])

    def _seekers(self, groups: Iterable[_Group], new: str, new_rules: NodeRules) -> list[Seekers]:
        """Return what is looked for. Pods that can go to the same nodes have the same object of these."""
        members = [member for group in groups for member in group.members]
        asking = asking_of(members, {name: node.rules for name, node in self._nodes.items()})
        found = iter([_seeker(*each, new, new_rules) for each in zip(members, asking, strict=True)])
        for member in members:
            self._chooser.arrived(member.request)
        return [Seekers(group.name, tuple(islice(found, len(group.members))), group.is_gang) for group in groups]

    def _member(self, given: Given) -> SceneMember | None:
        """Return what a pod is that waits for cards; None for any other, and for one that was given before."""
        try:
            facts = self._facts_of(given)
            if is_finished(given.content) or facts.bad_request or facts.node_name or not facts.request:
                return None
            rules = pod_rules(given.content)
        except BadInput:
            return None
        if facts.pod.uid in self._seen:
            return None
        self._seen.add(facts.pod.uid)
        self._ledger.quotas.knows(facts.pod.uid, facts.pod.namespace)
        return SceneMember(facts.pod.uid, facts.request, rules) if facts.request.shape else None


def _seeker(member: SceneMember, asking: Asking, new: str, new_rules: NodeRules) -> Seeker:
    """Return a pod with why it can't go to new nodes, whatever their cards, if it can't."""
    if member.request.joined_node:
        asking = replace(asking, node_names={member.request.joined_node})
        return Seeker(asking, {new: claim_elsewhere(member.request)})
    why = refused_by_rules(member.rules, new_rules)
    return Seeker(asking, {new: why} if why else {})
