"""The commands for people and scripts: who holds which card, why a pod waits, and which cards take no new pods.

They are those of `kubectl gpuledger`. Their logic is in the package `plugin`, imported when it is needed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from gpuledger.model.errors import BadInput, GpuledgerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpuledger.plugin.cards import Cluster
    from gpuledger.plugin.kubectl import Kubectl
    from gpuledger.plugin.tables import Page

Json = dict[str, Any]

VIEWS = ("nodes", "cards", "models", "namespaces")
SORTS = ("name", "memory", "cores", "slots", "cards", "pods", "state")
KINDS = ("assigned", "released", "adopted", "refused", "preempting", "evicted", "given-up")

NO_KUBECTL = "kubectl is not on the PATH, and --context needs it"


class Failed(click.ClickException):
    """An error: the question has no answer."""

    exit_code = 2  # 1 would be the answer "no"


def completed_names(*kinds: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return what completes the names of objects in a shell. What goes wrong there completes nothing."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        from gpuledger.plugin.completion import names

        flags = context.params
        try:
            cluster = _cluster(flags.get("kubeconfig"), flags.get("context"))
            if isinstance(parameter, click.Option):  # its name says the kind
                prefix = f"{kinds[0]}/"
                return [name.removeprefix(prefix) for name in names(cluster, kinds, prefix + incomplete, None)]
            return names(cluster, kinds, incomplete, flags.get("namespace"))
        except (GpuledgerError, click.ClickException, OSError):
            return []

    return complete


def access_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say which cluster is meant, and how to print."""
    for option in (
        click.option("--no-color", is_flag=True, help="No colours, as under NO_COLOR and where no terminal reads."),
        click.option("--context", help="Context of the kubeconfig."),
        click.option(
            "--kubeconfig", type=click.Path(), help="As kubectl's; without it, $KUBECONFIG or ~/.kube/config."
        ),
    ):
        command = option(command)
    return command


def output_option(*choices: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the option that says what is printed."""
    return click.option(
        "-o", "--output", type=click.Choice(choices), default=choices[0], show_default=True, help="What is printed."
    )


namespace_option = click.option("-n", "--namespace", help="Namespace of the pod.  [default: the context's]")
operator_option = click.option(
    "--operator-url",
    envvar="GPULEDGER_URL",
    help="Where the operator's view server is; without it, behind a kubectl port-forward of its own.  "
    "[env: GPULEDGER_URL; a bearer token in GPULEDGER_TOKEN]",
)


@click.command(short_help="How much of the GPUs is taken, and by whom.")
@click.argument("view", type=click.Choice(VIEWS), default="nodes", metavar=f"[{'|'.join(VIEWS)}]")
@click.option("-w", "--watch", is_flag=True, help="Go on, and show what changes, until Ctrl-C.")
@click.option("--node", shell_complete=completed_names("node"), help="Only the cards of this node.")
@click.option("-l", "--selector", help="Only the cards of nodes with these labels, as kubectl's -l.")
@click.option(
    "--sort", type=click.Choice(SORTS), default="name", show_default=True, help="The fullest first, or names."
)
@output_option("table", "wide", "json", "yaml")
@access_options
def top(
    view: str,
    watch: bool,
    node: str | None,
    selector: str | None,
    sort: str,
    output: str,
    kubeconfig: str | None,
    context: str | None,
    no_color: bool,
) -> None:
    """Show how much of the GPUs is taken: memory, compute, slots.

    Reads the ledger from the API server; the operator need not run. Ends with 0, or with 2 after an error.
    """
    if watch and selector:
        raise click.UsageError("--watch can't follow the labels of nodes: use --node")
    with errors_shown():
        cluster = _cluster(kubeconfig, context)
        from gpuledger.plugin.cards import begin_cards, objects_in, uncollected

        answer = begin_cards(cluster, node)  # on its way while the rest is imported
        chosen = cluster.begin("/api/v1/nodes", {"labelSelector": selector}) if selector else None
        from gpuledger.formats.custom_resource.stored_card import stored_card
        from gpuledger.plugin import output as out
        from gpuledger.plugin.top import lines_of, names_in, of_nodes, top_json, top_table
        from gpuledger.reports.cards import report_of_stored

        page = out.page_of(no_color)
        with uncollected():
            objects = of_nodes(objects_in(answer, node), names_in(chosen) if chosen else None)
            reports = [] if watch else [report_of_stored(stored_card(item)) for item in objects]
        if watch:
            _watch(cluster, view, node, sort, output, page, list(objects))
        elif output in ("json", "yaml"):
            click.echo(out.data(top_json(view, reports), output), nl=False)
        elif not reports:
            click.echo("No cards in the ledger" + (" of these nodes." if node or selector else "."), err=True)
        else:
            out.write(top_table(view, lines_of(view, reports, sort), page, output == "wide", page.width is not None))


def _watch(
    cluster: Cluster, view: str, node: str | None, sort: str, output: str, page: Page, objects: list[Json]
) -> None:
    from gpuledger.plugin.live import Wanted, run_watch

    logging.getLogger("gpuledger").setLevel(logging.WARNING)  # the picture says what keeps news away
    sys.exit(run_watch(cluster, Wanted(view, output, sort, page, node), objects))


@click.command(short_help="A pod's cards, or a card's holders.")
@click.argument("name", metavar="pod/NAME | card/UUID", shell_complete=completed_names("pod", "card"))
@namespace_option
@output_option("table", "json", "yaml")
@access_options
def get(
    name: str, namespace: str | None, output: str, kubeconfig: str | None, context: str | None, no_color: bool
) -> None:
    """Show a pod's cards and what its containers were told, or who holds a card.

    The beginning of a UUID is enough where no other card has it. Ends with 0, or with 2 after an error: also if there
    is no such pod or card.
    """
    from gpuledger.plugin import get as views

    with errors_shown():
        cluster = _cluster(kubeconfig, context)
        kind, _, rest = name.partition("/")
        if kind in ("pod", "po", "pods") and rest:
            found = views.pod_json(cluster, namespace or cluster.namespace(), rest)
        elif kind in ("card", "cards", "gpua") and rest:
            found = views.card_json(cluster, rest)
        else:
            raise BadInput(f"{name!r} is neither pod/NAME nor card/UUID")
        _print(found, output, lambda page: views.lines(found, page), no_color)


@click.command(short_help="Why a pod waits, node by node.")
@click.argument("name", metavar="pod/NAME", shell_complete=completed_names("pod"))
@namespace_option
@operator_option
@output_option("table", "wide", "json", "yaml")
@access_options
def explain(
    name: str,
    namespace: str | None,
    operator_url: str | None,
    output: str,
    kubeconfig: str | None,
    context: str | None,
    no_color: bool,
) -> None:
    """Say why a pod waits: for each node what is missing there, and what would help; with -o wide, for each card.

    Asks the operator. Ends with 0 if the pod has its place, with 1 if it has none, with 2 after an error: also if the
    operator knows of no such pod.
    """
    from gpuledger.plugin.explain import explain_lines, is_placed
    from gpuledger.plugin.spelling import utc_now

    kind, _, rest = name.rpartition("/")
    if kind not in ("", "pod", "po", "pods") or not rest:
        raise click.UsageError(f"{name!r} is not pod/NAME")
    with errors_shown():
        namespace = namespace or _namespace(kubeconfig, context)
        found = _ask("/v1/explain", {"pod": f"{namespace}/{rest}"}, operator_url, kubeconfig, context)
        _print(found, output, lambda page: explain_lines(found, page, utc_now(), output == "wide"), no_color)
        placed = is_placed(found)
    sys.exit(0 if placed else 1)


@click.command(short_help="What happened to a pod, a card or a node.")
@click.argument(
    "name",
    required=False,
    metavar="[pod/NAME | card/UUID | node/NAME]",
    shell_complete=completed_names("pod", "card", "node"),
)
@namespace_option
@click.option("--kind", type=click.Choice(KINDS), help="Only records of this kind.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="The last so many records.")
@operator_option
@output_option("table", "wide", "json", "yaml")
@access_options
def history(
    name: str | None,
    namespace: str | None,
    kind: str | None,
    limit: int,
    operator_url: str | None,
    output: str,
    kubeconfig: str | None,
    context: str | None,
    no_color: bool,
) -> None:
    """Show what happened to a pod, a card, a node, or in all: newest last.

    Asks the operator, which remembers what it has seen since it started. Ends with 0, or with 2 after an error.
    """
    from gpuledger.plugin.history import history_lines, question
    from gpuledger.plugin.spelling import utc_now

    with errors_shown():
        of_pod = name is not None and name.startswith("po")
        asked = question(name, (namespace or _namespace(kubeconfig, context)) if of_pod else "", kind, limit)
        found = _ask("/v1/history", asked, operator_url, kubeconfig, context)
        now = utc_now().astimezone()
        _print(found, output, lambda page: history_lines(found, page, now, output == "wide"), no_color)


@click.command(short_help="Let cards or a node take no new pods.")
@click.argument(
    "names",
    nargs=-1,
    required=True,
    metavar="[card/UUID | node/NAME]...",
    shell_complete=completed_names("card", "node"),
)
@click.option("--reason", default="cordoned by hand", show_default=True, help="What the card then shows.")
@access_options
def cordon(names: tuple[str, ...], reason: str, kubeconfig: str | None, context: str | None, no_color: bool) -> None:
    """Let cards take no new pods, or all cards of a node; who holds them stays.

    Writes the annotation gpuledger.dev/cordoned, for which your account needs `patch` on gpuallocations. Ends with 0,
    or with 2 after an error; said twice, it changes nothing.
    """
    _change(names, reason, kubeconfig, context)


@click.command(short_help="Let them take new pods again.")
@click.argument(
    "names",
    nargs=-1,
    required=True,
    metavar="[card/UUID | node/NAME]...",
    shell_complete=completed_names("card", "node"),
)
@access_options
def uncordon(names: tuple[str, ...], kubeconfig: str | None, context: str | None, no_color: bool) -> None:
    """Let cordoned cards take new pods again. Ends as `cordon` does."""
    _change(names, None, kubeconfig, context)


COMMANDS = (top, get, explain, history, cordon, uncordon)


def _change(names: tuple[str, ...], reason: str | None, kubeconfig: str | None, context: str | None) -> None:
    from gpuledger.plugin.cordon import change_cordons, told

    failed = False
    with errors_shown():
        for done in change_cordons(_cluster(kubeconfig, context), names, reason):
            try:
                click.echo(told(done), err=done["error"] is not None)
            except BrokenPipeError:  # nobody reads on; that is no reason to leave the other cards as they are
                sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - until the program ends
            failed = failed or done["error"] is not None
    sys.exit(2 if failed else 0)


def _cluster(kubeconfig: str | None, context: str | None) -> Cluster:
    """Return the way to the cluster: kubectl, or a client in Python where there is none."""
    from gpuledger.plugin.kubectl import find_kubectl

    if kubectl := find_kubectl(kubeconfig, context):
        return kubectl
    if context:
        raise BadInput(NO_KUBECTL)
    from gpuledger.plugin.account import Account

    return Account(kubeconfig or os.environ.get("KUBECONFIG"))


def _namespace(kubeconfig: str | None, context: str | None) -> str:
    return _cluster(kubeconfig, context).namespace()


def _ask(path: str, asked: dict[str, str], url: str | None, kubeconfig: str | None, context: str | None) -> Json:
    from gpuledger.plugin.kubectl import find_kubectl
    from gpuledger.plugin.operator_view import View, forwarded

    token = os.environ.get("GPULEDGER_TOKEN")
    if url:
        return View(url, token).ask(path, asked)
    kubectl: Kubectl | None = find_kubectl(kubeconfig, context)
    with forwarded(kubectl) as address:
        return View(address, token).ask(path, asked)


def _print(found: Json, output: str, lines: Callable[[Page], list[str]], no_color: bool) -> None:
    from gpuledger.plugin import output as out

    if output in ("json", "yaml"):
        click.echo(out.data(found, output), nl=False)
    else:
        out.write(lines(out.page_of(no_color)))


@contextlib.contextmanager
def errors_shown() -> Iterator[None]:
    """Have errors end the program with their text and 2; a reader that has gone away is none."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # click ends quietly
        raise
    except (GpuledgerError, OSError) as error:
        raise Failed(str(error)) from error
