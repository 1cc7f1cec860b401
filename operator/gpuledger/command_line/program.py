"""The program: it imports the command that is asked for, and no other, so that each starts at once.

The help shows all commands in sections, those for people apart from those that a cluster runs.

Completion in shells is click's, but a kind of objects, `card/`, is not taken for a whole word: after one a shell puts a
space, and then the name could not be completed.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from importlib import import_module
from typing import Any, NoReturn

import click
from click.shell_completion import BashComplete, CompletionItem, ZshComplete, add_completion_class

from gpuledger import __version__
from gpuledger.kube_api import lean_import

SECTIONS = {
    "Look at the ledger (also as kubectl gpuledger)": {
        "top": "How much of the GPUs is used, and by which pods.",
        "get": "List pods with their cards, cards, or nodes.",
        "describe": "A pod's cards, a card's holders, or a node's cards, in full.",
        "explain": "Why pods, gangs, or jobs in a queue wait, node by node.",
        "history": "What happened to a pod, a gang, a card or a node.",
        "report": "GPU-hours by namespace, queue, owner, model, node or day, and their price.",
        "reserve": "Reserve GPUs for pods that are to come.",
        "cordon": "Keep new pods off cards or a node.",
        "move": "Move pods to other cards, each to a place that is reserved for it.",
        "drain": "Cordon cards, and evict the pods that hold them.",
        "uncordon": "Let cordoned cards take new pods again.",
    },
    "Check, migrate and plan": {
        "doctor": "Find what keeps gpuledger from working.",
        "audit": "Compare the ledger with pods, annotations and nodes, and show every difference.",
        "migrate": "Enter pods that HAMi or Volcano placed into the ledger, from their annotations.",
        "inspect": "Show how gpuledger reads Nodes and Pods: their GPUs, containers' requests, and every problem.",
        "simulate": "Try placement without a cluster: see where pods would go.",
        "version": "The version of this program, and of the operator.",
    },
    "Install and run": {
        "admission-policies": "Print the admission policies on pods and nodes that match the settings.",
        "agent": "Run the node agent: report this node's GPUs, and give containers their cards.",
        "crd": "Print the CustomResourceDefinitions.",
        "fake-nodes": "Register simulated nodes, as a node agent and its kubelet would.",
        "mps-daemon": "Run NVIDIA's MPS daemons for this node's GPUs, and watch them.",
        "run": "Run the operator: keep the ledger, and serve kube-scheduler as its extender.",
        "scheduler-config": "Print the kube-scheduler configuration that matches the settings.",
        "webhook-config": "Print the admission webhook's configurations, for clusters without the policies.",
    },
}
"""Title -> command -> short description, so that help imports no command."""

COMMANDS = {name: text for commands in SECTIONS.values() for name, text in commands.items()}

BESIDE = {
    "uncordon": "cordon",
    "migrate": "audit",
    **dict.fromkeys(("admission-policies", "crd", "scheduler-config", "webhook-config"), "render"),
    **dict.fromkeys(("agent", "fake-nodes", "mps-daemon"), "run"),
}
"""Command -> the one in whose module it is; of all others, the module has the command's name."""


EXTRAS = {
    **dict.fromkeys(("cel_expr_python", "numpy", "re2"), "simulate"),
    **dict.fromkeys(("httptools", "kopf", "uvloop"), "operator"),
    **dict.fromkeys(("google", "grpc", "pynvml"), "agent"),
}
"""Module -> the extra of our package that installs it: people's commands do without, apart from `simulate`."""


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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is asked for; what is none is refused with the nearest one."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS and not ctx.resilient_parsing:
            from gpuledger.model.errors import did_you_mean

            ctx.fail(f"there is no command {args[0]!r}{did_you_mean(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the completions of a word: a command, or an option of the program itself."""
        named = [CompletionItem(name, help=COMMANDS[name]) for name in sorted(COMMANDS) if name.startswith(incomplete)]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a Ctrl-C, also while it is imported, ends with 130. Click's 1 would be an answer."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.exit(128 + signal.SIGINT)
        except ModuleNotFoundError as error:
            module = (error.name or "").partition(".")[0]
            if module not in EXTRAS:
                raise
            click.echo(f"Error: {ctx.invoked_subcommand} needs {module}: {_install(EXTRAS[module])}", err=True)
            sys.exit(2)

    def main(self, *arguments: Any, **more: Any) -> Any:
        """Run; a shell that has stopped to listen to completions is no reason for a traceback."""
        try:
            return super().main(*arguments, **more)
        except BrokenPipeError:
            leave_quietly()

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


def _install(extra: str) -> str:
    return f"pip install 'gpuledger[{extra}]=={__version__}'; the operator's image has it"


def leave_quietly() -> NoReturn:
    """End after a reader of the output has gone: what is still in its buffer must not fail, either."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the program ends
    sys.exit(1)


lean_import.install()

_BASH = "COMPREPLY+=($value)"
_ZSH = "compadd -U -V unsorted -a completions"


class OpenBash(BashComplete):
    """bash: what ends with a slash goes on."""

    source_template = BashComplete.source_template.replace(
        _BASH, f"{_BASH}; [[ $value == */ ]] && compopt -o nospace 2> /dev/null"
    )


class OpenZsh(ZshComplete):
    """zsh: the same."""

    source_template = ZshComplete.source_template.replace(
        _ZSH,
        'local -a open=("${(@M)completions:#*/}") whole=("${(@)completions:#*/}")\n'
        "        compadd -U -V unsorted -a whole\n"
        "        compadd -U -S '' -V unsorted -a open",
    )


if "_GPULEDGER_COMPLETE" in os.environ:  # a shell asks
    add_completion_class(OpenBash)
    add_completion_class(OpenZsh)

NO_SPACE, NO_FILES = 2, 4
"""Of cobra's ShellCompDirective: the word goes on; and it is no file."""


@click.group(cls=SectionedGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpuledger")
@click.option("-v", "--verbose", is_flag=True, help="Log each action and its reason.")
def main(verbose: bool) -> None:
    """Share GPUs between pods, and keep a ledger of every share."""
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("kopf").setLevel(logging.INFO if verbose else logging.WARNING)


def kubectl_main() -> None:
    """Run as kubectl's plugin: the same commands under the name by which the user has called them."""
    main(prog_name="kubectl gpuledger")


def kubectl_complete() -> None:
    """Answer kubectl's question how the last word goes on: one way a line, then that these are no files."""
    from click.shell_completion import ShellComplete

    words = sys.argv[1:] or [""]
    items = ShellComplete(main, {}, "gpuledger", "").get_completions(words[:-1], words[-1])
    goes_on = bool(items) and all(str(found.value).endswith("/") for found in items)
    try:
        for found in items:
            click.echo(f"{found.value}\t{found.help}" if found.help else found.value)
        click.echo(f":{NO_FILES + NO_SPACE * goes_on}")
    except BrokenPipeError:
        leave_quietly()
