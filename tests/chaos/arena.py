"""One control plane for many runs: it is emptied after each, and each has its own operator and kube-scheduler."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Self

import yaml

from chaos import hostile_user
from chaos.admin import Admin
from chaos.claims import SHAPES, claims_path, template, templates_path
from chaos.history import KINDS, History
from chaos.pair import Hands, Pair
from chaos.plan import PRIORITIES, Plan
from chaos.pods import budgets_path, reservations_path, sets_path
from chaos.quotas import quotas_path
from chaos.workloads import CHECKS, FLAVORS, check_body, flavor_body, workloads_path
from cluster.claims import CLASSES, OUR_CLASS
from cluster.cluster import ALLOCATIONS
from control_plane import ControlPlane
from gpuledger.configuration.dialects import policies
from gpuledger.configuration.settings import Settings
from hostile.catalogue import NAMESPACE as HOSTILE
from installation import NO_KUBELET, Installation
from kueue import install_types

Json = dict[str, Any]

RELEASE_DELAY_S = 6
LONGEST_RELEASE_S = 12
SETTINGS = {
    **NO_KUBELET,
    "release_delay_s": RELEASE_DELAY_S,
    "longest_release_s": LONGEST_RELEASE_S,
    "hold_ttl_s": 10,
    "extender_timeout_s": 8,
    "preemption_timeout_s": 15,
    "gang_gather_s": 3,
    "gang_replacement_s": 5,
    "kueue": True,
    "kueue_reserve_s": 8,
    "kueue_retry_s": 5,
    "failure_grace_s": 1,
}
"""Shorter than the defaults, so that all of it happens within a run; the kubelet that is played may be late."""

EMPTY_S = 30.0
USAGES = "/apis/gpuledger.dev/v1alpha1/gpuusages"

EVERYTHING = (
    "/api/v1/nodes",
    ALLOCATIONS,
    "/api/v1/namespaces/default/events",
    budgets_path("default"),
    reservations_path("default"),
    USAGES,
)


class Arena:
    """A control plane with everything installed that a run needs: `with Arena() as arena:`."""

    def __init__(self) -> None:
        self.plane = ControlPlane(durable=True, json_storage=True)
        self._installations: dict[str, Installation] = {}  # name -> installation

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.hands = Hands("control plane")
            stack.callback(self.hands.close)
            self.hands.do(self.plane.start)
            stack.callback(self.plane.stop)
            self.hands.wait()
            self.admin = Admin(self.plane)
            stack.callback(self.admin.close)
            for name, value in PRIORITIES.items():
                body = {"metadata": {"name": name}, "value": value}
                self.admin.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
            install_types(self.plane)
            for path, body in ((CHECKS, check_body()), (FLAVORS, flavor_body())):
                self.admin.request("POST", path, body)
            self.admin.request("POST", CLASSES, OUR_CLASS)
            self._limit_our_account()
            self.add_namespaces((HOSTILE,))
            self._add_templates(("default",))
            self.history = stack.enter_context(History(self.plane.etcd_url))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextlib.contextmanager
    def pairs(self, plan: Plan) -> Iterator[tuple[Mapping[int, Pair], Pair]]:
        """Yield the operators and kube-schedulers of a run, started, and a rival, not started."""
        names = ("one", "two") if plan.has_standby else ("",)
        with ExitStack() as stack:
            pairs = {
                number: stack.enter_context(self._pair(plan, name, replicated=plan.has_standby))
                for number, name in enumerate(names)
            }
            rival = stack.enter_context(self._pair(plan, "rival", replicated=False))
            for pair in pairs.values():
                pair.start_all()
            yield pairs, rival

    def _pair(self, plan: Plan, name: str, replicated: bool) -> Pair:
        parts = (name, "budgets-ignored" if plan.despite_budgets else "", "" if plan.kopf_pods else "plain")
        others = {"preempt_despite_budgets": plan.despite_budgets, "kopf_pods_most_nodes": 100 if plan.kopf_pods else 0}
        installation = self.installation("-".join(filter(None, parts)), replicated, **others)
        return Pair(installation, plan.api_rates, plan.extender_rates, plan.seed)

    def installation(self, name: str, replicated: bool, **others: Any) -> Installation:
        """Return an installation of that name, with other settings."""
        found = self._installations.get(name)
        if found is None:
            found = self._installations[name] = Installation(self.plane, {**SETTINGS, **others}, name, replicated)
            found.install()
        return found

    def _limit_our_account(self) -> None:
        """Apply the policies on what our own account may change: the product has to do with that."""
        found = yaml.safe_load_all(policies(Settings(kueue=True), frozenset({"validating"})))
        ours = [each for each in found if each["metadata"]["name"].startswith("gpuledger-own-")]
        self.plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(ours))

    def _add_templates(self, namespaces: tuple[str, ...]) -> None:
        """Create the templates of claims. One in a namespace that is going is refused."""
        for namespace in namespaces:
            for shape in SHAPES:
                self.admin.try_to("POST", templates_path(namespace), template(shape))

    def add_namespaces(self, names: tuple[str, ...]) -> None:
        """Create namespaces, once earlier ones of that name are gone."""
        for name in names:
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            deadline = time.monotonic() + EMPTY_S
            while self.admin.try_to("POST", "/api/v1/namespaces", body) and time.monotonic() < deadline:
                time.sleep(0.2)
        self._add_templates(names)

    def clear(self, plan: Plan) -> None:
        """Remove everything that a run has left, when its programs have ended. Raises RuntimeError if it stays."""
        for name in plan.namespaces:
            self.admin.try_to("DELETE", f"/api/v1/namespaces/{name}")
        deadline = time.monotonic() + EMPTY_S
        while any(map(self.history.objects, KINDS.values())):
            for namespace in ("default", *plan.namespaces):
                for path_in in (workloads_path, quotas_path, claims_path, sets_path):
                    self.admin.try_to("DELETE", path_in(namespace))
                self.admin.try_to("DELETE", f"/api/v1/namespaces/{namespace}/pods", {"gracePeriodSeconds": 0})
            hostile_user.clear(self.admin)
            for path in EVERYTHING:
                self.admin.try_to("DELETE", path)
            if time.monotonic() > deadline:
                raise RuntimeError("the control plane can't be emptied")
            time.sleep(0.1)
