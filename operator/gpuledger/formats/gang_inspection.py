"""Shows what pods and PodGroups say of gangs: for `gpuledger inspect`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpuledger.formats.objects.gang import OF_WAY, PODGROUPS, GroupWords, described, pod_groups_named
from gpuledger.formats.objects.pod_group import pod_group
from gpuledger.model.errors import BadInput
from gpuledger.model.gang import Gang

Json = dict[str, Any]


def gang_shown(gang: Gang) -> Json:
    """Return a pod's gang as JSON: with the number that the pod says, or where it stands."""
    words = OF_WAY.get(gang.name.way)
    return {"name": gang.name.name, **({"podGroup": words.api_group} if words else {"minimum": gang.minimum})}


def gang_notes(pod: Mapping[str, Any], gang: Gang) -> list[str]:
    """Return a sentence on a pod's gang, and one on each PodGroup that it names in vain."""
    name = gang.name
    if name.way in OF_WAY:
        return [f"gang {name.name}: {described(name)} says how many of its pods start together"]
    return [
        f"gang {name.name}: {gang.minimum} of its pods start together, or none",
        *(f"{described(other)} does not count beside {described(name)}" for other in pod_groups_named(pod)),
    ]


def words_of_group(document: Mapping[str, Any]) -> GroupWords | None:
    """Return which kind of PodGroup an object is, None for one of an API that is not known."""
    api_group, _, version = str(document.get("apiVersion")).partition("/")
    return next((each for each in PODGROUPS if each.api_group == api_group and version in each.versions), None)


def pod_group_shown(document: Mapping[str, Any], words: GroupWords) -> Json:
    """Return what a PodGroup says."""
    try:
        group = pod_group(document, words)
    except BadInput as error:
        return {"problems": [str(error)]}
    if not group.minimum:
        note = "its pods are placed one by one: it does not say that several start together"
        return {"minimum": 0, "notes": [note], "problems": []}
    note = f"{group.minimum} of its pods start together, or none"
    return {"minimum": group.minimum, "leavesWhole": group.leaves_whole, "notes": [note], "problems": []}
