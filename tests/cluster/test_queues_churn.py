"""Many jobs of several queues that lend and take back: quota and ledger agree at every rest, and every job ends."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from operator import itemgetter

import pytest

from cluster.cluster import CORES, COUNT, PERCENT, Json, RequestFailed
from cluster.guarantees import Job, Scene, owed
from cluster.queues import CORES as SUM_CORES
from cluster.queues import JOBS, WORKLOADS, Queues, queues_cluster
from effort import seeds_for, times
from gpuledger.formats.quantity import whole_number
from kueue import API

OWN = {"a": 600, "b": 400, "c": 400, "d": 200}
"""Percents of cards: of 16 cards, all together."""
JOBS_IN_ALL = times(24, 600)
"""About half an hour of them by `make test-all`, on two cores."""
AT_ONCE = 12
REST_S = 60.0
GRACE_S = 30.0
"""So long a job may be kept from what its queue is guaranteed: pods have to leave, and Kueue to admit others again."""
LABEL = "kueue.x-k8s.io/cluster-queue-name"


@pytest.fixture(scope="module")
def queues() -> Iterator[Queues]:
    with queues_cluster() as found:
        found.cluster.add_nodes(4, gpus=4)
        for name, cores in OWN.items():
            found.add(name, cores)
        yield found


class Churn:
    """Jobs that come and end in an order that a seed decides."""

    def __init__(self, queues: Queues, seed: int) -> None:
        self.queues = queues
        self.cluster = queues.cluster
        self.random = random.Random(seed)  # noqa: S311 - no secret
        self.created: dict[str, Job] = {}
        self.names = f"job-{seed % 1000}"
        self._owed: dict[str, float] = {}  # since when
        self.longest_s = 0.0
        """How long a job was kept from what its queue is guaranteed, at most."""
        self.evicted: set[tuple[str, str]] = set()
        """The reasons for which workloads were evicted, with their UID and the moment."""

    def create(self) -> None:
        """Create a job of one to four pods, of whole cards or of parts; some of them are gangs."""
        name, pods = f"{self.names}-{len(self.created) + 1}", self.random.randint(1, 4)
        cards, percent = self.random.choice([(1, 100), (2, 100), (4, 100), (1, 25), (1, 50), (2, 50), (4, 60)])
        limits = {COUNT: cards} if percent == 100 else {COUNT: cards, PERCENT: percent, CORES: percent}
        gang = {"gpuledger.dev/gang": name, "gpuledger.dev/gang-minimum": str(pods)}
        labels = gang if pods > 1 and self.random.random() < 0.3 else {}
        job = self.created[name] = Job(name, self.random.choice([*OWN]), cards, percent, pods)
        self.queues.job(name, job.queue, limits, cards * percent, pods, labels=labels)

    def jobs(self) -> dict[str, Json]:
        """Return the jobs that have not ended."""
        found = self.cluster.request("GET", JOBS)["items"]
        return {job["metadata"]["name"]: job for job in found if not job["status"].get("completionTime")}

    def finish_one(self) -> None:
        """Let one of the jobs that run come to its end."""
        running = self.queues.running(*self.jobs())
        if running:
            for pod in self.queues.bound(self.random.choice(running)):
                with suppress(RequestFailed):  # evicted just now
                    self.cluster.finish(pod["metadata"]["name"])

    def rest(self) -> None:
        """Wait until all that is admitted runs, and quota and ledger agree."""
        begin_s = time.monotonic()
        while found := self._not_at_rest():
            assert time.monotonic() < begin_s + REST_S, found
            time.sleep(0.2)

    def _not_at_rest(self) -> str:
        """Return what is not as it should be, empty if all is. Jobs that have ended are deleted, with their pods."""
        for job in self.cluster.request("GET", JOBS)["items"]:
            if job["status"].get("completionTime") and not job["metadata"].get("deletionTimestamp"):
                self.queues.delete(job["metadata"]["name"])
        pods = self.cluster.pods().items()
        if ended := [name for name, pod in pods if pod["status"].get("phase") == "Succeeded"]:
            with suppress(RequestFailed):  # gone by now
                self.cluster.delete(*ended)  # a job that was evicted just then goes on with the others
            return f"pods that have ended: {ended}"
        uids, holders = {pod["metadata"]["uid"] for _, pod in pods}, self.cluster.holders().values()
        if gone := {each["podUID"] for some in holders for each in some} - uids:
            return f"shares of pods that are gone: {gone}"
        admitted = {job for job in self.jobs() if self.queues.condition(job, "Admitted")}
        if waiting := admitted - set(self.queues.running(*admitted)):
            return f"admitted, and not all pods run: {self._story(waiting)}"
        usage, held = self.usage(), self.held()
        if usage != held:
            return f"Kueue counts {usage}, the ledger {held}"
        if kept := self.observe():
            return f"kept from what their queues are guaranteed: {kept}"
        try:
            self.cluster.check_consistent()
        except (AssertionError, KeyError) as error:  # Kueue may take back again meanwhile
            return repr(error)
        return ""

    def observe(self) -> dict[str, float]:
        """Return which jobs are kept from what their queues are guaranteed, and for how long that was seen so."""
        scene = self._scene()
        if scene is not None:
            now_s = time.monotonic()
            self._owed = {name: self._owed.get(name, now_s) for name in owed(scene)}
            kept = {name: now_s - since_s for name, since_s in self._owed.items()}
            self.longest_s = max(self.longest_s, *kept.values(), 0.0)
            assert self.longest_s < GRACE_S, (kept, scene, self._story(set(kept)))
            return kept
        return {}

    def _scene(self) -> Scene | None:
        """Return the queues as they are; None while room is reserved for pods that have not come: nobody sees it."""
        states: dict[str, list[tuple[str, Job]]] = {"": [], "QuotaReserved": [], "Admitted": []}
        holding = self._holding()
        there = self.jobs()
        for workload in self.cluster.request("GET", WORKLOADS)["items"]:
            job, status = self.created[workload["metadata"]["ownerReferences"][0]["name"]], workload.get("status", {})
            true = {each["type"]: each for each in status.get("conditions", []) if each["status"] == "True"}
            if evicted := true.get("Evicted"):
                self.evicted.add((evicted["reason"], workload["metadata"]["uid"] + evicted["lastTransitionTime"]))
            if job.name not in there or "Finished" in true:
                continue
            state = next((state for state in ("Admitted", "QuotaReserved") if state in true), "")
            states[state].append((true[state]["lastTransitionTime"] if state else "", job))
            is_ready = any(check["state"] == "Ready" for check in status.get("admissionChecks", []))
            ended = there[job.name]["status"].get("succeeded", 0)
            if is_ready and len([name for name in holding.values() if name == job.name]) + ended < job.pods:
                return None
        admitted = [job for _, job in sorted(states["Admitted"], key=itemgetter(0), reverse=True)]
        without_quota, without_cards = ([job for _, job in states[state]] for state in ("", "QuotaReserved"))
        held: dict[tuple[str, str], Counter[str]] = {}
        for uuid, card in self.cluster.cards().items():
            held[(card["spec"]["nodeName"], uuid)] = holders = Counter[str]()
            for each in card.get("status", {}).get("holders", []):
                holders[holding.get(each["podUID"], each["podUID"])] += each["cores"]
        return Scene(OWN, self.usage("flavorsReservation"), without_quota, without_cards, admitted, held)

    def _holding(self) -> dict[str, str]:
        """Return the jobs of the pods that hold cards, by the UIDs of these."""
        holders = {each["podUID"] for some in self.cluster.holders().values() for each in some}
        pods = (pod["metadata"] for pod in self.cluster.pods().values())
        return {pod["uid"]: pod["labels"]["job-name"] for pod in pods if pod["uid"] in holders}

    def _story(self, jobs: set[str]) -> dict[str, object]:
        """Return what is known of jobs and their pods."""
        pods = {name: pod for name, pod in self.cluster.pods().items() if pod["metadata"]["labels"]["job-name"] in jobs}
        told = {name: (pod["spec"].get("nodeName"), self.cluster.messages(name)) for name, pod in pods.items()}
        return {job: self.jobs()[job]["status"] for job in jobs} | told

    def usage(self, counted: str = "flavorsUsage") -> dict[str, int]:
        """Return what Kueue counts for each queue, in percents of cards."""
        found = self.cluster.request("GET", f"/apis/{API}/clusterqueues")["items"]
        return {
            queue["metadata"]["name"]: sum(
                whole_number(resource["total"])
                for flavor in queue["status"].get(counted, [])
                for resource in flavor["resources"]
                if resource["name"] == SUM_CORES
            )
            for queue in found
        }

    def held(self) -> dict[str, int]:
        """Return what the ledger has for the pods of each queue."""
        pods = (pod["metadata"] for pod in self.cluster.pods().values())
        queue_of = {pod["uid"]: pod["labels"].get(LABEL) for pod in pods}
        held = dict.fromkeys(OWN, 0)
        for holders in self.cluster.holders().values():
            for holder in holders:
                if queue_of.get(holder["podUID"]) in held:
                    held[queue_of[holder["podUID"]]] += holder["cores"]
        return held


@pytest.mark.timeout(times(300, 3_600))
@pytest.mark.parametrize("seed", seeds_for("queues", 1))
def test_quota_and_ledger_agree_at_every_rest_and_every_job_ends(
    queues: Queues, seed: int, say: Callable[[str], None]
) -> None:
    churn, begin_s = Churn(queues, seed), time.monotonic()
    while len(churn.created) < JOBS_IN_ALL or churn.jobs():
        there = len(churn.jobs())
        few = there < AT_ONCE // 2 or (there < AT_ONCE and churn.random.random() < 0.6)
        if len(churn.created) < JOBS_IN_ALL and few:
            churn.create()
        else:
            churn.finish_one()
        churn.observe()
        if churn.random.random() < 0.2 or len(churn.created) == JOBS_IN_ALL:
            churn.rest()
    churn.rest()
    assert churn.held() == dict.fromkeys(OWN, 0)
    took_s, metrics = time.monotonic() - begin_s, queues.cluster.installation.metrics()
    said = {state: int(metrics[f'gpuledger_workload_checks_total{{state="{state}"}}']) for state in ("Ready", "Retry")}
    reasons = dict(Counter(reason for reason, _ in churn.evicted))
    say(
        f"{JOBS_IN_ALL} jobs of four queues in {took_s:.0f} s; the check said {said}; evicted: {reasons}; "
        f"a job was kept from what its queue is guaranteed for {churn.longest_s:.1f} s at most"
    )
