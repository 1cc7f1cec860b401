"""A container is answered in the words that it has written."""

import pytest

from fakes.objects import DIALECTS, a_container, a_pod_object
from gpuledger.formats.kubernetes.pod import ResourceNames, resource_names


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4k"}, ResourceNames("nvidia.com/gpu", "nvidia.com/gpumem")),
        ({"nvidia.com/gpucores": "30"}, ResourceNames(cores="nvidia.com/gpucores")),
        (
            {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "4k"},
            ResourceNames("volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"),
        ),
        ({"cpu": "1"}, ResourceNames()),
    ],
)
def test_names_are_those_of_the_containers_own_resources(limits: dict[str, str], words: ResourceNames) -> None:
    pod = a_pod_object(containers=[a_container("other", {"nvidia.com/gpu": "1"}), a_container("main", limits)])
    assert resource_names(pod, "main", DIALECTS) == words


def test_a_container_that_is_not_there_has_no_words() -> None:
    assert resource_names(a_pod_object(), "nobody", DIALECTS) == ResourceNames()
