"""kube-scheduler's configuration: what it must leave to the extender, and how long it waits for it."""

from typing import Any

import pytest

from fakes.objects import DIALECTS, GPU, MEMORY
from gpuledger.configuration.settings import Settings
from gpuledger.formats.dialects.vocabulary import HIDING, SUMS
from gpuledger.formats.scheduler import scheduler_configuration


@pytest.fixture
def configuration() -> dict[str, Any]:
    """Return the configuration of the default settings."""
    settings = Settings()
    return scheduler_configuration(
        settings.scheduler_names, DIALECTS, settings.extender_url, settings.extender_timeout_s, leader_elect=True
    )


def test_the_profile_looks_at_every_node(configuration: dict[str, Any]) -> None:
    assert configuration["profiles"] == [{"schedulerName": "gpuledger", "percentageOfNodesToScore": 100}]


def test_the_extender_is_asked_about_names_and_never_left_out(configuration: dict[str, Any]) -> None:
    (extender,) = configuration["extenders"]
    assert (extender["nodeCacheCapable"], extender["ignorable"]) == (True, False)
    assert (extender["urlPrefix"], extender["httpTimeout"]) == ("http://127.0.0.1:8888", "60s")
    assert (extender["filterVerb"], extender["prioritizeVerb"], extender["bindVerb"]) == (
        "filter",
        "prioritize",
        "bind",
    )


def test_the_scheduler_counts_none_of_the_resources_itself(configuration: dict[str, Any]) -> None:
    (extender,) = configuration["extenders"]
    names = (*DIALECTS.resources(), *SUMS, HIDING)  # the latter are in pods alone: no node has them
    assert extender["managedResources"] == [{"name": name, "ignoredByScheduler": True} for name in names]
    assert {name["name"] for name in extender["managedResources"]} >= {GPU, MEMORY, "volcano.sh/vgpu-memory"}


def test_every_name_of_the_scheduler_has_a_profile() -> None:
    found = scheduler_configuration(["gpuledger", "volcano"], DIALECTS, "http://x", 1, leader_elect=True)
    assert [profile["schedulerName"] for profile in found["profiles"]] == ["gpuledger", "volcano"]


@pytest.mark.parametrize("leader_elect", [True, False])
def test_a_leader_is_elected_where_there_can_be_several(leader_elect: bool) -> None:
    found = scheduler_configuration(["own"], DIALECTS, "http://x", 1, leader_elect)
    assert found["leaderElection"]["leaderElect"] is leader_elect
    assert found["profiles"][0]["schedulerName"] == "own"


def test_the_lease_moves_on_sooner_than_by_default(configuration: dict[str, Any]) -> None:
    found = {key: configuration["leaderElection"][key] for key in ("leaseDuration", "renewDeadline", "retryPeriod")}
    assert found == {"leaseDuration": "10s", "renewDeadline": "8s", "retryPeriod": "1s"}


@pytest.mark.parametrize(("gather_s", "expected"), [(20, 10), (60, 10), (12, 6), (3.0, 1), (0.5, 1)])
def test_members_of_a_gang_come_again_while_the_others_stand_in_bind(gather_s: float, expected: int) -> None:
    """Those that were tried at another time than the rest would miss it in every round, for ever."""
    found = scheduler_configuration(["own"], DIALECTS, "http://x", 1, leader_elect=True, gather_s=gather_s)
    assert found["podMaxBackoffSeconds"] == expected


def test_groups_that_are_tried_as_a_whole_are_tried_soon_after_there_is_room() -> None:
    """Nothing makes kube-scheduler try such a group before its back-off ends, on 1.37 this by √64 for 64 members."""
    found = scheduler_configuration(["own"], DIALECTS, "http://x", 1, leader_elect=True, native_gangs=True)
    assert found["podMaxBackoffSeconds"] * 64**0.5 < 10


def test_several_nodes_are_scored_by_what_the_pods_prefer_alone() -> None:
    found = scheduler_configuration(["own"], DIALECTS, "http://x", 1, leader_elect=True, nodes_offered=2)
    (profile,) = found["profiles"]
    assert profile["percentageOfNodesToScore"] == 100
    disabled = [{"name": "NodeResourcesFit"}, {"name": "NodeResourcesBalancedAllocation"}]
    assert profile["plugins"] == {"score": {"disabled": disabled}}
    (spread,) = profile["pluginConfig"]
    assert spread == {"name": "PodTopologySpread", "args": {"defaultingType": "List", "defaultConstraints": []}}
