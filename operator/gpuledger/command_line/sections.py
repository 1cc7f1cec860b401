"""All commands, in the sections of the help: commands for people apart from those that a cluster runs."""

from __future__ import annotations

from importlib import import_module

import click
from click.shell_completion import CompletionItem

SECTIONS = {
    "Look at the ledger (also as kubectl gpuledger)": {
        "top": "How much of the GPUs is used, and by which pods.",
        "get": "A pod's cards, or a card's holders.",
        "explain": "Why a pod, a gang, or a job in a queue waits, node by node.",
        "history": "What happened to a pod, a gang, a card or a node.",
        "cordon": "Keep new pods off cards or a node.",
        "uncordon": "Let cordoned cards take new pods again.",
    },
    "Check, migrate and plan": {
        "doctor": "Find what keeps gpuledger from working.",
        "audit": "Compare the ledger with pods, annotations and nodes, and show every difference.",
        "migrate": "Enter pods that HAMi or Volcano placed into the ledger, from their annotations.",
        "inspect": "Show how gpuledger reads Nodes and Pods: their GPUs, containers' requests, and every problem.",
        "simulate": "Try placement without a cluster: replay a trace, or see where pods would go.",
    },
    "Install and run": {
        "admission-policies": "Print the admission policies on pods and nodes that match the settings.",
        "agent": "Run the node agent: report this node's GPUs, and give containers their cards.",
        "crd": "Print the CustomResourceDefinition of GPUAllocation.",
        "fake-nodes": "Register simulated nodes, as a node agent and its kubelet would.",
        "mps-daemon": "Run NVIDIA's MPS daemons for this node's GPUs, and watch them.",
        "run": "Run the operator: keep the ledger, and serve kube-scheduler as its extender.",
        "scheduler-config": "Print the kube-scheduler configuration that matches the settings.",
        "webhook-config": "Print the admission webhook's configurations, for clusters without the policies.",
    },
}
"""Title -> command -> short description, so that help imports no command."""

COMMANDS = {name: text for commands in SECTIONS.values() for name, text in commands.items()}

BESIDE = {"uncordon": "cordon"}
"""Command -> the one in whose module it is; of all others, the module has the command's name."""


class SectionedGroup(click.Group):
    """A group of commands that are imported when they are asked for, and whose help has sections."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, None if there is none of this name."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"gpuledger.command_line.commands.{BESIDE.get(cmd_name, cmd_name).replace('-', '_')}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return what a word can become: a command, or an option of the program itself."""
        named = [CompletionItem(name, help=COMMANDS[name]) for name in sorted(COMMANDS) if name.startswith(incomplete)]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, section by section."""
        width = max(map(len, COMMANDS))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                room = formatter.width - width - 6
                short = {name: click.Command(None, help=text) for name, text in commands.items()}
                formatter.write_dl(
                    [(f"{name:<{width}}", each.get_short_help_str(room)) for name, each in short.items()]
                )
