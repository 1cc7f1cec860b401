"""What the settings make of a node's isolation: what contradicts it, and what becomes of the driver's own memory."""

from pathlib import Path

import pytest

from gpuledger.agent.config import agent_config
from gpuledger.agent.isolation.choice import Isolation
from gpuledger.configuration.settings import Settings
from gpuledger.model.errors import BadInput

KUBELET = Path("/var/lib/kubelet")


@pytest.mark.parametrize("isolation", ["mps", "hami-core", "driver"])
def test_what_needs_cdi_is_refused_without(isolation: str) -> None:
    settings = Settings().changed({"isolation": isolation, "delivery": "directory"})
    with pytest.raises(BadInput, match=f"node a: {isolation} needs CDI: set delivery to cdi"):
        agent_config(settings, "a", KUBELET)


@pytest.mark.parametrize(
    ("isolation", "reserved_memory", "keeps"),
    [
        ("none", "auto", False),
        ("hami-core", "auto", False),
        ("mig", "auto", False),
        ("driver", "auto", True),
        ("driver", "given", False),
        ("none", "kept", True),
    ],
)
def test_the_drivers_own_memory_is_kept_where_limits_are_the_drivers_or_the_setting_says_so(
    isolation: str, reserved_memory: str, keeps: bool
) -> None:
    settings = Settings().changed({"isolation": isolation, "reserved_memory": reserved_memory})
    plan = agent_config(settings, "a", KUBELET)
    assert plan.isolation is not None
    assert plan.keeps_reserved_memory(plan.isolation) is keeps


@pytest.mark.parametrize("mode", ["none", "driver"])
def test_a_node_can_have_another_isolation_than_all_others(mode: str, tmp_path: Path) -> None:
    config = tmp_path / "nodes.yaml"
    config.write_text(f'{{"nodeconfig": [{{"name": "a", "operatingmode": "{mode}"}}]}}')
    settings = Settings().changed({"isolation": "mps", "node_config_file": str(config)})
    plan = agent_config(settings, "a", KUBELET)
    assert (plan.isolation, plan.config.mode) == (Isolation(mode), mode)
    assert agent_config(settings, "b", KUBELET).isolation is Isolation.MPS
