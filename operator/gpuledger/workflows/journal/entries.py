"""Changes of a card's status, each with a caller that waits for it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace

from gpuledger.model.amounts import NOTHING, Amounts
from gpuledger.model.errors import GpuledgerError
from gpuledger.model.share import Claim, Holder, HolderState, Pod, Share
from gpuledger.model.stored_card import Misfit


@dataclass(eq=False)
class Entry(ABC):
    """One change of a card's status, and the future of the caller that waits for it."""

    settled: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    refusals: int = 0
    """How often the API server has refused a patch with this entry in it."""
    may_arrive_late: bool = False
    """A patch with it had no answer: it may still be under way, and be carried out after a later one."""

    @property
    @abstractmethod
    def subject(self) -> str:
        """The subject of the entry: a pod's UID, or the card itself."""

    def unanswered(self, error: GpuledgerError) -> None:
        """Note that the API server has not said what has become of a patch, of this entry or of one before it."""
        self.may_arrive_late = True

    def succeed(self) -> None:
        """Tell the waiter that the API server has it."""
        if not self.settled.done():
            self.settled.set_result(None)

    def fail(self, error: GpuledgerError) -> None:
        """Tell the waiter that it can't be had."""
        if not self.settled.done():
            self.settled.set_exception(error)


@dataclass(eq=False)
class Add(Entry):
    """Enter a holder, or give an equal one that is there this one's attempt. Either way its pod's claim has come true.

    A caller that waits can withdraw it, by cancelling the future, as long as it is not sent.
    """

    holder: Holder = field(kw_only=True)
    took_over: set[str] = field(default_factory=set, init=False)
    """Names of the attempts whose equal holder was to be this one's."""

    def changed(self, present: Holder) -> Holder:
        """Return an equal holder as it is afterwards: what is allocated does not become reserved again."""
        kept = present if present.state is HolderState.ALLOCATED else self.holder
        return replace(
            present, attempt=self.holder.attempt, state=kept.state, deadline=kept.deadline, share=self.holder.share
        )

    def takes_over_from(self, present: Holder) -> bool:
        """Tell whether a holder is an equal one; room that was reserved does not know the claims' names yet."""
        if present.state is HolderState.RESERVED:
            return _without_claims(present.share) == _without_claims(self.holder.share)
        return present.share == self.holder.share

    @property
    def subject(self) -> str:
        """The pod's UID."""
        return self.holder.pod.uid


@dataclass(eq=False)
class Remove(Entry):
    """Take a pod off the card. Not tried again without an answer: etcd may be an older one after that, with the pod."""

    pod_uid: str = field(kw_only=True)
    only: Holder | None = field(default=None, kw_only=True)
    """Only this attempt's holder, in this state: a newer attempt of the pod may have entered it again."""

    def unanswered(self, error: GpuledgerError) -> None:
        """Have the waiter look at the pod again."""
        self.fail(error)

    def applies_to(self, present: Holder | None) -> bool:
        """Tell whether there is something to remove."""
        if present is None or self.only is None:
            return present is not None
        return (present.attempt, present.state) == (self.only.attempt, self.only.state)

    @property
    def subject(self) -> str:
        """The pod's UID."""
        return self.pod_uid


@dataclass(eq=False)
class Change(Entry):
    """Give a holder the state and deadline of this one. Nothing happens if the pod has left, or has another share.

    Another share is that of another operator, which binds the same pod: it is not ours to touch.
    """

    holder: Holder = field(kw_only=True)

    @property
    def subject(self) -> str:
        """The pod's UID."""
        return self.holder.pod.uid

    def applies_to(self, present: Holder | None) -> bool:
        """Tell whether there is something to change."""
        if present is None or present.share != self.holder.share:
            return False
        if self.holder.state is HolderState.RELEASING and not self.holder.deadline:  # it is so already
            return present.state is not HolderState.RELEASING
        return (present.state, present.deadline) != (self.holder.state, self.holder.deadline)

    def changed(self, present: Holder) -> Holder:
        """Return the holder as it is afterwards."""
        return replace(present, state=self.holder.state, deadline=self.holder.deadline)


@dataclass(eq=False)
class Describe(Entry):
    """Set the card's phase and the reason for it; the first time, open the card for holders."""

    phase: str = field(kw_only=True)
    reason: str = field(kw_only=True)

    @property
    def subject(self) -> str:
        """The card; no pod has an empty UID."""
        return ""


@dataclass(eq=False)
class ShowConflict(Entry):
    """List a pod's share among the card's conflicts, in place of what is listed of it; None takes the pod off."""

    pod_uid: str = field(kw_only=True)
    misfit: Misfit | None = field(kw_only=True)

    @property
    def subject(self) -> str:
        """The pod's UID."""
        return self.pod_uid


@dataclass(eq=False)
class SetClaim(Entry):
    """List what is promised to a pod, in place of what is listed; None takes the claim off."""

    pod_uid: str = field(kw_only=True)
    claim: Claim | None = field(kw_only=True)

    @property
    def subject(self) -> str:
        """The pod's UID."""
        return self.pod_uid


@dataclass(frozen=True, slots=True)
class Bequest:
    """What another pod gets of a share: the parts of one ResourceClaim, which it uses as well."""

    heir: Pod
    claim_uid: str
    claim_name: str
    """What the heir calls the claim."""


@dataclass(eq=False)
class HandOver(Entry):
    """Give ResourceClaims' parts of a pod's share to other pods that use the claims, and take the pod off the card.

    In one write, so that nobody else gets the room in between. Not tried again without an answer, like a removal.
    """

    holder: Holder = field(kw_only=True)
    """Who leaves, as it is."""
    bequests: tuple[Bequest, ...] = field(kw_only=True)
    attempt: str = field(kw_only=True)

    @property
    def subject(self) -> str:
        """The UID of the pod that leaves."""
        return self.holder.pod.uid

    def unanswered(self, error: GpuledgerError) -> None:
        """Have the waiter look at the pods again."""
        self.fail(error)

    def applies_to(self, present: Holder | None) -> bool:
        """Tell whether the one that leaves is there, as it was."""
        return present is not None and (present.attempt, present.state) == (self.holder.attempt, self.holder.state)

    def inherited(self, bequest: Bequest, leaving: Holder, present: Holder | None) -> Holder:
        """Return an heir's holder afterwards; `present` is what it holds of the card already."""
        parts = tuple(
            replace(part, name=f"{bequest.claim_name}/{part.name.partition('/')[2]}")
            for part in leaving.share.containers
            if part.claim is not None and part.claim.uid == bequest.claim_uid
        )
        amounts = Amounts(sum(part.memory_mib for part in parts), sum(part.cores for part in parts), 1)
        if leaving.share.exclusive:  # nobody else is there: who is present has inherited all of it just now
            amounts = leaving.share.amounts if present is None else NOTHING
        if present is None:
            share = replace(leaving.share, amounts=amounts, containers=parts)
            return Holder(bequest.heir, share, attempt=self.attempt)
        both = replace(present.share.amounts + amounts, number=present.share.amounts.number)
        share = replace(present.share, amounts=both, containers=(*present.share.containers, *parts))
        return replace(present, share=share, attempt=self.attempt)


def _without_claims(share: Share) -> Share:
    return replace(share, containers=tuple(replace(part, claim=None) for part in share.containers))
