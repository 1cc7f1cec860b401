"""The commands. What they run is imported when it is needed, so that help and small commands start at once."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO

import click

from gpuledger import __version__
from gpuledger.command_line.doctor import doctor
from gpuledger.command_line.look import COMMANDS
from gpuledger.command_line.options import (
    kubeconfig_option,
    own_kubeconfig_option,
    read_settings,
    settings_option,
    until_interrupted,
)
from gpuledger.command_line.sections import SectionedGroup
from gpuledger.command_line.simulate import simulate
from gpuledger.kube_api import lean_import
from gpuledger.model.errors import BadInput

if TYPE_CHECKING:
    from gpuledger.ledger.migration import Step

lean_import.install()


class AuditFailed(click.ClickException):
    """An error that kept the audit from its end."""

    exit_code = 2  # 1 would say that the ledger is wrong


@click.group(cls=SectionedGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpuledger")
@click.option("-v", "--verbose", is_flag=True, help="Log what is done and why.")
def main(verbose: bool) -> None:
    """Share GPUs between pods, and keep a ledger of every share."""
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("kopf").setLevel(logging.INFO if verbose else logging.WARNING)


@main.command()
@settings_option
@kubeconfig_option
@click.option(
    "--leader-elect/--no-leader-elect",
    default=True,
    show_default=True,
    envvar="GPULEDGER_LEADER_ELECT",
    help="Write only while the kube-scheduler beside this operator holds the schedulers' Lease.  "
    "[env: GPULEDGER_LEADER_ELECT]",
)
@click.option(
    "--host",
    envvar="GPULEDGER_HOST",
    help="Host name of that kube-scheduler; without it, this host's: they share a pod.  [env: GPULEDGER_HOST]",
)
@click.option(
    "--scheduler-config",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="GPULEDGER_SCHEDULER_CONFIG",
    help="Named pipe from which that kube-scheduler reads its configuration: it starts when this operator runs.  "
    "[env: GPULEDGER_SCHEDULER_CONFIG]",
)
def run(
    settings_file: Path | None,
    kubeconfig: Path | None,
    leader_elect: bool,
    host: str | None,
    scheduler_config: Path | None,
) -> None:
    """Run the operator: the ledger, and the scheduler's extender."""
    import uvloop

    from gpuledger.controller.kopf_frame import run as run_operator
    from gpuledger.controller.run_options import RunOptions, followed_host

    options = RunOptions(
        settings=read_settings(settings_file),
        kubeconfig=kubeconfig,
        host=followed_host(leader_elect, host),
        scheduler_pipe=scheduler_config,
    )
    until_interrupted(lambda: run_operator(options), uvloop.new_event_loop)


@main.command()
@settings_option
@kubeconfig_option
@click.option("--node-name", envvar="NODE_NAME", required=True, help="The node on which this runs.  [env: NODE_NAME]")
@click.option(
    "--kubelet-directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("/var/lib/kubelet"),
    show_default=True,
    help="Where the kubelet has its sockets.",
)
@click.option("--pod-uid", envvar="POD_UID", default="", help="UID of the pod in which this runs.  [env: POD_UID]")
def agent(
    settings_file: Path | None, kubeconfig: Path | None, node_name: str, kubelet_directory: Path, pod_uid: str
) -> None:
    """Run the node agent: tell the ledger of this node's GPUs, and containers of theirs."""
    from gpuledger.agent.supervisor import Supervisor
    from gpuledger.configuration.config_files import nodes_config
    from gpuledger.configuration.dialects import words_of

    settings = read_settings(settings_file)
    try:
        config, words = nodes_config(settings).of(node_name), words_of(settings)
    except BadInput as error:
        raise click.ClickException(str(error)) from error

    def serve(pipe: int) -> int:
        # Imported in the child alone: the parent, which only watches it, stays small.
        from gpuledger.agent.agent_plan import agent_plan, device_source
        from gpuledger.agent.startup import run_agent

        try:
            plan = agent_plan(settings, words, config, node_name, kubelet_directory, pod_uid)
        except BadInput as error:
            logging.error("%s", error)
            return 1
        until_interrupted(lambda: run_agent(plan, device_source(settings), kubeconfig, pipe))
        return 0

    sys.exit(Supervisor(serve).run())


@main.command("fake-nodes")
@settings_option
@kubeconfig_option
@click.option("--count", default=3, show_default=True, help="Number of nodes.")
@click.option("--gpus", default=8, show_default=True, help="Cards per node.")
@click.option("--model", default="A100-40GB", show_default=True, help="Model of the cards; see --list-models.")
@click.option("--number", type=int, help="Slots per card: how many shares it can have at once.  [default: 10]")
@click.option("--prefix", default="gpu-node", show_default=True, help="Nodes are called PREFIX-1, PREFIX-2, ...")
@click.option("--run-pods", is_flag=True, help="Go on, and play the kubelet for the pods of these nodes.")
@click.option("--list-models", is_flag=True, help="Show the models and end.")
def fake_nodes(
    settings_file: Path | None,
    kubeconfig: Path | None,
    count: int,
    gpus: int,
    model: str,
    number: int | None,
    prefix: str,
    run_pods: bool,
    list_models: bool,
) -> None:
    """Register simulated nodes, as a node agent and its kubelet would."""
    from gpuledger.agent import fake_nodes as fake
    from gpuledger.configuration.config_files import nodes_config
    from gpuledger.configuration.dialects import words_of

    if list_models:
        for name, memory_mib in fake.MODELS_MIB.items():
            click.echo(f"{name:<16} {memory_mib:>7} MiB")
        return
    settings = read_settings(settings_file)
    try:
        nodes = fake.fake_nodes(prefix, count, gpus, model, number, nodes_config(settings))
        counts = words_of(settings).counts(of=fake.VENDOR)
    except (ValueError, BadInput) as error:
        raise click.ClickException(str(error)) from error
    until_interrupted(lambda: fake.register(nodes, counts, kubeconfig, run_pods))


@main.command("scheduler-config")
@settings_option
@click.option("--leader-elect/--no-leader-elect", default=True, show_default=True)
@click.option("--output", type=click.File("w"), default="-", help="File to write to, instead of printing.")
@click.option(
    "--pipe",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Named pipe to make, instead of printing: `gpuledger run --scheduler-config` then fills it.",
)
def scheduler_config(settings_file: Path | None, leader_elect: bool, output: TextIO, pipe: Path | None) -> None:
    """Print the configuration of kube-scheduler that goes with the settings."""
    from gpuledger.controller.scheduler_config import make_pipe, scheduler_config_text

    content = scheduler_config_text(read_settings(settings_file), leader_elect)
    if pipe is not None:
        make_pipe(pipe)
    else:
        output.write(content)


@main.command("admission-policies")
@settings_option
@click.option(
    "--kind",
    type=click.Choice(["all", "validating", "mutating", "agents"]),
    default="all",
    show_default=True,
    help="The mutating one needs Kubernetes 1.36, the validating ones and that of the node agents 1.30.",
)
@click.option("--output", type=click.File("w"), default="-", help="File to write to, instead of printing.")
def admission_policies(settings_file: Path | None, kind: str, output: TextIO) -> None:
    """Print the API server's policies on pods and nodes that go with the settings."""
    from gpuledger.configuration.admission import policies

    kinds = frozenset(("validating", "mutating", "agents") if kind == "all" else (kind,))
    output.write(policies(read_settings(settings_file), kinds))


@main.command("webhook-config")
@settings_option
@click.option(
    "--kind",
    type=click.Choice(["all", "validating", "mutating"]),
    default="all",
    show_default=True,
    help="What it does: fill pods in (mutating), refuse them (validating), or both.",
)
@click.option("--url", default="", help="Where the API server finds it: https://HOST:PORT.  [default: our Service]")
@click.option("--ca-file", type=click.File("rb"), help="Certificates that vouch for the webhook's own, PEM.")
@click.option("--cert-manager", default="", metavar="NAMESPACE/NAME", help="Certificate whose CA is filled in later.")
@click.option("--output", type=click.File("w"), default="-", help="File to write to, instead of printing.")
def webhook_config(
    settings_file: Path | None, kind: str, url: str, ca_file: BinaryIO | None, cert_manager: str, output: TextIO
) -> None:
    """Print which new pods the API server sends to the webhook, for clusters without its policies."""
    from gpuledger.configuration.admission import webhook_configuration
    from gpuledger.formats.admission.webhook_configuration import WebhookAddress

    ca_bundle = ca_file.read() if ca_file else b""
    if ca_file and b"-----BEGIN CERTIFICATE-----" not in ca_bundle:
        raise click.ClickException(f"{ca_file.name} has no certificate in PEM")
    if url and not url.startswith("https://"):
        raise click.UsageError("--url must begin with https://")
    kinds = frozenset(("validating", "mutating") if kind == "all" else (kind,))
    address = WebhookAddress(url, ca_bundle, cert_manager)
    output.write(webhook_configuration(read_settings(settings_file), kinds, address))


@main.command()
def crd() -> None:
    """Print the CustomResourceDefinition of GPUAllocation."""
    from gpuledger.formats.custom_resource.crd import as_yaml

    click.echo(as_yaml(), nl=False)


@main.command()
@settings_option
@own_kubeconfig_option
@click.option("--fix", is_flag=True, help="Mend what can be mended without a person's decision.")
@click.option("--adopt", is_flag=True, help="With --fix: enter bound pods that the ledger lacks, by their annotation.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--settle-s", default=2.0, show_default=True, type=click.FloatRange(0), help="Seconds between two reads.")
@click.pass_context
def audit(
    context: click.Context,
    settings_file: Path | None,
    kubeconfig: Path | None,
    fix: bool,
    adopt: bool,
    output: str,
    settle_s: float,
) -> None:
    """Compare the ledger with pods, annotations and nodes, and show every difference.

    What is shown was seen by two reads, some seconds apart. Ends with 0 if nothing was found or all of it was mended,
    with 1 if something is left, with 2 after an error.
    """
    from gpuledger.command_line.audit import as_json, as_tables, run_audit

    if adopt and not fix:
        raise click.UsageError("--adopt enters shares, so it needs --fix")
    reports = []

    async def compare() -> None:
        reports.append(await run_audit(read_settings(settings_file), kubeconfig, settle_s, fix, adopt))

    try:
        until_interrupted(compare)
    except click.ClickException as error:
        raise AuditFailed(error.message) from error
    except Exception:
        logging.exception("the audit failed")
        context.exit(2)
    (report,) = reports
    click.echo(as_json(report) + "\n" if output == "json" else as_tables(report), nl=False)
    context.exit(1 if report.left else 0)


@main.command()
@settings_option
@own_kubeconfig_option
@click.option("--dry-run", is_flag=True, help="Show what would be entered, and change nothing.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.pass_context
def migrate(
    context: click.Context, settings_file: Path | None, kubeconfig: Path | None, dry_run: bool, output: str
) -> None:
    """Enter the pods that HAMi or Volcano has placed into the ledger, by their annotations.

    Users can write these annotations: look at what --dry-run shows first. Ends with 1 if something needs a person.
    """
    from gpuledger.command_line.migrate import as_json, as_table, run_migration

    steps: list[Step] = []

    async def move() -> None:
        steps.extend(await run_migration(read_settings(settings_file), kubeconfig, dry_run))

    until_interrupted(move)
    click.echo(as_json(steps) + "\n" if output == "json" else as_table(steps, dry_run), nl=False)
    context.exit(1 if any(step.why for step in steps) else 0)


@main.command()
@settings_option
@own_kubeconfig_option
@click.argument("names", nargs=-1, metavar="[node/NAME | pod/NAME]...")
@click.option("-f", "--filename", "files", multiple=True, help="YAML or JSON to read; - for standard input.")
@click.option("-n", "--namespace", default="default", show_default=True, help="Namespace of the pods that are named.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.pass_context
def inspect(
    context: click.Context,
    settings_file: Path | None,
    kubeconfig: Path | None,
    names: tuple[str, ...],
    files: tuple[str, ...],
    namespace: str,
    output: str,
) -> None:
    """Show what is understood of Nodes and Pods: their GPUs, what containers ask for, and every problem.

    Reads files, which needs no cluster, or objects of the cluster by name. Ends with 1 if there is a problem.
    """
    import asyncio

    from gpuledger.command_line.inspect import as_json, has_problems, inspect_live, inspect_text
    from gpuledger.command_line.inspect_tables import as_tables

    if not names and not files:
        raise click.UsageError("name something to inspect: -f FILE, -f -, node/NAME or pod/NAME")
    settings = read_settings(settings_file)
    found = []

    async def look() -> None:
        for file in files:
            text = await asyncio.to_thread(_text_of, file)
            found.extend(inspect_text(text, "standard input" if file == "-" else file, settings))
        if names:
            found.extend(await inspect_live(names, namespace, kubeconfig, settings))

    until_interrupted(look)
    click.echo(as_json(found) + "\n" if output == "json" else as_tables(found), nl=False)
    context.exit(1 if has_problems(found) else 0)


def _text_of(file: str) -> str:
    try:
        with click.open_file(file, encoding="utf-8") as opened:
            return str(opened.read())
    except UnicodeDecodeError as error:
        raise BadInput(f"{file} is no text: {error}") from None


main.add_command(doctor)
main.add_command(simulate)
for command in COMMANDS:
    main.add_command(command)


def kubectl_main() -> None:
    """Run as kubectl's plugin: the same commands under the name by which the user has called them."""
    main(prog_name="kubectl gpuledger")


def kubectl_complete() -> None:
    """Answer kubectl's question how the last word goes on: one way a line, then that these are no files."""
    from click.shell_completion import ShellComplete

    words = sys.argv[1:] or [""]
    for found in ShellComplete(main, {}, "gpuledger", "").get_completions(words[:-1], words[-1]):
        click.echo(f"{found.value}\t{found.help}" if found.help else found.value)
    click.echo(":4")  # cobra's ShellCompDirectiveNoFileComp
