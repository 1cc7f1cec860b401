"""The machine of test_ledger_machine.py says something about holds only if it makes many, some of them side by side."""

from collections import Counter

from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from properties.test_ledger_machine import LedgerMachine


def test_the_machine_makes_many_holds_and_some_expire_while_others_stay() -> None:
    """Hypothesis draws from constants of the modules that are loaded, so the choices depend on the tests before."""
    happened: Counter[str] = Counter()

    class Counted(LedgerMachine):
        def teardown(self) -> None:
            happened.update(self.happened)

    run_state_machine_as_test(
        Counted, settings=settings(max_examples=80, stateful_step_count=30, derandomize=True, database=None)
    )
    assert happened["seats that were taken"] > happened["seats that were tried"] / 2
    assert happened["made beside another"] >= 100
    assert happened["offers that were taken back"] >= 12
    assert happened["expired while another stayed"] >= 40
