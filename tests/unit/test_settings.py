"""Settings: whatever is wrong with a file is said in one sentence, and nothing wrong gets through."""

from dataclasses import fields
from typing import Any

import pytest

from gpuledger.configuration.settings import POLICIES, Settings
from gpuledger.placement.policy import Preference


def test_values_replace_the_defaults_and_leave_the_rest() -> None:
    changed = Settings().changed({"scheduler_name": "mine", "default_gpus": 2, "hold_ttl_s": 1.5})
    assert (changed.scheduler_name, changed.default_gpus, changed.hold_ttl_s) == ("mine", 2, 1.5)
    assert changed.listen_port == Settings().listen_port


def test_nothing_changed_is_the_defaults() -> None:
    assert Settings().changed({}) == Settings()


@pytest.mark.parametrize("url", ["", "http://grafana:3000", "https://grafana.example.com/d/gpus?orgId=1"])
def test_a_dashboard_has_an_address_of_the_web(url: str) -> None:
    assert Settings().changed({"grafana_url": url}).grafana_url == url


def test_a_whole_number_stands_for_seconds_too() -> None:
    value = Settings().changed({"hold_ttl_s": 60}).hold_ttl_s
    assert (value, type(value)) == (60.0, float)


def test_a_name_that_does_not_exist_is_answered_with_those_that_do() -> None:
    with pytest.raises(
        ValueError, match=r"unknown option 'xyzzy'; options are .*adopt_pods, .*bind_timeout_s, .*scheduler_name"
    ):
        Settings().changed({"xyzzy": "mine"})


@pytest.mark.parametrize(
    ("values", "meant"),
    [
        ({"isolaton": "none"}, "unknown option 'isolaton': did you mean isolation?"),
        ({"scheduler": "mine"}, "unknown option 'scheduler': did you mean scheduler_name?"),
        ({"node_policy": "bin-pack"}, "not 'bin-pack': did you mean binpack?"),
        ({"agent_also_serves": ["volcano-clasic"]}, "did you mean volcano-classic?"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_one_that_is_meant(values: dict[str, Any], meant: str) -> None:
    with pytest.raises(ValueError, match=r"^settings: ") as error:
        Settings().changed(values)
    assert meant in str(error.value)
    assert len(str(error.value)) < 250


def test_all_mistakes_are_told_at_once() -> None:
    wrong = {"isolaton": "none", "node_policy": "bin-pack", "listen_port": "x", "node_label": "no label", "x" * 200: 1}
    with pytest.raises(ValueError, match=r"^settings:\n- ") as error:
        Settings().changed(wrong)
    lines = str(error.value).splitlines()[1:]
    assert [line.split()[1] for line in lines] == ["unknown", "node_policy", "listen_port", "unknown", "node_label"]


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"listen_port": "8888"}, "listen_port must be a int, not '8888'"),
        ({"listen_port": 8888.0}, "listen_port must be a int"),
        ({"listen_port": True}, "listen_port must be a int, not True"),
        ({"hold_ttl_s": False}, "hold_ttl_s must be a float"),
        ({"hold_ttl_s": "30"}, "hold_ttl_s must be a float"),
        ({"scheduler_name": 3}, "scheduler_name must be a str, not 3"),
        ({"scheduler_name": None}, "scheduler_name must be a str, not None"),
        ({"node_policy": ["spread"]}, "node_policy must be a str"),
        ({"adopt_pods": 1}, "adopt_pods must be a bool, not 1"),
    ],
)
def test_a_value_of_another_kind_is_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^settings: {sentence}"):
        Settings().changed(values)


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"nodes_offered": 0}, "nodes_offered is 1 at least, not 0"),
        ({"nodes_offered": 11}, "nodes_offered is 10 at most, not 11"),
        ({"metrics_compatibility": ["dcgm"]}, "metrics_compatibility is a list of hami, hami-legacy, volcano"),
        (
            {"node_policy": "random"},
            "must be one of binpack, spread, topology, topology-aware, fragmentation, not 'random'",
        ),
        (
            {"card_policy": "Binpack"},
            "must be one of binpack, spread, topology, topology-aware, fragmentation, not 'Binpack'",
        ),
        ({"bind_timeout_s": 60}, "bind_timeout_s must be less than extender_timeout_s"),
        ({"conflict_policy": "youngest-leaves", "adopt_pods": True}, "exclude each other"),
        ({"bind_timeout_s": 3, "extender_timeout_s": 3}, "bind_timeout_s must be less than extender_timeout_s"),
        ({"default_gpus": -1}, "default_gpus is 0 at least, not -1"),
        ({"release_delay_s": -0.5}, "release_delay_s is 0 at least, not -0.5"),
        ({"resource_memory": "nvidia.com/gpu"}, "resource names must differ"),
        ({"resource_count": "gpu"}, "and have a domain"),
    ],
)
def test_values_that_contradict_are_refused(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Settings().changed(values)


@pytest.mark.parametrize("policy", POLICIES)
def test_nodes_and_cards_have_a_policy_each(policy: str) -> None:
    changed = Settings().changed({"node_policy": policy, "card_policy": policy})
    word = {"topology-aware": "topology"}.get(policy, policy)
    assert changed.policies == (Preference(word), Preference(word))


@pytest.mark.parametrize("word", ["topology", "topology-aware"])
def test_topology_for_cards_chooses_the_node_as_well_unless_that_has_a_policy_of_its_own(word: str) -> None:
    assert Settings().changed({"card_policy": word}).policies == ("topology", "topology")
    assert Settings().changed({"card_policy": word, "node_policy": "spread"}).policies == ("spread", "topology")
    assert Settings().changed({"node_policy": word}).policies == ("topology", "fragmentation")


def test_the_extender_is_where_it_listens() -> None:
    changed = Settings().changed({"listen_host": "10.0.0.1", "listen_port": 1234})
    assert changed.extender_url == "http://10.0.0.1:1234"


def test_every_option_has_a_help_and_a_unit_where_it_is_an_amount() -> None:
    for option in fields(Settings):
        assert option.metadata["help"].endswith(".")
        if isinstance(option.default, float):
            assert option.name.endswith(("_s", "_scaling"))


@pytest.mark.parametrize("name", ["extra_scheduler_names", "vendors"])
def test_a_list_is_a_list_of_words(name: str) -> None:
    assert getattr(Settings().changed({name: ["a", "b"] if name != "vendors" else ["Hygon"]}), name)
    with pytest.raises(ValueError, match=f"{name} must be a list of str"):
        Settings().changed({name: "a"})


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"extra_scheduler_names": ["gpuledger"]}, "scheduler names must differ"),
        ({"extra_scheduler_names": ["default-scheduler"]}, "none can be default-scheduler"),
        ({"resource_count": ""}, "resource_count is the name that our own node agent serves"),
        ({"volcano_memory": "nvidia.com/gpumem"}, "only the names of counts may be the same"),
        ({"volcano_memory_unit_mib": 0}, "volcano_memory_unit_mib is 1 at least, not 0"),
        ({"node_label": "volcano.sh/vgpu.enabled"}, "node_label is a label, key=value"),
        ({"node_taint": "volcano.sh/vgpu=hami"}, "node_taint is a taint, key=value:NoSchedule"),
        ({"grafana_url": "javascript:alert(1)"}, "grafana_url is an address, such as"),
        ({"grafana_url": "https://"}, "grafana_url is an address, such as"),
        ({"grafana_url": "https://me:secret@grafana/d/x"}, "grafana_url is an address, such as"),
        ({"grafana_url": "https://grafana/d/x#top"}, "grafana_url is an address, such as"),
    ],
)
def test_names_of_other_systems_that_can_not_be_meant_are_refused(values: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Settings().changed(values)


def test_counts_may_have_one_name_and_other_words_may_be_left_out() -> None:
    settings = Settings().changed({"volcano_count": "nvidia.com/gpu", "volcano_classic_memory": ""})
    assert settings.volcano_count == settings.resource_count


@pytest.mark.parametrize(
    ("values", "answer_s"),
    [({}, 45.0), ({"extender_timeout_s": 10}, 7.5), ({"bind_timeout_s": 3, "extender_timeout_s": 5}, 3.0)],
)
def test_bind_answers_before_kube_scheduler_gives_up(values: dict[str, object], answer_s: float) -> None:
    """Also where a file of settings names only one of the two, or both as they were before."""
    assert Settings().changed(values).bind_answer_s == answer_s
