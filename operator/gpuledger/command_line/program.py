"""The program: it imports the command that is asked for, and no other, so that each starts at once."""

from __future__ import annotations

import logging
import os
import sys

import click

from gpuledger import __version__
from gpuledger.command_line.sections import SectionedGroup
from gpuledger.kube_api import lean_import

lean_import.install()
if "_GPULEDGER_COMPLETE" in os.environ:  # a shell asks, and nobody else has to load it
    from gpuledger.command_line import shells

    shells.register()


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
    for found in items:
        click.echo(f"{found.value}\t{found.help}" if found.help else found.value)
    goes_on = bool(items) and all(str(found.value).endswith("/") for found in items)
    click.echo(f":{NO_FILES + NO_SPACE * goes_on}")
