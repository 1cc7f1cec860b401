"""The preferences that have prices, and what these are made from.

Prices need numpy, whose import takes 0.1 s and 10 MiB. So the modules of a preference are imported when the cluster's
policy has it, or else for the first pod whose annotation does, beside the event loop; otherwise never.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from gpuledger.ledger.book import Ledger
from gpuledger.placement.decide import Pricer
from gpuledger.placement.fragmentation.mix import Mix
from gpuledger.placement.policy import Policy, Preference

NewPricer = Callable[[Ledger, Mix], Pricer]


def _fragmentation() -> NewPricer:
    from gpuledger.placement.fragmentation.prices import FragmentationPrices

    return FragmentationPrices


def _fgd() -> NewPricer:
    from gpuledger.placement.fragmentation.fgd import Fgd

    return Fgd


def _best_fit() -> NewPricer:
    from gpuledger.placement.fragmentation.best_fit import BestFit

    return lambda ledger, _: BestFit(ledger)


PRICERS: dict[Preference, Callable[[], NewPricer]] = {
    Preference.FRAGMENTATION: _fragmentation,
    Preference.FGD: _fgd,
    Preference.BEST_FIT: _best_fit,
}
"""What imports a preference's modules, and returns what makes its pricer."""


class Pricers(Mapping[Preference, Pricer]):
    """One pricer for each preference that has prices, made when it is first asked for."""

    def __init__(self, ledger: Ledger, mix: Mix, usual: Policy) -> None:
        self._ledger = ledger
        self._mix = mix
        self._loaded: dict[Preference, NewPricer] = {}
        self._made: dict[Preference, Pricer] = {}
        for preference in PRICERS.keys() & {usual.nodes, usual.cards}:
            self[preference]  # before any pod waits for it

    def missing(self, policy: Policy) -> set[Preference]:
        """Return the preferences of a policy whose modules are not imported yet."""
        return (PRICERS.keys() & {policy.nodes, policy.cards}) - self._loaded.keys()

    def load(self, preference: Preference) -> None:
        """Import a preference's modules. A thread may call it."""
        self._loaded[preference] = PRICERS[preference]()

    def __getitem__(self, preference: Preference) -> Pricer:
        if preference not in self._made:
            if preference not in self._loaded:
                self.load(preference)
            self._made[preference] = self._loaded[preference](self._ledger, self._mix)
        return self._made[preference]

    def __iter__(self) -> Iterator[Preference]:
        return iter(PRICERS)

    def __len__(self) -> int:
        return len(PRICERS)

    def tick(self) -> None:
        """Let those that are in use do a bit of their work."""
        for pricer in self._made.values():
            pricer.tick()
