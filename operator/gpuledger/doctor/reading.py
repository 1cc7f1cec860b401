"""Reads a cluster into facts, and renders the objects that this release would install in it.

Parts that can't be read are recorded as such, and the rest is read all the same. The settings of a workload in the
cluster are those of its ConfigMap, with all files and ConfigMaps that they name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any, TypeVar

import aiohttp
import yaml

from gpuledger import __version__
from gpuledger.configuration.dialects import EVERY_KIND, dialects_of, policy_objects, webhook_objects
from gpuledger.configuration.files import config_maps, nodes_config, values_of, with_config_files
from gpuledger.configuration.settings import FROM_CONFIG_MAPS, Settings
from gpuledger.doctor.facts import (
    AGENT,
    BESIDE,
    BY_SETTING,
    OPERATOR,
    AccountAccess,
    Facts,
    Permission,
    Release,
    Unread,
    claims_held,
    failing_container,
    last_complaint,
    name_of,
    pods_held,
)
from gpuledger.formats.admission.rules import AGENT as AGENT_ACCOUNT
from gpuledger.formats.admission.rules import OPERATOR as OPERATOR_ACCOUNT
from gpuledger.formats.admission.webhook import WebhookAddress
from gpuledger.formats.custom_resource.stored_card import API_VERSION, GROUP, PLURAL
from gpuledger.formats.kubernetes.other import LEASE_NAME
from gpuledger.formats.kubernetes.other import LEASE_NAMESPACE as NAMESPACE
from gpuledger.formats.kubernetes.pod import is_finished, is_ready
from gpuledger.formats.resource_claims.claims import DEVICE_CLASS
from gpuledger.formats.scheduler import scheduler_configuration
from gpuledger.kube_api.client import KubeClient
from gpuledger.kube_api.reads import ALLOCATIONS, PODS, KubeReads, claim_objects_of
from gpuledger.model.errors import ApiError, BadInput, Denied, NotFound
from gpuledger.model.json_object import Json
from gpuledger.model.node import NodeConfigs
from gpuledger.workflows.list_and_watch import config_map_contents

SETTINGS_VARIABLE = "GPULEDGER_SETTINGS"


def settings_file(workload: Json, container_name: str) -> tuple[str, str] | None:
    """Return ConfigMap and key of a workload's settings, None if they come from elsewhere.

    `workload` is a Deployment or a DaemonSet.
    """
    for container in _containers(workload, container_name):
        given = {each["name"]: each.get("value", "") for each in container.get("env") or ()}
        path = _flag(_words(container), "--settings") or given.get(SETTINGS_VARIABLE, "")
        return _config_map(workload, container, path) if path else None
    return None


def mounted_file(workload: Json, container_name: str, path: str) -> tuple[str, str] | None:
    """Return ConfigMap and key of the file that a container finds at a path, None if it comes from elsewhere."""
    return next((_config_map(workload, each, path) for each in _containers(workload, container_name)), None)


def scheduler_config_file(workload: Json) -> tuple[str, str] | None:
    """Return ConfigMap and key of kube-scheduler's configuration, None if it comes from elsewhere."""
    for container in _containers(workload):
        words = _words(container)
        if any(word.endswith("kube-scheduler") for word in words[:1]) and (path := _flag(words, "--config")):
            return _config_map(workload, container, path)
    return None


def _containers(workload: Json, name: str | None = None) -> Iterator[Json]:
    """Yield a workload's containers, all or those of this name."""
    containers = workload["spec"]["template"]["spec"]["containers"]
    return (each for each in containers if name in (None, each["name"]))


def _words(container: Json) -> list[str]:
    """Return what a container runs, word by word."""
    return [str(word) for word in (*(container.get("command") or ()), *(container.get("args") or ()))]


def _flag(flags: list[str], name: str) -> str:
    for position, flag in enumerate(flags):
        if flag.startswith(f"{name}="):
            return flag.partition("=")[2]
        if flag == name and position + 1 < len(flags):
            return flags[position + 1]
    return ""


def _config_map(workload: Json, container: Json, path: str) -> tuple[str, str] | None:
    """Return which key of which ConfigMap a container finds at a path."""
    volumes = {each["name"]: each for each in workload["spec"]["template"]["spec"].get("volumes") or ()}
    for mount in container.get("volumeMounts") or ():
        found = volumes.get(mount["name"], {}).get("configMap")
        if found and PurePosixPath(path).is_relative_to(mount["mountPath"]):
            file = mount.get("subPath") or str(PurePosixPath(path).relative_to(mount["mountPath"]))
            keys = {item["path"]: item["key"] for item in found.get("items") or ()}
            return found["name"], keys.get(file, file)
    return None


FILES = (*FROM_CONFIG_MAPS, "vendors_file")
"""Settings that name files, which a workload gets from ConfigMaps, too."""


async def settings_of_workload(client: KubeClient, workload: Json, container: str) -> tuple[str, Settings] | None:
    """Return the name of the ConfigMap, and the settings, of a Deployment or DaemonSet; None if it has none from there.

    Raises BadInput if they can't be used, and what the API server says.
    """
    place = settings_file(workload, container)
    if place is None:
        return None
    reads = KubeReads(client)
    values = values_of(await _text(reads, *place))
    try:
        stated = Settings().changed(values)
    except ValueError as error:
        raise BadInput(str(error)) from error
    contents = await config_map_contents(client, config_maps(stated))
    for option in FILES:
        path = getattr(stated, option)
        found = mounted_file(workload, container, path) if path and option not in contents else None
        if found is not None:
            contents[option] = await _text(reads, *found)
    return place[0], with_config_files(stated, values, contents)


async def _text(reads: KubeReads, config_map: str, key: str) -> str:
    data = await reads.config_map(NAMESPACE, config_map)
    if key not in data:
        raise BadInput(f"ConfigMap {NAMESPACE}/{config_map} has no key {key}")
    return data[key]


logger = logging.getLogger(__name__)

Value = TypeVar("Value")


async def tried(what: str, needs: str, read: Callable[[], Awaitable[Value]]) -> Value | Unread:
    """Return the result of a read, or the reason why it failed."""
    try:
        return await read()
    except (ApiError, BadInput) as error:
        logger.debug("%s: %s", what, error)
        return Unread(what, _why(error, what), needs)


def _why(error: Exception, what: str) -> str:
    if isinstance(error, Denied) and error.status == 403:
        return f"your account may not read {what}"
    return f"{what} can't be read: {error}"


def release_for(settings: Settings) -> Release:
    """Return the objects that belong to these settings. Raises BadInput for a table of vendors that can't be used."""
    dialects, names = dialects_of(settings), settings.scheduler_names
    return Release(
        dialects=dialects,
        scheduler_names=names,
        version=__version__,
        policies=policy_objects(settings),
        webhooks=webhook_objects(settings, EVERY_KIND, WebhookAddress()),
        scheduler_config=scheduler_configuration(
            names,
            dialects,
            settings.extender_url,
            settings.extender_timeout_s,
            leader_elect=True,
            nodes_offered=settings.nodes_offered,
            native_gangs=settings.native_gangs,
            resource_claims=settings.resource_claims,
        ),
        preemption=settings.preemption,
        topology="topology" in settings.policies,
        with_cdi=settings.delivery == "cdi",
        native_gangs=settings.native_gangs,
        resource_claims=settings.resource_claims,
        webhook_port=settings.webhook_port,
        isolation="none" if settings.devices_file else settings.isolation,
        hides_pods=settings.hide_from_autoscalers,
        keep_nodes=settings.keep_nodes_in_use,
        has_stand_ins=settings.growth == "stand-ins",
        only_labelled=settings.admission_namespaces == "labelled",
        nodes=_nodes_config(settings),
    )


def _nodes_config(settings: Settings) -> NodeConfigs | None:
    try:
        return nodes_config(settings)
    except BadInput:  # a file that only the agents have, or that they refuse as well
        return None


ADMISSION = "/apis/admissionregistration.k8s.io/v1"
APPS = f"/apis/apps/v1/namespaces/{NAMESPACE}"
OURS = f"/api/v1/namespaces/{NAMESPACE}"
LEASES = "/apis/coordination.k8s.io/v1/namespaces"
TYPES = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
AUTHORIZATION = "/apis/authorization.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a fact is read: an object, which need not be there, or a list."""

    what: str
    resource: str
    """What an account needs a permission on."""
    path: str
    verb: str = "get"
    """"get" for an object, "list" for a list."""
    is_optional: bool = False
    """Whether the API server need not know the kind of a list."""
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def may_be_absent(self) -> bool:
        """Return whether what is not there is None, and not something that could not be read."""
        return self.is_optional or self.verb == "get"


CRD = f"{PLURAL}.{GROUP}"
NODE_POOLS = "nodepools.karpenter.sh"
ALIVE = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
CLAIMS, CLASSES = (claim_objects_of(kind) for kind in ("resourceclaims", "deviceclasses"))

SOURCES = {
    "crd": Source("the CRD", f"customresourcedefinitions {CRD}", f"{TYPES}/{CRD}"),
    "deployment": Source("deployment gpuledger", f"deployments in {NAMESPACE}", f"{APPS}/deployments/gpuledger"),
    "daemon_set": Source(
        "daemonset gpuledger-agent", f"daemonsets in {NAMESPACE}", f"{APPS}/daemonsets/gpuledger-agent"
    ),
    "lease": Source("the schedulers' Lease", f"leases in {NAMESPACE}", f"{LEASES}/{NAMESPACE}/leases/{LEASE_NAME}"),
    "device_class": Source("the DeviceClass", "deviceclasses.resource.k8s.io", f"{CLASSES}/{DEVICE_CLASS}"),
    "claims": Source("the ResourceClaims", "resourceclaims.resource.k8s.io", CLAIMS, "list", is_optional=True),
    "our_pods": Source("the pods of gpuledger-system", f"pods in {NAMESPACE}", f"{OURS}/pods", "list"),
    "nodes": Source("the nodes", "nodes", "/api/v1/nodes", "list"),
    "pods": Source("the pods of all namespaces", "pods", PODS, "list", parameters=ALIVE),
    "namespaces": Source("the namespaces", "namespaces", "/api/v1/namespaces", "list"),
    "karpenter": Source("Karpenter's CRD", f"customresourcedefinitions {NODE_POOLS}", f"{TYPES}/{NODE_POOLS}"),
    "cluster_autoscaler": Source(
        "cluster-autoscaler's Lease", "leases in kube-system", f"{LEASES}/kube-system/leases/cluster-autoscaler"
    ),
    "node_leases": Source("the nodes' Leases", "leases in kube-node-lease", f"{LEASES}/kube-node-lease/leases", "list"),
}
"""Field of Facts -> where it is read."""

POLICY_KINDS = (
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionPolicyBinding",
)
WEBHOOK_KINDS = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
OUR_PREFIX = "gpuledger-"
OUR_WEBHOOKS = "gpuledger"

REVIEWS_AT_ONCE = 8
"""Some forty are asked for, and the API server has others to serve."""

LOGS = 8
LOG_LINES = "50"
LOG_TIMEOUT_S = 5.0
"""The kubelet of a node is asked, which may be what is wrong."""

GIVEN = "the settings given with --settings"


class Reading:
    """One look at a cluster. `settings` and `scheduler_configs` are files that the caller has named.

    `operator_elsewhere` is the address of an operator that has answered there; empty if the caller has named none.
    """

    def __init__(
        self,
        client: KubeClient,
        settings: Settings | None = None,
        scheduler_configs: Mapping[str, Json] | None = None,
        operator_elsewhere: str = "",
    ) -> None:
        self._client, self._reads = client, KubeReads(client)
        self._given, self._scheduler_configs = settings, dict(scheduler_configs or {})
        self._operator_elsewhere = operator_elsewhere
        self._reviewing = asyncio.Semaphore(REVIEWS_AT_ONCE)

    async def all(self) -> Facts:
        """Read all that any check needs. Raises ApiError if the API server does not answer, or does not know us."""
        version = await self._version()
        reads = {name: self._read(source) for name, source in SOURCES.items()} | {
            "policies": self._policies(),
            "webhooks": self._webhooks(),
            "ledger": self._ledger(),
            "operator_access": self._access(OPERATOR_ACCOUNT, (*OPERATOR, *BESIDE, *BY_SETTING)),
            "agent_access": self._access(AGENT_ACCOUNT, AGENT),
        }
        found = dict(zip(reads, await asyncio.gather(*reads.values()), strict=True))
        ledger = found.pop("ledger")
        found |= dict.fromkeys(("cards", "claims_held", "pods_held"), ledger) if isinstance(ledger, Unread) else ledger
        settings, chosen = await self._settings(found["deployment"], found["daemon_set"])
        found["crd"], configs, last_words = await asyncio.gather(
            self._seen_crd(found["crd"]), self._configs(found["deployment"]), self._last_words(found["our_pods"])
        )
        server_time, local_time = await self._clock()
        return Facts(
            local_time=local_time,
            server_time=server_time,
            release=_release(chosen),
            version=version,
            settings=settings,
            operator_elsewhere=self._operator_elsewhere,
            scheduler_configs=configs,
            last_words=last_words,
            **found,
        )

    async def before_the_operator(self) -> Facts:
        """Read what the operator needs before it starts, as its own account. Raises as `all`."""
        version, crd = await self._version(), await self._seen_crd(await self._read(SOURCES["crd"]))
        return Facts(
            local_time=datetime.now(UTC),
            release=_release(self._given or Settings()),
            version=version,
            crd=crd,
            operator_access=await self._access("this account", (*OPERATOR, *BESIDE), own=True),
        )

    async def _read(self, source: Source) -> Any:
        """Return an object, or the objects of a list; what keeps it from being read; None for what is not there."""

        async def read() -> list[Json] | Json | None:
            try:
                if source.verb == "list":
                    return await self._listed(source.path, source.parameters)
                return await self._client.request("GET", source.path)
            except NotFound:
                if source.may_be_absent:
                    return None
                raise

        return await tried(source.what, f"`{source.verb}` on {source.resource}", read)

    async def _version(self) -> tuple[int, int] | Unread:
        """Return the version. Raises ApiError where an API server that says nothing will not say more."""
        try:
            return await self._reads.server_version()
        except Denied as error:
            if error.status == 403:
                return Unread("the API server's version", "your account may not read it", "`get` on /version")
            raise

    async def _clock(self) -> tuple[datetime | Unread, datetime]:
        async def ask() -> datetime:
            found = await self._client.server_time()
            if found is None:
                raise BadInput("its responses have no Date header")
            return found

        begin = datetime.now(UTC)
        found = await tried("the API server's clock", "an API server whose responses have a Date header", ask)
        return found, begin + (datetime.now(UTC) - begin) / 2

    async def _seen_crd(self, crd: Json | Unread | None) -> Json | Unread | None:
        """Return the CRD, or that there is none: every account can see that."""
        if isinstance(crd, Unread):
            try:
                await self._client.request("GET", f"/apis/{API_VERSION}")
            except NotFound:
                return None
            except ApiError:
                return crd
        return crd

    async def _policies(self) -> Mapping[tuple[str, str], Json] | Unread:
        async def read() -> Mapping[tuple[str, str], Json]:
            lists = await asyncio.gather(*(self._listed_or_none(f"{ADMISSION}/{_plural(k)}") for k in POLICY_KINDS))
            return {
                (kind, item["metadata"]["name"]): item
                for kind, items in zip(POLICY_KINDS, lists, strict=True)
                for item in items
                if item["metadata"]["name"].startswith(OUR_PREFIX)
            }

        needs = f"`list` on {', '.join(map(_plural, POLICY_KINDS))}"
        return await tried("the admission policies", needs, read)

    async def _webhooks(self) -> Sequence[Json] | Unread:
        async def read() -> Sequence[Json]:
            found = []
            for kind in WEBHOOK_KINDS:
                try:
                    item = await self._client.request("GET", f"{ADMISSION}/{_plural(kind)}/{OUR_WEBHOOKS}")
                except NotFound:
                    continue
                found.append({**item, "kind": kind})
            return found

        return await tried("the webhook's configuration", f"`get` on {', '.join(map(_plural, WEBHOOK_KINDS))}", read)

    async def _ledger(self) -> Mapping[str, Any] | Unread:
        """Return the Facts that come from GPUAllocations, by name."""

        async def read() -> Mapping[str, Any]:
            found = await self._listed_or_none(ALLOCATIONS)
            status = {item["metadata"]["name"]: item.get("status") or {} for item in found}
            phases = {name: str(each.get("phase") or "") for name, each in status.items()}
            return {
                "cards": phases,
                "claims_held": claims_held(status.values()),
                "pods_held": pods_held(status.values()),
            }

        return await tried("the ledger", f"`list` on {PLURAL}.{GROUP}", read)

    async def _settings(
        self, deployment: Json | Unread | None, daemon_set: Json | Unread | None
    ) -> tuple[Mapping[str, Mapping[str, object]] | Unread, Settings | Unread]:
        """Return all settings that are found, and those that count: the given ones, or the operator's."""
        found: dict[str, Settings] = {GIVEN: self._given} if self._given else {}
        problem: Unread | None = None
        for workload, container, kind in (
            (deployment, "operator", "Deployment gpuledger"),
            (daemon_set, "agent", "DaemonSet gpuledger-agent"),
        ):
            read = await self._settings_of(workload, container)
            if isinstance(read, Unread):
                problem = problem or read
            elif read is not None:
                found[f"{kind}, ConfigMap {read[0]}"] = read[1]
        if not found:
            why = "the Deployment gpuledger names no ConfigMap with settings, or it does not exist"
            problem = problem or Unread("the settings", why, "--settings FILE")
        shown = problem or {where: asdict(settings) for where, settings in found.items()}
        return shown, next(iter(found.values()), problem or Settings())

    async def _settings_of(
        self, workload: Json | Unread | None, container: str
    ) -> tuple[str, Settings] | Unread | None:
        """Return a workload's ConfigMap and the settings in it, None if it has none of them there."""
        if workload is None or isinstance(workload, Unread):
            return workload
        where = settings_file(workload, container)
        if where is None:
            return None

        async def read() -> tuple[str, Settings] | None:
            return await settings_of_workload(self._client, workload, container)

        needs = f"`get` on configmaps in {NAMESPACE}, and on those that the settings name; or --settings FILE"
        return await tried(f"the settings in ConfigMap {where[0]}", needs, read)

    async def _configs(self, deployment: Json | Unread | None) -> Mapping[str, Json] | Unread:
        where = None if deployment is None or isinstance(deployment, Unread) else scheduler_config_file(deployment)
        if where is None:
            return self._scheduler_configs
        name, key = where

        async def read() -> Mapping[str, Json]:
            data = (await self._client.request("GET", f"{OURS}/configmaps/{name}")).get("data") or {}
            content = yaml.safe_load(data.get(key, ""))
            if not isinstance(content, dict):
                raise BadInput(f"its {key} is not a KubeSchedulerConfiguration")
            return {**self._scheduler_configs, f"ConfigMap {NAMESPACE}/{name}": content}

        return await tried("kube-scheduler's configuration", f"`get` on configmaps in {NAMESPACE}", read)

    async def _access(
        self, account: str, permissions: Sequence[Permission], own: bool = False
    ) -> AccountAccess | Unread:
        async def read() -> AccountAccess:
            answers = await asyncio.gather(*(self._may(account, each, own) for each in permissions))
            denied = tuple(each for each, may in zip(permissions, answers, strict=True) if not may)
            return AccountAccess(account, denied)

        kind = "selfsubjectaccessreviews" if own else "subjectaccessreviews"
        return await tried(f"the permissions of {account}", f"`create` on {kind}", read)

    async def _may(self, account: str, permission: Permission, own: bool) -> bool:
        namespace = account.split(":")[2] if account.startswith("system:serviceaccount:") else ""
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
        who = {} if own else {"user": account, "groups": groups}
        kind = "SelfSubjectAccessReview" if own else "SubjectAccessReview"
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": kind,
            "spec": {**who, "resourceAttributes": permission.attributes()},
        }
        async with self._reviewing:
            answer = await self._client.request("POST", f"{AUTHORIZATION}/{kind.lower()}s", review)
        return (answer.get("status") or {}).get("allowed") is True

    async def _last_words(self, our_pods: Sequence[Json] | Unread) -> Mapping[str, str]:
        """Return the ends of the logs of pods that are not Ready, of as many as can be asked at once."""
        if isinstance(our_pods, Unread):
            return {}
        silent = [pod for pod in our_pods if not is_ready(pod) and not is_finished(pod) and failing_container(pod)]
        asked = silent[:LOGS]
        texts = await asyncio.gather(*(self._log(pod) for pod in asked))
        return {name_of(pod): text for pod, text in zip(asked, texts, strict=True)}

    async def _log(self, pod: Json) -> str:
        container = failing_container(pod) or {}
        path = f"{OURS}/pods/{name_of(pod)}/log"
        parameters = {"container": str(container.get("name")), "tailLines": LOG_LINES}
        try:
            async with asyncio.timeout(LOG_TIMEOUT_S), self._client.stream(path, parameters, LOG_TIMEOUT_S) as lines:
                return last_complaint([line.decode(errors="replace") async for line in lines])
        except Denied:
            return "your account may not read it; needs `get` on pods/log"
        except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as error:
            logger.debug("%s: %r", path, error)
            return "it can't be read"

    async def _listed(self, path: str, parameters: Mapping[str, str] | None = None) -> list[Json]:
        return [item async for page in self._client.pages(path, parameters) for item in page]

    async def _listed_or_none(self, path: str) -> list[Json]:
        """Return the objects of a kind, none where the API server does not know it."""
        try:
            return await self._listed(path)
        except NotFound:
            return []


def _release(settings: Settings | Unread) -> Release | Unread:
    if isinstance(settings, Unread):
        return settings
    try:
        return release_for(settings)
    except BadInput as error:
        return Unread("the settings", str(error), "--settings FILE")


def _plural(kind: str) -> str:
    """Return the resource of a kind of admission."""
    lower = kind.lower()
    return f"{lower[:-1]}ies" if lower.endswith("y") else f"{lower}s"
