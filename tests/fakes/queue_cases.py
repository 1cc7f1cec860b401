"""Objects that name a queue in Volcano's or KAI's words, or do not; and the LocalQueue that they are to go to."""

from __future__ import annotations

from typing import Any

from fakes.objects import GPU

Json = dict[str, Any]

VOLCANO, VOLCANO_BATCH = "scheduling.volcano.sh/queue-name", "volcano.sh/queue-name"
KAI, RUNAI = "kai.scheduler/queue", "runai/queue"
KUEUE = "kueue.x-k8s.io/queue-name"

WORDS: list[Json] = [
    {"annotations": {VOLCANO: "team"}},
    {"annotations": {VOLCANO_BATCH: "team"}},
    {"labels": {VOLCANO_BATCH: "team"}},
    {"labels": {KAI: "team"}},
    {"labels": {RUNAI: "team"}},
]
"""All ways to say it."""


def a_template(metadata: Json, limits: Json | None = None, **spec: Any) -> Json:
    """Return a template of pods that ask for a card, unless for something else."""
    resources = {"limits": {GPU: "1"} if limits is None else limits}
    main = {"name": "main", "image": "none", "resources": resources}
    return {"metadata": metadata, "spec": {"containers": [main], "restartPolicy": "Never", **spec}}


def a_pod(metadata: Json, limits: Json | None = None, **spec: Any) -> Json:
    """Return a pod of the same kind."""
    template = a_template({"name": "named", **metadata}, limits, **spec)
    return {"apiVersion": "v1", "kind": "Pod", **template}


def a_job(metadata: Json, of_template: Json, limits: Json | None = None, **spec: Any) -> Json:
    """Return a Job of such pods."""
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "named", **metadata}}
    return {**body, "spec": {"template": a_template(of_template, limits, **spec)}}


BY_VOLCANO, BY_KAI = WORDS[0], WORDS[3]
LONGEST = "q" * 63
FIRST = {**a_template({})["spec"]["containers"][0], "name": "first"}

QUEUED: dict[str, tuple[Json, str]] = {
    **{f"pod {index}": (a_pod(words), "team") for index, words in enumerate(WORDS)},
    **{f"job {index}": (a_job(words, {}), "team") for index, words in enumerate(WORDS)},
    **{f"template {index}": (a_job({}, words), "team") for index, words in enumerate(WORDS)},
    "pod with other labels": (a_pod({**BY_VOLCANO, "labels": {"app": "x"}}), "team"),
    "longest name": (a_pod({"annotations": {VOLCANO: LONGEST}}), LONGEST),
    "first that is a name": (a_pod({"annotations": {VOLCANO: "Team"}, **BY_KAI}), "team"),
    "the job before its template": (a_job({"labels": {KAI: "mine"}}, BY_VOLCANO), "mine"),
    "init container": (a_pod(BY_KAI, {}, initContainers=[FIRST]), "team"),
    "no word": (a_job({}, {}), ""),
    "no cards": (a_job(BY_VOLCANO, BY_KAI, {"cpu": "1"}), ""),
    "none of the cards": (a_job(BY_VOLCANO, {}, {GPU: "0"}), ""),
    "another scheduler": (a_job(BY_KAI, {}, schedulerName="volcano"), ""),
    "too long": (a_pod({"annotations": {VOLCANO: f"{LONGEST}q"}}), ""),
    "capitals": (a_job({"annotations": {VOLCANO: "Team"}}, {}), ""),
    "a path": (a_job({}, {"annotations": {VOLCANO: "root/team"}}), ""),
    "dots": (a_job({}, {"labels": {KAI: "team.a"}}), ""),
    "empty": (a_pod({"annotations": {VOLCANO: ""}}), ""),
}
"""Name -> an object, and its LocalQueue; empty for one that is left alone."""

KEPT: list[Json] = [
    a_pod({"annotations": {VOLCANO: "team"}, "labels": {KUEUE: "mine"}}),
    a_job({"labels": {KUEUE: "mine"}}, BY_VOLCANO),
    a_job({**BY_VOLCANO, "labels": {"app": "x"}}, {"labels": {KUEUE: "mine"}}),
]
"""Objects in which a user has written Kueue's label: it stays as it is, and where it is."""
