"""A seed decides everything."""

from itertools import pairwise

from chaos.plan import CHAOS_S, HOSTILE_KINDS, SHAPES, Plan, plan
from chaos.pods import SPECS
from chaos.steps import AddNode, Create, CreateClaim, CreateHostile, DeleteHostile, DeleteNode, PlannedPod
from faults.kinds import Weather
from hostile.catalogue import CATALOGUE

SEEDS = range(1, 60)


def test_the_same_seed_gives_the_same_plan() -> None:
    assert plan(7) == plan(7)
    assert plan(7) != plan(8)


def test_every_plan_can_be_carried_out() -> None:
    for made in map(plan, SEEDS):
        assert all(0 <= earlier.at_s <= later.at_s < CHAOS_S for earlier, later in pairwise(made.steps))
        Weather(made.seed, made.api_rates)
        Weather(made.seed, made.extender_rates)
        names = {node.name for node in made.nodes}
        assert all(step.node in names for step in made.steps if isinstance(step, DeleteNode | AddNode | CreateHostile))
        namespaces = {"default", *made.namespaces}
        assert all(step.pod.namespace in namespaces for step in made.steps if isinstance(step, Create))


def _pods_of(made: Plan) -> list[PlannedPod]:
    return [step.pod for step in made.steps if isinstance(step, Create)]


def test_the_plans_together_have_every_kind_of_step_and_of_pod() -> None:
    plans = [plan(seed) for seed in SEEDS]
    kinds = {type(step).__name__ for made in plans for step in made.steps}
    assert kinds == {
        *("Create", "Delete", "DeleteNamespace", "CreateHostile", "DeleteHostile", "SetBudget", "SetQuota"),
        *("CreateClaim", "DeleteClaim", "CreateWorkload", "DeleteWorkload", "CreateReservation", "DeleteReservation"),
        *("CreateReplicas", "MoveAway"),
        *("DeleteNode", "AddNode", "SetAgent", "ChangeCard", "ClaimCard"),
        *("Kill", "Freeze", "StartRival", "RestartApiServer", "RestartEtcd", "HoldWatch", "EndWatch", "StaleEdit"),
    }
    pods = [pod for made in plans for pod in _pods_of(made)]
    assert {pod.shape for pod in pods} == {*SHAPES, "claims"}
    assert {(bool(pod.templates), bool(pod.claims)) for pod in pods if pod.shape == "claims"} == {
        (True, False),
        (False, True),
        (True, True),
    }
    named = {step.name for made in plans for step in made.steps if isinstance(step, CreateClaim)}
    assert {name for pod in pods for name in pod.claims} & named
    assert max(len({pod.gang for pod in _pods_of(made) if pod.gang}) for made in plans) > 8
    assert SPECS.keys() == SHAPES.keys()
    assert {made.has_standby for made in plans} == {True, False}
    assert {made.despite_budgets for made in plans} == {True, False}
    assert {made.kopf_pods for made in plans} == {True, False}


def test_the_plans_together_have_every_hostile_kind_and_each_has_few_at_a_time() -> None:
    played, left = set(), 0
    for made in map(plan, SEEDS):
        there: set[str] = set()
        for step in made.steps:
            if isinstance(step, CreateHostile):
                there.add(step.kind)
            elif isinstance(step, DeleteHostile):
                there.remove(step.kind)
            assert len(there) <= HOSTILE_KINDS
            played |= there
        left += bool(there)
    assert left > len(SEEDS) // 2  # the checks at rest are made beside them
    assert played == CATALOGUE.keys()
