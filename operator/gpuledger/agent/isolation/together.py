"""Whether several containers that use one claim are kept to its amount together. Pure.

HAMi-core counts by process id, and each container has ids of its own: with one file for several containers, a process
takes another one's entry for its own, or for that of a process that has ended, and removes it (HAMi-core's
`init_proc_slot_withlock`, `proc_alive`). MPS limits each process. The driver limits control groups, which are nested.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuledger.agent.isolation.choice import GrantedCard, Isolation

_COUNTS = {
    Isolation.HAMI_CORE: "HAMi-core counts what each container uses by itself",
    Isolation.MPS: "MPS limits each process by itself",
}
"""Ways that can't hold an amount that containers have together -> why."""


def why_not_together(isolation: Isolation, cards: Sequence[GrantedCard], containers: int, by_several_pods: bool) -> str:
    """Return why containers can't use these cards of one claim together; empty: they can, or nothing limits them.

    `containers` of a pod use them at the same time. Whole cards need no limit.
    """
    if isolation not in _COUNTS or all(card.exclusive or card.mode == Isolation.MIG for card in cards):
        return ""
    if by_several_pods:
        who, instead = "pods that share it", "give each pod a claim of its own, by a ResourceClaimTemplate"
    elif containers > 1:
        who, instead = f"its {containers} containers", "give each container a request of its own"
    else:
        return ""
    return f"{_COUNTS[isolation]}, so {who} could use more than the claim has: {instead}, or request whole GPUs"
