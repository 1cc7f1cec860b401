"""One process of the agent: from its settings to its end, which is a signal, a failure or other settings."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path

from gpuledger.agent.agent_config import AgentConfig, agent_config, device_source
from gpuledger.agent.startup import Agent
from gpuledger.agent.usage.monitor import resume_all
from gpuledger.configuration.settings import Settings
from gpuledger.kube_api.client import KubeClient
from gpuledger.workflows.config_maps import settings_in_cluster, until_settings_differ
from gpuledger.workflows.tasks.together import wait_first


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """The options of `gpuledger agent`."""

    settings: Settings
    """Before the cluster was asked: of ConfigMaps that they name, only the names."""
    settings_file: Path | None
    node_name: str
    kubelet_directory: Path
    pod_uid: str = ""
    kubeconfig: str | None = None
    context: str | None = None

    def plan(self, settings: Settings) -> AgentConfig:
        """Return the plan by these settings. Raises BadInput."""
        return agent_config(settings, self.node_name, self.kubelet_directory, self.pod_uid)


async def run_agent(options: AgentOptions, beat: int | None = None) -> None:
    """Run an agent until SIGTERM, until a part fails, or until a ConfigMap changes what it does.

    In the last two cases its process is to be started again. Raises BadInput if the settings can't be used.
    """
    asked_to_end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, asked_to_end.set)
    await resume_all(Path(options.settings.cdi_directory))
    client = await KubeClient.connect(options.kubeconfig, options.context)
    try:
        settings = await settings_in_cluster(client, options.settings, options.settings_file)
        plan = options.plan(settings)
        agent = Agent(plan, device_source(settings), client)
        changed = until_settings_differ(
            client, settings, options.settings_file, lambda found: options.plan(found) != plan
        )
        await wait_first(agent.run(beat), _leave(asked_to_end.wait(), agent), _leave(changed, agent))
    finally:
        await client.close()


async def _leave(asked_to_end: Awaitable[object], agent: Agent) -> None:
    await asked_to_end
    await agent.wait_for_bound_pods()
