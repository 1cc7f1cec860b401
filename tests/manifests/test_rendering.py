"""What the chart makes of its values: the kustomize base, the presets, the versions."""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import build_control_plane
import container_image
from chart import MANIFESTS, REPOSITORY, alert_rules, base
from gpuledger import __version__
from gpuledger.agent.devices.yaml_source import YamlSource
from gpuledger.agent.isolation.choice import MPS_MEMORY
from gpuledger.agent.isolation.mps_daemons import QUIT_S
from gpuledger.configuration.settings import Settings
from gpuledger.controller import extender_server
from gpuledger.doctor.cluster_checks import WITH_AGENTS
from gpuledger.formats.kubernetes.other import HISTORY_AUDIENCE, LEASE_DURATION_S, RENEW_DEADLINE_S, RETRY_PERIOD_S
from gpuledger.workflows.kinds import AUDIT_SELECTOR
from manifests.helm import BEFORE_POLICIES, CHART, KUBERNETES, NAMESPACE, PRESETS, Helm, Json, preset
from native_gangs import BY_VERSION

AGENT, OPERATOR, MPS = ("DaemonSet", "gpuledger-agent"), ("Deployment", "gpuledger"), ("DaemonSet", "gpuledger-mps")
FAIL_OVER_S, TAKE_OVER_S = 20.0, 3.0
"""Within which time the next pod is bound, and what of it is left to the replica that then has the Lease."""

LONGEST_RETRY = 2.2
"""kube-scheduler's pauses are as long as the retry period at least, and so many times as long at most."""

VERSIONS = yaml.safe_load((CHART / "values.yaml").read_text())["scheduler"]["versions"]


def containers(workload: Json) -> dict[str, Json]:
    spec = workload["spec"]["template"]["spec"]
    return {each["name"]: each for each in [*spec.get("initContainers", []), *spec["containers"]]}


def settings(objects: dict[tuple[str, str], Json]) -> Settings:
    """Return the settings as the program reads them."""
    return Settings().changed(yaml.safe_load(objects["ConfigMap", "gpuledger-settings"]["data"]["settings.yaml"]))


def scheduler_command(objects: dict[tuple[str, str], Json]) -> list[str]:
    return list(containers(objects[OPERATOR])["kube-scheduler"]["command"])


def scheduler_image(objects: dict[tuple[str, str], Json]) -> str:
    return str(containers(objects[OPERATOR])["kube-scheduler"]["image"])


# One source.


def test_the_kustomize_base_is_what_the_chart_gives(helm: Helm) -> None:
    for path, text in base(helm.program).items():
        assert path.read_text() == text, f"{path}: run `make generate` and commit it"


def test_no_manifest_is_written_by_hand_but_those_that_the_chart_copies(helm: Helm) -> None:
    """A new file beside the chart would drift from it."""
    found = {path for path in MANIFESTS.rglob("*.yaml") if not path.is_relative_to(CHART)}
    by_hand = {path for path in found if path.name == "kustomization.yaml"} | {MANIFESTS / "monitoring" / "rules.yaml"}
    from_code = ("admission/validating.yaml", "admission/mutating.yaml", "agent/policy.yaml")
    assert found - by_hand - {MANIFESTS / name for name in from_code} == set(base(helm.program))


NOT_IN_EVERY_RELEASE = ("webhook", "monitoring", "over-hami", "keep-nodes", "growth", "mps")


def test_a_release_has_what_the_base_has(helm: Helm) -> None:
    """Beyond the label that kustomize sets, and what each does in its own way to roll the pods."""
    of_base = {
        (each["kind"], each["metadata"]["name"]): each
        for path, text in base(helm.program).items()
        if path.parent.name not in NOT_IN_EVERY_RELEASE and path.name != "settings.yaml"
        for each in yaml.safe_load_all(text)
    }
    objects = helm.objects(namespace={"create": True}, audit={"enabled": True})
    assert of_base.keys() <= objects.keys()
    for key, wanted in of_base.items():
        found = objects[key]
        assert found["metadata"]["labels"].pop("app.kubernetes.io/part-of") == "gpuledger"
        if not found["metadata"]["labels"]:
            del found["metadata"]["labels"]
        found.get("spec", {}).get("template", {}).get("metadata", {}).pop("annotations", None)
        assert found == wanted


DIFFERENCES = {
    ("Namespace", "gpuledger-system"): "kustomize",
    ("Pod", "gpuledger-test"): "Helm",
}
"""What only one of the two installs -> which. docs/helm.md names each."""

HELMS_OWN = ("helm.sh/resource-policy", "gpuledger.dev/settings")
"""Annotations that only a release has: for the ledger, which stays, and to roll pods when settings change."""


def kustomized() -> dict[tuple[str, str], Json]:
    """Return (kind, name) -> object of `kubectl apply -k manifests/`; the ConfigMap's name without its hash."""
    kubectl = build_control_plane.ensure_binaries() / "kubectl"
    text = subprocess.run([kubectl, "kustomize", MANIFESTS], capture_output=True, text=True, check=True).stdout
    text = re.sub(r"\bgpuledger-settings-[a-z0-9]{10}\b", "gpuledger-settings", text)
    return {(each["kind"], each["metadata"]["name"]): each for each in yaml.load_all(text, yaml.CSafeLoader)}


def test_kustomize_and_helm_install_the_same(helm: Helm) -> None:
    """By default, on the Kubernetes that the base is for, but for what `DIFFERENCES` lists."""
    built, release = kustomized(), helm.objects()
    assert {key: "kustomize" if key in built else "Helm" for key in built.keys() ^ release.keys()} == DIFFERENCES
    assert len(built) > 45
    for key in built.keys() & release.keys():
        assert plain(release[key]) == plain(built[key]), key


def plain(value: Any) -> Any:
    """Return an object without Helm's own annotations, and settings as what they say."""
    if isinstance(value, dict) and set(value) == {"settings.yaml"}:
        return yaml.safe_load(value["settings.yaml"])
    if isinstance(value, dict):
        kept = {key: plain(each) for key, each in value.items() if key not in HELMS_OWN}
        return {key: each for key, each in kept.items() if (key, each) != ("annotations", {})}
    return [plain(each) for each in value] if isinstance(value, list) else value


def test_the_document_names_each_difference_between_kustomize_and_helm() -> None:
    text = (REPOSITORY / "docs" / "helm.md").read_text()
    (section,) = re.findall(r"These differ:$\n\n(.*?)\n\n", text, re.MULTILINE | re.DOTALL)
    assert {f"`{name}`" for name in (*(name for _, name in DIFFERENCES), *HELMS_OWN)} <= set(
        re.findall(r"`[^`]+`", section)
    )


def test_comments_reach_the_base(helm: Helm) -> None:
    comments = {f"{path.parent.name}/{path.name}": text.count("#") for path, text in base(helm.program).items()}
    assert comments["agent/rbac.yaml"] > 4
    assert comments["agent/daemonset.yaml"] > 15


# Versions.


def test_the_chart_is_of_the_programs_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == __version__


def test_image_manifests_definition_and_documents_are_of_the_programs_version() -> None:
    definition = REPOSITORY / "crds" / "gpuledger.dev_gpuallocations.yaml"
    assert yaml.safe_load(definition.read_text())["metadata"]["annotations"] == {"gpuledger.dev/version": __version__}
    documents = [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]
    rendered = [path for path in MANIFESTS.rglob("*.yaml") if "templates" not in path.parts]
    places = [*documents, *rendered, MANIFESTS / "Dockerfile"]
    found = {tag for path in places for tag in re.findall(r"\bgpuledger:(\d[\w.]*)", path.read_text())}
    assert found == {container_image.VERSION} == {__version__}


DIGEST = f"@sha256:{'0123456789abcdef' * 4}"


def test_each_image_can_be_named_by_its_digest(helm: Helm) -> None:
    images: dict[str, Any] = {
        "image": {"tag": f"0.1.0{DIGEST}"},
        "hamiCore": {"image": f"projecthami/hami:v2.9.0{DIGEST}"},
    }
    for scheduler in ({"versions": {"1.36": f"v1.36.3{DIGEST}"}}, {"image": {"tag": f"v1.36.3{DIGEST}"}}):
        objects = helm.objects(**images, scheduler=scheduler, agent={"simulatedCards": {"number": 1}})
        pods = [found["spec"]["template"]["spec"] for found in objects.values() if "template" in found.get("spec", {})]
        used = {each["image"] for spec in pods for each in [*spec["containers"], *spec.get("initContainers", ())]}
        assert used == {
            f"gpuledger:0.1.0{DIGEST}",
            f"projecthami/hami:v2.9.0{DIGEST}",
            f"registry.k8s.io/kube-scheduler:v1.36.3{DIGEST}",
        }


def test_each_image_that_ours_is_made_from_is_named_once() -> None:
    """Whoever builds the image gives it with its digest."""
    lines = (MANIFESTS / "Dockerfile").read_text().splitlines()
    named = [line.split()[1] for line in lines if line.startswith("FROM ")]
    assert named == ["$BASE", "$HAMI_CORE", "$BASE", "$BASE"]
    for name in ("BASE", "HAMI_CORE"):
        assert sum(line.startswith(f"ARG {name}=") for line in lines) == 1


def test_hami_core_is_in_the_image_where_the_agent_looks_for_it() -> None:
    text = (MANIFESTS / "Dockerfile").read_text()
    directory = yaml.safe_load((CHART / "values.yaml").read_text())["hamiCore"]["directory"]
    assert f"COPY --from=hami-core {directory} {Settings().hami_core_image_directory}\n" in text


def test_the_table_has_the_versions_of_kubernetes_that_the_tests_run() -> None:
    built = {}
    for path in (REPOSITORY / "tools" / "go").glob("kubernetes-*/go.mod"):
        version = re.search(r"k8s\.io/kubernetes (v(\d+\.\d+)\.\d+)", path.read_text())
        assert version
        assert path.parent.name == f"kubernetes-{version[2]}"
        built[version[2]] = version[1]
    assert built == {minor: VERSIONS[minor] for minor in built}
    assert built[build_control_plane.KUBERNETES] == KUBERNETES


@pytest.mark.parametrize(
    ("cluster", "tag"),
    [
        *((f"v{minor}.0", tag) for minor, tag in VERSIONS.items()),
        ("v1.33.5-gke.1200", VERSIONS["1.33"]),
        ("v1.35.1+k3s1", VERSIONS["1.35"]),
        ("v1.99.2", "v1.99.2"),
        ("v1.99.2-eks-abc123", "v1.99.2"),
    ],
)
def test_the_scheduler_is_of_the_clusters_version(helm: Helm, cluster: str, tag: str) -> None:
    assert scheduler_image(helm.objects(kubernetes=cluster)) == f"registry.k8s.io/kube-scheduler:{tag}"


@pytest.mark.parametrize("minor", BY_VERSION)
def test_only_a_setting_has_the_scheduler_try_groups_as_a_whole(helm: Helm, minor: str) -> None:
    """The gates have changed in each version, and a gate that is not known keeps kube-scheduler from starting."""
    version = f"v{minor}.0"
    without = scheduler_command(helm.objects(kubernetes=version))
    gates = f"--feature-gates={BY_VERSION[minor].scheduler_gates}"
    assert scheduler_command(helm.objects(kubernetes=version, settings={"native_gangs": True})) == [*without, gates]
    assert not any(word.startswith("--feature-gates") for word in without)


def test_a_scheduler_without_such_groups_is_refused(helm: Helm) -> None:
    assert "1.36 or newer" in helm.refusal(kubernetes="v1.34.4", settings={"native_gangs": True})


def test_the_table_and_the_tag_can_be_overridden(helm: Helm) -> None:
    found = helm.objects(scheduler={"versions": {"1.36": "v1.36.9", "1.99": "v1.99.1"}})
    assert scheduler_image(found).endswith(":v1.36.9")
    found = helm.objects(scheduler={"versions": {"1.99": "v1.99.1"}}, kubernetes="v1.99.7")
    assert scheduler_image(found).endswith(":v1.99.1")
    tagged = helm.objects(scheduler={"image": {"repository": "mirror.example/scheduler", "tag": "v1.36.0"}})
    assert scheduler_image(tagged) == "mirror.example/scheduler:v1.36.0"


def test_clusters_that_are_too_old_are_refused(helm: Helm) -> None:
    assert "chart requires kubeVersion: >=1.30.0-0" in helm.refusal(kubernetes="v1.29.6")


# Policies or the webhook.

KINDS = ("MutatingAdmissionPolicy", "MutatingWebhookConfiguration", "ValidatingAdmissionPolicy")
JUDGES = {  # (mode, Kubernetes) -> which of KINDS there are; the agents' own policy apart
    ("auto", KUBERNETES): "PV",
    ("auto", "v1.36.0-gke.1"): "PV",
    ("auto", "v1.37.2"): "PV",
    ("auto", BEFORE_POLICIES): "WV",
    ("auto", "v1.33.5-gke.1200"): "WV",
    ("policies", KUBERNETES): "PV",
    ("webhook", KUBERNETES): "WV",
    ("validating", BEFORE_POLICIES): "V",
    ("none", KUBERNETES): "",
}


@pytest.mark.parametrize(("mode", "version"), JUDGES)
def test_who_judges_new_pods_follows_the_servers_version(helm: Helm, mode: str, version: str) -> None:
    objects = helm.objects(admission={"mode": mode}, kubernetes=version)
    found = "".join(
        letter
        for kind, letter in zip(KINDS, "PWV", strict=True)
        if any(key[0] == kind and key[1] not in WITH_AGENTS for key in objects)
    )
    assert found == JUDGES[mode, version]
    assert (("Service", "gpuledger-webhook") in objects) == ("W" in found)
    assert settings(objects).webhook_port == (9443 if "W" in found else 0)


def test_the_webhooks_certificate_is_for_its_service_and_the_server_trusts_it(helm: Helm, tmp_path: Path) -> None:
    objects = helm.objects(admission={"mode": "webhook"})
    secret = objects["Secret", "gpuledger-webhook-generated"]["data"]
    webhooks = objects["MutatingWebhookConfiguration", "gpuledger"]["webhooks"]
    assert {each["clientConfig"]["caBundle"] for each in webhooks} == {secret["ca.crt"]}
    for name in ("ca.crt", "tls.crt"):
        (tmp_path / name).write_bytes(base64.b64decode(secret[name]))
    host = f"gpuledger-webhook.{NAMESPACE}.svc"
    verify = ["openssl", "verify", "-verify_hostname", host, "-CAfile", "ca.crt", "tls.crt"]
    done = subprocess.run(verify, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "tls.crt: OK\n"


@pytest.mark.parametrize(
    ("values", "volume"),
    [({}, {"emptyDir": {}}), ({"historyClaim": "kept"}, {"persistentVolumeClaim": {"claimName": "kept"}})],
)
def test_the_history_is_in_a_volume_of_the_pod_or_in_a_claim_of_ones_own(
    helm: Helm, values: Json, volume: Json
) -> None:
    pod = helm.objects(operator=values)[OPERATOR]["spec"]["template"]["spec"]
    volumes = {each.pop("name"): each for each in pod["volumes"]}
    operator = next(each for each in pod["containers"] if each["name"] == "operator")
    mounts = {each["name"]: each["mountPath"] for each in operator["volumeMounts"]}
    assert volumes["history"] == volume
    assert f"--history={mounts['history']}" in operator["args"]
    (token,) = volumes["replica-token"]["projected"]["sources"]
    assert f"--replica-token={mounts['replica-token']}/{token['serviceAccountToken']['path']}" in operator["args"]
    assert token["serviceAccountToken"]["audience"] == HISTORY_AUDIENCE


def test_the_operator_listens_where_its_service_and_its_secret_are(helm: Helm) -> None:
    objects = helm.objects(admission={"mode": "webhook"}, settings={"webhook_port": 9555})
    operator = containers(objects[OPERATOR])["operator"]
    assert {"name": "webhook", "containerPort": 9555} in operator["ports"]
    assert objects["Service", "gpuledger-webhook"]["spec"]["ports"][0]["targetPort"] == "webhook"
    volumes = {each["name"]: each for each in objects[OPERATOR]["spec"]["template"]["spec"]["volumes"]}
    assert ("Secret", volumes["webhook"]["secret"]["secretName"]) in objects
    assert settings(objects).webhook_port == 9555


def test_of_a_certificate_of_ones_own_the_server_is_told_whom_to_trust(helm: Helm) -> None:
    trusted = "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n"
    objects = helm.objects(admission={"mode": "webhook", "webhook": {"certificate": "secret", "caBundle": trusted}})
    webhooks = objects["MutatingWebhookConfiguration", "gpuledger"]["webhooks"]
    assert {base64.b64decode(each["clientConfig"]["caBundle"]).decode() for each in webhooks} == {trusted}
    assert not any(kind == "Secret" for kind, _ in objects)
    generated = helm.objects(admission={"mode": "webhook"})
    mounted = [
        volume["secret"]["secretName"]
        for each in (objects, generated)
        for volume in each[OPERATOR]["spec"]["template"]["spec"]["volumes"]
        if volume["name"] == "webhook"
    ]
    assert len(set(mounted)) == 2  # Helm deletes its own, when it is wanted no more, and must not delete this one


def test_cert_manager_fills_in_whom_to_trust(helm: Helm) -> None:
    objects = helm.objects(admission={"mode": "webhook", "webhook": {"certificate": "certManager"}})
    configuration = objects["MutatingWebhookConfiguration", "gpuledger"]
    named = configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
    certificate = objects["Certificate", "gpuledger-webhook"]
    assert named == f"{certificate['metadata']['namespace']}/{certificate['metadata']['name']}"
    assert "caBundle" not in configuration["webhooks"][0]["clientConfig"]
    assert certificate["spec"]["secretName"] == "gpuledger-webhook"
    assert certificate["spec"]["dnsNames"] == [f"gpuledger-webhook.{NAMESPACE}.svc"]
    assert ("Secret", "gpuledger-webhook") not in objects


@pytest.mark.parametrize(
    ("values", "granted"),
    [({}, False), ({"settings": {"keep_nodes_in_use": True}}, True), ({"keepNodes": True}, True)],
)
def test_the_operator_may_annotate_nodes_where_the_setting_or_the_way_back_from_it_needs_that(
    helm: Helm, values: Json, granted: bool
) -> None:
    assert (("ClusterRole", "gpuledger-keep-nodes") in helm.objects(**values)) is granted


def test_the_operator_may_create_pods_where_it_asks_for_nodes_by_them_in_its_own_namespace_alone(helm: Helm) -> None:
    template = {"name": "eight-cards", "labels": {"pool": "gpus"}}
    grants = {
        growth: ("Role", "gpuledger-growth")
        in (objects := helm.objects(settings={"growth": growth, "node_templates": [template]}))
        and objects["Role", "gpuledger-growth"]["metadata"]["namespace"] == NAMESPACE
        for growth in ("none", "metric", "stand-ins")
    }
    assert grants == {"none": False, "metric": False, "stand-ins": True}


# Settings.


def test_a_changed_setting_rolls_operator_and_agents(helm: Helm) -> None:
    def sums(objects: dict[tuple[str, str], Json]) -> list[str]:
        templates = [objects[key]["spec"]["template"] for key in (OPERATOR, AGENT)]
        return [each["metadata"]["annotations"]["gpuledger.dev/settings"] for each in templates]

    before = sums(helm.objects())
    assert before == sums(helm.objects())
    assert not set(before) & set(sums(helm.objects(settings={"node_policy": "spread"})))
    assert not set(before) & set(sums(helm.objects(files={"vendors.yaml": "rows: []"})))
    assert all(len(each) == len(hashlib.sha256().hexdigest()) for each in before)


def test_settings_reach_the_program_with_their_kinds(helm: Helm) -> None:
    asked = {
        "trail_kept": 1_000_000,
        "preemption": "off",
        "hold_ttl_s": 2.5,
        "metrics_per_pod": False,
        "extra_scheduler_names": ["a", "b"],
        "node_label": "gpus=yes",
    }
    found = settings(helm.objects(settings=asked))
    assert found == Settings().changed({**asked, "admission_namespaces": "labelled"})


def test_ports_and_directories_of_the_settings_are_those_of_the_pods(helm: Helm) -> None:
    changed = {
        "health_port": 9001,
        "agent_health_port": 9002,
        "cdi_directory": "/run/cdi",
        "hami_core_directory": "/opt/vgpu",
        "mps_directory": "/opt/mps",
    }
    objects = helm.objects(settings=changed, agent={"kubeletDirectory": "/var/snap/kubelet"})
    assert containers(objects[OPERATOR])["operator"]["ports"][0]["containerPort"] == 9001
    assert containers(objects[OPERATOR])["kube-scheduler"]["livenessProbe"]["httpGet"]["port"] == 9001
    assert objects["Service", "gpuledger-metrics"]["spec"]["ports"][0]["port"] == 9001
    agent = containers(objects[AGENT])["agent"]
    assert agent["ports"][0]["containerPort"] == 9002
    mounts = {each["name"]: each["mountPath"] for each in agent["volumeMounts"]}
    volumes = {each["name"]: each for each in objects[AGENT]["spec"]["template"]["spec"]["volumes"]}
    for name, path in {"cdi": "/run/cdi", "hami-core": "/opt/vgpu", "mps": "/opt/mps"}.items():
        assert mounts[name] == volumes[name]["hostPath"]["path"] == path
    assert volumes["device-plugins"]["hostPath"]["path"] == "/var/snap/kubelet/device-plugins"
    assert mounts["device-plugins"] == "/var/lib/kubelet/device-plugins"  # where the program looks


def test_mps_daemons_run_where_the_setting_says_so_and_no_upgrade_ends_them(helm: Helm) -> None:
    assert MPS not in helm.objects()
    changed = {"mps_daemon": True, "mps_directory": "/opt/mps"}
    found = helm.objects(settings=changed, agent={"nodeSelector": {"gpu": "yes"}, "runtimeClassName": "nvidia"})
    spec = found[MPS]["spec"]
    assert spec["updateStrategy"] == {"type": "OnDelete"}
    assert "annotations" not in spec["template"]["metadata"], "a digest of the settings would roll nothing, and mislead"
    pod, (init, container) = spec["template"]["spec"], containers(found[MPS]).values()
    of_agent = found[AGENT]["spec"]["template"]["spec"]
    for same in ("hostPID", "nodeSelector", "runtimeClassName", "tolerations", "priorityClassName"):
        assert pod[same] == of_agent[same]
    assert pod["automountServiceAccountToken"] is False
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert mounts["mps"] == volumes["mps"]["hostPath"]["path"] == "/opt/mps"
    assert (mounts["shared-memory"], volumes["shared-memory"]["hostPath"]["path"]) == (MPS_MEMORY, "/opt/mps/shm")
    assert init["args"] == ["mps-daemon", "--mount-shared-memory=50%"]
    assert {"name": "mps", "mountPath": "/opt/mps", "mountPropagation": "Bidirectional"} in init["volumeMounts"]
    assert pod["terminationGracePeriodSeconds"] > QUIT_S
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert env["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"
    assert container["securityContext"] == {"privileged": True}


def test_files_lie_beside_the_settings(helm: Helm) -> None:
    text = "a: 1\nb: '2'\n"
    objects = helm.objects(files={"nodes.yaml": text}, settings={"node_config_file": "/settings/nodes.yaml"})
    assert objects["ConfigMap", "gpuledger-settings"]["data"]["nodes.yaml"] == text
    for key, name in ((OPERATOR, "operator"), (AGENT, "agent")):
        mounts = {each["name"]: each["mountPath"] for each in containers(objects[key])[name]["volumeMounts"]}
        assert mounts["settings"] == "/settings"


# Operator and kube-scheduler live and end together.


def slowest_s(probe: Json) -> float:
    """Return when a container is killed at the latest, after it has ceased to answer."""
    return float(probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"])


def test_a_scheduler_whose_operator_does_not_answer_ends_in_time_for_another_replica(helm: Helm) -> None:
    probe = containers(helm.objects()[OPERATOR])["kube-scheduler"]["livenessProbe"]
    assert probe["httpGet"]["path"] == "/healthz/scheduler"
    assert probe["timeoutSeconds"] > extender_server.TIMEOUT_S  # for then it can say which of the two does not answer
    assert slowest_s(probe) + LONGEST_RETRY * RETRY_PERIOD_S < FAIL_OVER_S - TAKE_OVER_S


def test_a_scheduler_that_says_nothing_loses_the_lease_in_time() -> None:
    """Others see the Lease as new when they look next, and its end when they look next after that."""
    assert LEASE_DURATION_S + 2 * LONGEST_RETRY * RETRY_PERIOD_S < FAIL_OVER_S - TAKE_OVER_S
    assert RETRY_PERIOD_S * LONGEST_RETRY < RENEW_DEADLINE_S < LEASE_DURATION_S


def test_a_scheduler_waits_for_its_configuration_longer_than_a_hung_operator_lives(helm: Helm) -> None:
    found = containers(helm.objects()[OPERATOR])
    startup, operators = found["kube-scheduler"]["startupProbe"], found["operator"]["livenessProbe"]
    hung_s = slowest_s({"failureThreshold": 3, **operators}) + operators["terminationGracePeriodSeconds"]
    assert startup["periodSeconds"] * startup["failureThreshold"] > 2 * hung_s


def test_the_schedulers_configuration_is_a_pipe_that_its_operator_fills(helm: Helm) -> None:
    found = containers(helm.objects()[OPERATOR])
    (path,) = (flag.partition("=")[2] for flag in found["kube-scheduler"]["command"] if flag.startswith("--config="))
    assert f"--pipe={path}" in found["scheduler-config"]["args"]
    assert f"--scheduler-config={path}" in found["operator"]["args"]
    for name in ("scheduler-config", "operator", "kube-scheduler"):
        mounts = {each["mountPath"]: each["name"] for each in found[name]["volumeMounts"]}
        assert mounts[os.path.dirname(path)] == "config"


def test_the_operator_knows_its_kube_scheduler_by_a_secret_that_is_on_no_disk(helm: Helm) -> None:
    """Each pod has its own: the volume is the pod's."""
    deployment = helm.objects()[OPERATOR]
    (path,) = (
        flag.partition("=")[2]
        for flag in containers(deployment)["operator"]["args"]
        if flag.startswith("--extender-secret=")
    )
    mounts = {each["mountPath"]: each["name"] for each in containers(deployment)["operator"]["volumeMounts"]}
    volumes = {each["name"]: each for each in deployment["spec"]["template"]["spec"]["volumes"]}
    assert volumes[mounts[os.path.dirname(path)]]["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Mi"}


# The ledger outlives the release.


def test_the_definition_of_the_ledger_is_kept_and_can_be_upgraded(helm: Helm) -> None:
    found = helm.objects()["CustomResourceDefinition", "gpuallocations.gpuledger.dev"]
    assert found["metadata"]["annotations"].pop("helm.sh/resource-policy") == "keep"
    assert found["metadata"].pop("labels") == {"app.kubernetes.io/part-of": "gpuledger"}
    if not found["metadata"]["annotations"]:
        del found["metadata"]["annotations"]
    assert found == yaml.safe_load((REPOSITORY / "crds" / "gpuledger.dev_gpuallocations.yaml").read_text())
    assert not (CHART / "crds").exists()  # from where Helm would never change it again


# Presets.


PRODUCTION = REPOSITORY / "examples" / "production" / "values.yaml"


@pytest.mark.parametrize("version", [KUBERNETES, BEFORE_POLICIES])
def test_the_values_for_production_take_each_image_from_ones_own_registry(helm: Helm, version: str) -> None:
    flags = (f"--values={PRODUCTION}", f"--kube-version={version}", f"--namespace={NAMESPACE}", "--strict", "--quiet")
    assert helm.run("lint", str(CHART), *flags) == (0, "")
    objects = helm.objects(flags[0], kubernetes=version)
    pods = [each["spec"]["template"]["spec"] for each in objects.values() if "template" in each.get("spec", {})]
    pods += [each["spec"] for each in objects.values() if each["kind"] == "Pod"]
    images = {each["image"] for pod in pods for each in (*pod["containers"], *pod.get("initContainers", ()))}
    assert all(image.startswith("registry.example/") for image in images), images
    assert f"registry.example/gpuledger:{__version__}" in images
    operator = objects[OPERATOR]["spec"]["template"]["spec"]["containers"]
    assert all("memory" in each["resources"]["limits"] for each in operator)


def test_the_page_for_production_speaks_of_each_of_its_values() -> None:
    values = yaml.safe_load(PRODUCTION.read_text())
    page = (REPOSITORY / "docs" / "production.md").read_text()
    parts = {part for name, each in values.items() for part in (name, *(each if name == "settings" else ()))}
    assert {part for part in parts if part not in page} == set()


@pytest.mark.parametrize("version", [KUBERNETES, BEFORE_POLICIES])
@pytest.mark.parametrize("name", PRESETS)
def test_helm_has_nothing_to_say_against_a_preset(helm: Helm, name: str, version: str) -> None:
    flags = ["--namespace", NAMESPACE, "--kube-version", version, "--strict", "--quiet"]
    assert helm.run("lint", str(CHART), preset(name), *flags) == (0, "")


def test_over_other_plugins_no_agent_runs_and_their_schedulers_names_are_ours(helm: Helm) -> None:
    hami, volcano = helm.objects(preset("over-hami")), helm.objects(preset("over-volcano"))
    assert AGENT not in hami
    assert AGENT not in volcano
    assert ("ClusterRole", "gpuledger-over-hami") in hami
    assert ("ClusterRole", "gpuledger-over-hami") not in volcano
    assert settings(hami).scheduler_names == ("gpuledger", "hami-scheduler")
    assert settings(volcano).scheduler_names == ("gpuledger", "volcano")


def test_nodes_of_kind_pretend_to_have_cards_of_their_own(helm: Helm, tmp_path: Path) -> None:
    objects = helm.objects(preset("kind"))
    path = settings(objects).devices_file
    script = containers(objects[AGENT])["simulated-cards"]["args"][0]
    found = []
    for node in ("kind-worker", "kind-worker2", "kind-worker"):
        file = tmp_path / "cards.yaml"
        environment = {**os.environ, "NODE_NAME": node}
        assert path in script
        subprocess.run([sys.executable, "-c", script.replace(path, str(file))], env=environment, check=True)
        found.append([each.uuid for each in YamlSource(file).snapshot().devices])
    assert found[0] == found[2]
    assert len(set(found[0] + found[1])) == 2 * len(found[0]) == 16


def test_only_for_limits_by_the_driver_the_agent_has_the_nodes_control_groups_and_a_capability(helm: Helm) -> None:
    for by_driver in (False, True):
        pod = helm.objects(agent={"limitsByDriver": by_driver})[AGENT]["spec"]["template"]["spec"]
        (agent,) = pod["containers"]
        volumes = [each["hostPath"]["path"] for each in pod["volumes"] if each["name"] == "cgroups"]
        mounts = [each for each in agent["volumeMounts"] if each["name"] == "cgroups"]
        assert volumes == ["/sys/fs/cgroup"] * by_driver
        assert mounts == [{"name": "cgroups", "mountPath": "/sys/fs/cgroup"}] * by_driver
        added = {"add": ["SYS_ADMIN"]} if by_driver else {}
        assert agent["securityContext"]["capabilities"] == {"drop": ["ALL"], **added}


def test_by_default_agents_run_only_where_a_label_says_so(helm: Helm) -> None:
    pod = helm.objects()[AGENT]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"gpuledger.dev/agent": "true"}
    chosen = helm.objects(agent={"nodeSelector": {"gpu": "yes"}})[AGENT]["spec"]["template"]["spec"]
    assert chosen["nodeSelector"] == {"gpu": "yes"}


# Monitoring.


def test_monitors_and_rules_come_on_request_and_are_those_of_the_base(helm: Helm) -> None:
    assert not {kind for kind, _ in helm.objects()} & {"PodMonitor", "ServiceMonitor", "PrometheusRule"}
    asked = {"monitors": "PodMonitor", "rules": True, "dashboard": True, "labels": {"release": "prometheus"}}
    objects = helm.objects(monitoring=asked)
    written = [*yaml.safe_load_all((MANIFESTS / "monitoring" / "pod_monitors.yaml").read_text())]
    written += [*yaml.safe_load_all((MANIFESTS / "monitoring" / "prometheus_rule.yaml").read_text())]
    for each in written:
        found = objects[each["kind"], each["metadata"]["name"]]
        assert found["spec"] == each["spec"]
        assert found["metadata"]["labels"]["release"] == "prometheus"
    dashboard = json.loads(objects["ConfigMap", "gpuledger-dashboard"]["data"]["dashboard.json"])
    assert dashboard == json.loads((MANIFESTS / "monitoring" / "dashboard.json").read_text())


def test_alerts_change_by_their_names(helm: Helm) -> None:
    changes = {
        "GPULedgerPodWaitsLong": {"threshold": 14400, "severity": "info"},
        "GPULedgerNearlyFull": {"threshold": 0.99, "for": "1d"},
        "GPULedgerMemoryIdle": {"threshold": 10737418240},
        "GPULedgerNoLeader": {"enabled": False},
        "GPULedgerBadInput": {"enabled": True, "for": "10m"},
    }
    page = "https://docs.example/alerts.html"
    objects = helm.objects(monitoring={"rules": True, "alerts": changes, "runbooks": page})
    group, recorded = objects["PrometheusRule", "gpuledger"]["spec"]["groups"]
    assert [rule["record"] for rule in recorded["rules"]] == ["namespace_queue_model:gpuledger_card_hours:increase1h"]
    found = {rule["alert"]: rule for rule in group["rules"]}
    before = {rule["alert"]: rule for rule in alert_rules()}
    assert before.keys() - found.keys() == {"GPULedgerNoLeader"}
    for name, rule in found.items():
        assert rule["annotations"].pop("runbook_url") == f"{page}#{name.lower()}"
        del before[name]["annotations"]["runbook_url"]
    assert [name for name in found if found[name] != before[name]] == [
        name for name in before if name in changes.keys() - {"GPULedgerNoLeader"}
    ]
    assert found["GPULedgerPodWaitsLong"]["expr"] == before["GPULedgerPodWaitsLong"]["expr"].replace("3600", "14400")
    assert found["GPULedgerPodWaitsLong"]["labels"] == {"severity": "info"}
    assert found["GPULedgerNearlyFull"]["expr"].endswith(") > 0.99")
    assert found["GPULedgerNearlyFull"]["for"] == "1d"
    assert found["GPULedgerMemoryIdle"]["expr"].endswith(") > 10737418240")
    assert found["GPULedgerBadInput"]["for"] == "10m"


def test_the_regular_audit_comes_on_request_and_reads_the_config_maps_that_the_settings_name(helm: Helm) -> None:
    assert not [name for _, name in helm.objects() if name == "gpuledger-audit"]
    named = {"node_config_file": "configmap:other/hami-device-plugin"}
    asked = {"enabled": True, "schedule": "0 6 * * *"}
    objects = helm.objects(settings=named, audit=asked, operator={"nodeSelector": {"system": "yes"}})
    job = objects["CronJob", "gpuledger-audit"]["spec"]
    assert job["schedule"] == "0 6 * * *"
    assert job["jobTemplate"]["spec"]["template"]["spec"]["nodeSelector"] == {"system": "yes"}
    assert job["jobTemplate"]["metadata"]["labels"] == dict([AUDIT_SELECTOR.split("=")])
    accounts = [subject["name"] for subject in objects["RoleBinding", "gpuledger-node-config-file"]["subjects"]]
    assert accounts == ["gpuledger", "gpuledger-agent", "gpuledger-audit"]


def test_each_service_monitor_finds_one_service_and_its_port(helm: Helm) -> None:
    objects = helm.objects(monitoring={"monitors": "ServiceMonitor"}, admission={"mode": "webhook"})
    services = [each for (kind, _), each in objects.items() if kind == "Service"]
    for name in ("gpuledger", "gpuledger-agent"):
        monitor = objects["ServiceMonitor", name]["spec"]
        wanted = monitor["selector"]["matchLabels"].items()
        found = [each for each in services if wanted <= each["metadata"].get("labels", {}).items()]
        asked = [each["port"] for each in monitor["endpoints"]]
        (service,) = (each for each in found if {port["name"] for port in each["spec"]["ports"]} & {*asked})
        assert asked == [each["name"] for each in service["spec"]["ports"]]
        assert service["spec"]["selector"] == {"app.kubernetes.io/name": name}


# Notes.


def notes(helm: Helm, **values: object) -> str:
    """Return what Helm says after an installation."""
    flags = ["--dry-run=client", "--namespace", NAMESPACE]
    status, text = helm.run("install", "gpus", str(CHART), *flags, *helm.flags(values))
    assert status == 0, text
    return text.partition("\nNOTES:\n")[2]


def test_the_notes_say_what_two_schedulers_on_a_node_cost_unless_it_is_tainted(helm: Helm) -> None:
    assert "OutOfcpu" in notes(helm)
    tainted = notes(helm, settings={"node_taint": "gpu=ours:NoSchedule"})
    assert "OutOfcpu" not in tainted
    assert "kubectl taint node -l gpuledger.dev/agent=true gpu=ours:NoSchedule" in tainted


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "by HAMi-core, which the agents' image brings. A node without it enforces NOTHING"),
        ({"settings": {"isolation": "none"}}, "NONE. Containers can use more of a card than their share."),
        ({"settings": {"delivery": "directory"}}, "NONE. Containers can use more of a card than their share."),
        ({"agent": {"simulatedCards": {"number": 2}}}, "NONE. Containers can use more of a card than their share."),
        ({"agent": {"limitsByDriver": True}}, "by the driver where it can, else by HAMi-core"),
        ({"settings": {"isolation": "hami-core"}}, "by hami-core. A node that can't enforce them starts no containers"),
        ({"agent": {"enabled": False}}, "whatever the nodes' own device plugin enforces."),
    ],
)
def test_the_first_line_of_the_notes_says_whether_shares_are_enforced(helm: Helm, values: Json, says: str) -> None:
    first, *_ = notes(helm, **values).splitlines()
    assert first.startswith(f"gpuledger {__version__}. Limits: {says}")


def test_the_notes_say_which_namespaces_pods_come_from(helm: Helm) -> None:
    label = "kubectl label namespace NAME gpuledger.dev/{}=true"
    for values, named, other in (
        ({}, "admission", "ignore"),
        ({"settings": {"admission_namespaces": "all"}}, "ignore", "admission"),
    ):
        text = notes(helm, **values)
        assert label.format(named) in text
        assert label.format(other) not in text
    assert "in labelled namespaces to gpuledger" in notes(helm)


def test_the_notes_say_how_prometheus_is_let_in(helm: Helm) -> None:
    label = "kubectl label namespace NAME gpuledger.dev/metrics=true"
    assert label in notes(helm)
    assert label not in notes(helm, networkPolicy={"enabled": False})
    assert label not in notes(helm, networkPolicy={"scrapers": [{"namespaceSelector": {}}]})


def test_the_notes_name_the_release_and_the_label(helm: Helm) -> None:
    text = notes(helm)
    assert "helm test gpus -n gpuledger-system" in text
    assert "kubectl label node NAME gpuledger.dev/agent=true" in text
    assert "kubectl label node" not in notes(helm, agent={"enabled": False})


def test_accounts_may_read_the_config_maps_that_the_settings_name_and_no_others(helm: Helm) -> None:
    named = {
        "hami_config_file": "configmap:kube-system/hami-scheduler-device",
        "node_config_file": "configmap:other/hami-device-plugin",
        "volcano_config_file": "/a/file",
    }
    objects = helm.objects(settings=named, admission={"mode": "none"})
    roles = {name: each for (kind, name), each in objects.items() if kind == "Role" and name.endswith("config-file")}
    read = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}
    assert {name: (role["metadata"]["namespace"], role["rules"]) for name, role in roles.items()} == {
        "gpuledger-hami-config-file": ("kube-system", [{**read, "resourceNames": ["hami-scheduler-device"]}]),
        "gpuledger-node-config-file": ("other", [{**read, "resourceNames": ["hami-device-plugin"]}]),
    }
    for name in roles:
        accounts = [subject["name"] for subject in objects["RoleBinding", name]["subjects"]]
        assert accounts == ["gpuledger", "gpuledger-agent"]


def test_a_config_map_that_is_named_otherwise_is_refused(helm: Helm) -> None:
    text = helm.refusal(settings={"node_config_file": "configmap:hami-device-plugin"})
    assert "a ConfigMap is named as configmap:NAMESPACE/NAME, not configmap:hami-device-plugin" in text


@pytest.mark.parametrize(
    ("version", "settings", "there"),
    [
        ("v1.34.0", {}, True),
        ("v1.34.2-gke.100", {"resource_slices": False}, True),
        (KUBERNETES, {"resource_claims": True}, True),
        (KUBERNETES, {"resource_claims": False}, False),
        ("v1.33.9", {}, False),
    ],
)
def test_the_device_class_is_there_where_the_server_knows_such_and_pods_can_bring_claims(
    helm: Helm, version: str, settings: Json, there: bool
) -> None:
    objects = helm.objects(settings=settings, kubernetes=version)
    assert (("DeviceClass", "gpu.gpuledger.dev") in objects) == there
    if there:
        (selector,) = objects["DeviceClass", "gpu.gpuledger.dev"]["spec"]["selectors"]
        assert selector == {"cel": {"expression": 'device.driver == "gpu.gpuledger.dev"'}}
