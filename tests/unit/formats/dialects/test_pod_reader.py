"""What is remembered of pods that say the same is what each of them says."""

import datetime
import gc
import weakref
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fakes.objects import CORES, DIALECTS, GPU, MEMORY, PERCENTAGE, a_container, a_pod_object
from gpuledger.formats.dialects.request import counted, pod_request
from gpuledger.formats.dialects.unsupported import pod_warnings
from gpuledger.formats.kubernetes.pod import LONGEST_TEXT_BYTES, PodReader
from gpuledger.formats.quantity import host_request
from gpuledger.model.errors import BadInput

Json = dict[str, Any]

WORDS = PodReader(DIALECTS)
"""One for all examples: what it remembers of one pod must not be said of another."""

AMOUNTS = st.dictionaries(
    st.sampled_from([GPU, MEMORY, PERCENTAGE, CORES, "cpu", "memory", "nvidia.com/gpumen"]),
    st.sampled_from(["0", "1", "2", "100", "1Ki", "x"]),
    max_size=3,
)
GIVEN = {
    "gpuledger.dev/use-gpuuuid": st.sampled_from(["GPU-1", "GPU-1,GPU-2", ""]),
    "gpuledger.dev/vgpu-mode": st.sampled_from(["mig", "nothing"]),
    "hami.io/gpu-scheduler-policy": st.sampled_from(["binpack", "spread", "mad"]),
    "gpuledger.dev/use-gpuuid": st.just("GPU-1"),
    "koordinator.sh/gpu-isolation-provider": st.sampled_from(["HAMi-core", "other"]),
    "kubevirt.io": st.just("virt-launcher"),
    "name": st.sampled_from(["a", "b"]),
}
GIVEN_TO_POD = st.fixed_dictionaries({}, optional=GIVEN)


@st.composite
def containers(draw: st.DrawFn) -> list[Json]:
    found = []
    for number in range(draw(st.integers(0, 2))):
        container = a_container(draw(st.sampled_from(["main", f"other-{number}"])), draw(AMOUNTS))
        container["resources"]["requests"] = draw(AMOUNTS)
        if draw(st.booleans()):
            container["restartPolicy"] = "Always"
        found.append(container)
    return found


@st.composite
def pods(draw: st.DrawFn) -> Json:
    pod = a_pod_object(draw(st.sampled_from(["one", "two"])), containers=draw(containers()))
    pod["metadata"] |= {"annotations": draw(GIVEN_TO_POD), "labels": draw(GIVEN_TO_POD)}
    pod["spec"]["initContainers"] = draw(containers())
    optional = {
        "runtimeClassName": st.sampled_from(["kata-qemu", "runc"]),
        "overhead": AMOUNTS,
        "resources": st.builds(lambda asked: {"requests": asked}, AMOUNTS),
    }
    pod["spec"] |= draw(st.fixed_dictionaries({}, optional=optional))
    return pod


def outcome(read: Callable[[Json], object], pod: Json) -> object:
    try:
        return repr(read(pod))
    except BadInput as error:
        return str(error)


@given(pods())
def test_what_is_remembered_is_what_the_pod_says(pod: Json) -> None:
    for _ in range(2):
        assert outcome(WORDS.request, pod) == outcome(lambda each: pod_request(each, DIALECTS), pod)
        assert outcome(WORDS.warnings, pod) == outcome(lambda each: pod_warnings(each, DIALECTS), pod)
        assert outcome(WORDS.counted, pod) == outcome(lambda each: counted(each, DIALECTS), pod)
        assert outcome(WORDS.host, pod) == outcome(lambda each: host_request(each, DIALECTS.elsewhere), pod)


def test_the_pods_of_a_template_are_read_once() -> None:
    words = PodReader(DIALECTS)
    waits, bound = a_pod_object("one"), a_pod_object("two", node_name="node", started=True)
    bound["spec"]["containers"][0]["volumeMounts"] = [{"name": "kube-api-access-x7k2p"}]
    assert words.request(waits) is words.request(bound) is not None


def test_a_pod_that_was_annotated_takes_the_same_of_its_node_and_is_not_read_again() -> None:
    words, waits, bound = PodReader(DIALECTS), a_pod_object(), a_pod_object(node_name="node")
    bound["metadata"]["annotations"] = {"gpuledger.dev/devices": "{}"}
    assert words.counted(waits) is words.counted(bound) != ()
    assert words.host(waits) is words.host(bound)


def test_a_pod_whose_annotations_change_is_read_again() -> None:
    words, pod = PodReader(DIALECTS), a_pod_object()
    before = words.request(pod)
    pod["metadata"]["annotations"] = {"gpuledger.dev/use-gpuuuid": "GPU-1"}
    after = words.request(pod)
    assert before is not None
    assert after is not None
    assert (before.shape[0].wanted.use_uuids, after.shape[0].wanted.use_uuids) == ((), ("GPU-1",))


def test_what_is_too_long_to_be_remembered_is_one_object_as_long_as_anybody_keeps_it() -> None:
    """A pod that waits is remembered by several parts, and each would have its own otherwise."""
    words, pod = PodReader(DIALECTS), a_pod_object()
    pod["metadata"]["annotations"] = {"example.com/note": "x" * LONGEST_TEXT_BYTES}
    kept = words.request(pod)
    assert kept is words.request({**pod, "status": {"phase": "Pending"}})
    assert kept == pod_request(pod, DIALECTS)
    still = weakref.ref(kept)
    del kept
    gc.collect()
    assert still() is None


def test_a_pod_of_a_file_is_read_whatever_yaml_has_made_of_its_words() -> None:
    day, large = datetime.date(2030, 1, 1), 1 << 70
    for annotations in ({"example.com/since": day}, {1: "one"}, {"example.com/large": large}):
        pod = a_pod_object()
        pod["metadata"]["annotations"] = annotations
        assert PodReader(DIALECTS).request(pod) == pod_request(pod, DIALECTS)
