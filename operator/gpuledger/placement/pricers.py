"""The preferences that have prices, and what these are made from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from gpuledger.ledger.book import Ledger
from gpuledger.placement.decide import Pricer
from gpuledger.placement.fragmentation.best_fit import BestFit
from gpuledger.placement.fragmentation.fgd import Fgd
from gpuledger.placement.fragmentation.mix import Mix
from gpuledger.placement.fragmentation.refresh import FragmentationPrices
from gpuledger.placement.policy import Preference

PRICERS: dict[Preference, Callable[[Ledger, Mix], Pricer]] = {
    Preference.FRAGMENTATION: FragmentationPrices,
    Preference.FGD: Fgd,
    Preference.BEST_FIT: lambda ledger, _: BestFit(ledger),
}


class Pricers(Mapping[Preference, Pricer]):
    """One pricer for each preference that has prices, made when it is first asked for."""

    def __init__(self, ledger: Ledger, mix: Mix) -> None:
        self._ledger = ledger
        self._mix = mix
        self._made: dict[Preference, Pricer] = {}

    def __getitem__(self, preference: Preference) -> Pricer:
        if preference not in self._made:
            self._made[preference] = PRICERS[preference](self._ledger, self._mix)
        return self._made[preference]

    def __iter__(self) -> Iterator[Preference]:
        return iter(PRICERS)

    def __len__(self) -> int:
        return len(PRICERS)

    def tick(self) -> None:
        """Let those that are in use do a bit of their work."""
        for pricer in self._made.values():
            pricer.tick()
