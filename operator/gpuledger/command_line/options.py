"""Parts that several commands share: options, the names of objects, exit statuses, and the settings.

What a command says of a cluster has to rest on the settings of the operator in that cluster.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpuledger.model.errors import BadInput, Denied, GpuledgerError, NotFound, did_you_mean

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence

    from gpuledger.command_line.cluster_access import ClusterAccess
    from gpuledger.configuration.settings import Settings
    from gpuledger.kube_api.client import KubeClient
    from gpuledger.reports.tables import Terminal


Result = TypeVar("Result")

settings_option = click.option(
    "--settings",
    "settings_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="GPULEDGER_SETTINGS",
    help="YAML file with settings; a setting that it leaves out keeps its default.",
)

extender_secret_option = click.option(
    "--extender-secret",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="GPULEDGER_EXTENDER_SECRET",
    help="File with the secret by which the operator knows kube-scheduler, the same for `run` and `scheduler-config`; "
    "one that is not there is made.  [env: GPULEDGER_EXTENDER_SECRET]",
)

context_option = click.option("--context", help="Context to use from the kubeconfig.")


def program_access_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say which cluster is meant, without ~/.kube/config.

    For programs that run in pods, and for simulated nodes, which a user's own cluster must not get by mistake.
    """
    kubeconfig = click.option(
        "--kubeconfig",
        type=click.Path(),
        envvar="KUBECONFIG",
        help="Kubeconfig file, or several, parted by colons; without it, the pod's service account.",
    )
    return kubeconfig(context_option(command))


def end_without_cluster(kubeconfig: str | None) -> None:
    """End a program with a message and 2 if it would reach no cluster: before it begins with anything else."""
    from gpuledger.kube_api.kubeconfig import check_named

    try:
        check_named(kubeconfig)
    except BadInput as error:
        raise Failed(str(error)) from error


def read_settings(file: Path | None, kubeconfig: str | None = None, context: str | None = None) -> Settings:
    """Return the settings of a file, and of the files and ConfigMaps that it names; these are read from the cluster.

    Ends the program with a message if it can't be used.
    """
    from gpuledger.configuration.settings import Settings

    if file is None:
        return Settings()
    from gpuledger.configuration.files import config_maps, settings_before_cluster, settings_of

    with settings_refused():
        settings = settings_before_cluster(file)
    names = config_maps(settings)
    if not names:
        return settings
    from gpuledger.workflows.list_and_watch import config_map_contents

    contents = in_cluster(kubeconfig, context, lambda client: config_map_contents(client, names))
    with settings_refused():
        return settings_of(file, contents)


@contextlib.contextmanager
def settings_refused() -> Iterator[None]:
    """Have settings that can't be used end the program with a message."""
    try:
        yield
    except BadInput as error:
        raise click.ClickException(str(error)) from error


def until_interrupted(
    work: Callable[[], object], new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> None:
    """Run a coroutine to its end, on another event loop if given; what goes wrong ends the program with a message."""
    import asyncio  # 50 ms, which help and `top` do without

    async def go() -> None:
        await work()  # type: ignore[misc]

    def run() -> None:
        with ended_by_errors(), asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(go())

    with_room_for_frames(run)


def with_room_for_frames(work: Callable[[], Result]) -> Result:
    """Return the result of work that is done with 512 KiB of memory for the frames of Python's functions.

    CPython takes that memory in chunks of 16 KiB, and gives a chunk back when its first frame ends (Python/pystate.c,
    `push_chunk`; 3.11 and later). A loop whose calls cross the end of a chunk maps and unmaps memory at each of them,
    which makes it ten times slower: a user's selector can arrange that. A frame that does not fit into a chunk gets one
    of twice its size, at least: so the frame of this call is as large as what the rest of the program never needs.
    """

    def call() -> Result:
        return work()

    wide = call.__code__.replace(co_stacksize=FRAME_WORDS)
    return FunctionType(wide, globals(), closure=call.__closure__)()  # type: ignore[no-any-return]


FRAME_WORDS = 1 << 16
"""Of 8 bytes. Memory that no frame has used costs addresses only."""


def in_cluster(kubeconfig: str | None, context: str | None, work: Callable[[KubeClient], Awaitable[Result]]) -> Result:
    """Return the result of work with a client, with the caller's account.

    An error ends the program with a message and 2.
    """
    from gpuledger.command_line.cluster_access import cluster_access, where_asked

    async def go(access: ClusterAccess) -> Result:
        async with access.client() as client:
            return await work(client)

    with errors_shown(), cluster_access(kubeconfig, context) as access:
        access.open()
        with _crd_asked(), where_asked():
            return access.run(lambda: go(access))


@contextlib.contextmanager
def _crd_asked() -> Iterator[None]:
    """Have an API server that does not know a path ask, too, whether the CRD is there."""
    try:
        yield
    except NotFound as error:
        raise BadInput(f"{error}; is the CRD installed? kubectl apply -k manifests/") from error


@contextlib.contextmanager
def ended_by_errors() -> Iterator[None]:
    """Have errors end a program of the cluster with a message and 2."""
    try:
        with _crd_asked():
            yield
    except KeyboardInterrupt:
        sys.exit(130)
    except (GpuledgerError, OSError) as error:
        raise Failed(str(error)) from error


# Commands for people: `kubectl gpuledger`.


class Failed(click.ClickException):
    """An error: the question has no answer."""

    exit_code = 2  # 1 would be the answer "no"


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


DURATION = re.compile(r"(?:(\d{1,4})d)?(?:(\d{1,5})h)?(?:(\d{1,6})m)?(?:(\d{1,8})s)?")


def duration_of(text: str) -> timedelta | None:
    """Return a duration such as 8h or 1d12h; None if the text is none."""
    found = DURATION.fullmatch(text)
    if found is None or not text:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)


# The objects that a command line names, as kubectl has them: KIND/NAME, KIND NAME, or KIND for all of that kind.


KINDS = {
    "pod": ("pod", "pods", "po"),
    "gang": ("gang", "gangs"),
    "workload": ("workload", "workloads", "wl", "workloads.kueue.x-k8s.io"),
    "node": ("node", "nodes", "no"),
    "card": ("card", "cards", "gpua", "gpuallocation", "gpuallocations", "gpuallocations.gpuledger.dev"),
}
"""Kind -> how people call it."""


OWNERS = {
    "job": ("job", "jobs", "jobs.batch"),
    "deployment": ("deployment", "deployments", "deploy", "deployments.apps"),
    "statefulset": ("statefulset", "statefulsets", "sts", "statefulsets.apps"),
    "replicaset": ("replicaset", "replicasets", "rs", "replicasets.apps"),
    "daemonset": ("daemonset", "daemonsets", "ds", "daemonsets.apps"),
    "cronjob": ("cronjob", "cronjobs", "cj", "cronjobs.batch"),
}
"""Kind of what makes pods -> how people call it; `explain` takes any other kind by its name."""


KIND_OF = {word: kind for kind, words in KINDS.items() for word in words}
OWNER_OF = {word: kind for kind, words in OWNERS.items() for word in words}


NAMESPACED = ("pod", "gang", "workload")
"""Of these, the kinds that are in a namespace."""


SHOWN = {"pod": "pod/NAME", "gang": "gang/NAME", "workload": "workload/NAME", "node": "node/NAME", "card": "card/UUID"}


@dataclass(frozen=True, slots=True)
class Named:
    """A named object, or all of a kind."""

    kind: str
    name: str | None
    """None: all of them."""


def named_objects(words: Sequence[str], kinds: Sequence[str], all_of: Sequence[str] = ()) -> list[Named]:
    """Return the named objects, of these kinds, in their order; of kinds in `all_of`, all can be meant.

    Raises BadInput with how to write it.
    """
    pairs = [word.partition("/") for word in words]
    if len({slash for _, slash, _ in pairs}) > 1:
        raise BadInput(f"{' '.join(words)!r} mixes KIND/NAME and KIND NAME: write one or the other")
    if "/" in "".join(words):
        return [_named("/".join((word, name)), word, name, kinds) for word, _, name in pairs]
    if not words:
        return []
    first, *names = words
    if names:
        return [_named(first, first, name, kinds) for name in names]
    kind = KIND_OF.get(first.lower(), "")
    if kind in kinds and kind not in all_of:
        raise BadInput(f"{first!r} has no name: write {SHOWN[kind]} or {SHOWN[kind].replace('/', ' ')}")
    if kind not in kinds:
        raise BadInput(f"{first!r} is {_neither(kinds)}{_meant(first, kinds)}")
    return [Named(kind, None)]


def one_object(words: Sequence[str], kinds: Sequence[str], all_of: Sequence[str] = ()) -> Named:
    """Return the one that the words name. Raises as `named_objects`, and for several."""
    found = named_objects(words, kinds, all_of)
    if len(found) != 1:
        raise BadInput(f"{' '.join(words)!r} names {len(found)} objects: name one at a time")
    return found[0]


def no_such(kind: str, name: str, namespace: str = "") -> str:
    """Return the sentence that there is no such object, in this namespace if it is in one."""
    return f"there is no {kind} {name!r}" + (f" in namespace {namespace!r}; -n names another" if namespace else "")


def _named(written: str, word: str, name: str, kinds: Sequence[str]) -> Named:
    kind = KIND_OF.get(word.lower(), "")
    if kind not in kinds or not name or "/" in name:
        raise BadInput(f"{written!r} is {_neither(kinds)}{_meant(word, kinds)}")
    return Named(kind, name)


def _meant(word: str, kinds: Sequence[str]) -> str:
    return "" if word.lower() in KIND_OF else did_you_mean(word.lower(), (w for kind in kinds for w in KINDS[kind]))


def _neither(kinds: Sequence[str]) -> str:
    shown = [SHOWN[kind] for kind in kinds]
    if len(shown) == 1:
        return f"not {shown[0]}"
    return f"neither {', '.join(shown[:-1])} nor {shown[-1]}" if len(shown) > 2 else f"neither {' nor '.join(shown)}"


def names(
    cluster: ClusterAccess, kinds: Iterable[str], incomplete: str, namespace: str | None, all_of: Iterable[str] = ()
) -> list[str]:
    """Return the completions of a word: first a kind, alone if all of it can be meant, then "card/GPU-...".

    Raises BadInput and ApiError.
    """
    kind, slash, begin = incomplete.partition("/")
    if not slash:
        words = [*(f"{each}/" for each in kinds), *(f"{each}s" for each in all_of)]
        return [each for each in words if each.startswith(kind)]
    meant = KIND_OF.get(kind, OWNER_OF.get(kind, ""))
    if meant not in kinds:
        return []
    return [f"{kind}/{name}" for name in _of_kind(cluster, meant, namespace) if name.lower().startswith(begin.lower())]


def _of_kind(cluster: ClusterAccess, kind: str, namespace: str | None) -> Iterator[str]:
    if kind in ("card", "node"):
        from gpuledger.command_line.output import all_cards

        field = "uuid" if kind == "card" else "nodeName"
        yield from sorted({str(item["spec"][field]) for item in all_cards(cluster)})
        return
    from gpuledger.command_line.owners import path_of
    from gpuledger.formats.kubernetes.gang import gang_name_of

    found = cluster.begin(path_of("pod" if kind == "gang" else kind, namespace or cluster.namespace()))
    if kind == "gang":
        yield from sorted({gang.name for pod in found if (gang := gang_name_of(pod))})
    else:
        yield from (str(item["metadata"]["name"]) for item in found)


def completed_names(
    *kinds: str, all_of: Sequence[str] = ()
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Return a function that completes the names of objects in a shell. An error completes nothing."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        from gpuledger.command_line.cluster_access import cluster_access

        flags = context.params
        try:
            with cluster_access(flags.get("kubeconfig"), flags.get("context")) as cluster:
                said = flags.get(parameter.name or "") or ()
                word = said[0] if isinstance(said, tuple) and said else ""  # node NAME, as node/NAME
                kind = KIND_OF.get(word, OWNER_OF.get(word))
                if isinstance(parameter, click.Option):  # its name says the kind
                    kind = kinds[0]
                if kind in kinds:
                    prefix = f"{kind}/"
                    found = names(cluster, kinds, prefix + incomplete, flags.get("namespace"))
                    return [name.removeprefix(prefix) for name in found]
                return names(cluster, kinds, incomplete, flags.get("namespace"), all_of)
        except (GpuledgerError, click.ClickException, OSError):
            return []

    return complete


EVERYWHERE = ("table", "wide", "json", "yaml")
"""What -o can be in every command; `csv` where it prints one table, `name` where that is of objects."""


@dataclass(frozen=True, slots=True)
class Common:
    """What every command for people is told: which cluster, which namespace, and how to print."""

    kubeconfig: str | None
    context: str | None
    no_color: bool = False
    output: str = "table"
    namespace: str | None = None
    """That of -n; None: the context's."""
    all_namespaces: bool = False

    @property
    def wide(self) -> bool:
        """Return whether everything is to be shown: each of many that are alike, and all columns."""
        return self.output in ("wide", "csv")

    @property
    def for_people(self) -> bool:
        """Return whether sentences may stand beside what is printed, or in its place."""
        return self.output in ("table", "wide")

    @contextlib.contextmanager
    def cluster(self) -> Iterator[ClusterAccess]:
        """Yield the way to the cluster; errors end the program with their text and 2."""
        from gpuledger.command_line.cluster_access import cluster_access

        with errors_shown(), cluster_access(self.kubeconfig, self.context) as cluster:
            yield cluster
            for note in cluster.notes:
                click.echo(note, err=True)

    def in_cluster(self, work: Callable[[KubeClient], Awaitable[Result]]) -> Result:
        """Return the result of work with a client, as the function of this name."""
        return in_cluster(self.kubeconfig, self.context, work)

    def namespace_named(self, cluster: ClusterAccess, wanted: Iterable[Named] = ()) -> str:
        """Return the namespace that is meant, empty for all of them. Raises BadInput."""
        if not self.all_namespaces:
            return self.namespace or cluster.namespace()
        if named := next((each for each in wanted if each.name is not None and each.kind in NAMESPACED), None):
            raise BadInput(f"{named.kind}/{named.name} is in one namespace: name that with -n, and leave out -A")
        return ""

    def show(
        self,
        found: Any,
        lines: Callable[[Terminal], Iterable[str]],
        names: Iterable[str] = (),
        narrowest: int = 0,
    ) -> None:
        """Print what was found as data, as names, or as the lines for people: of these CSV has the tables."""
        from gpuledger.command_line import output as out

        if self.output in ("json", "yaml"):
            sys.stdout.write(out.data(found, self.output))
            sys.stdout.flush()
        elif self.output == "name":
            out.write(names)
        else:
            out.write(lines(out.terminal_of(self.no_color, narrowest, csv=self.output == "csv")))


def common_options(*more: str, namespaced: bool = False) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options that all commands for people have, and pass them on as one argument, `common`.

    `more` are the outputs beyond those that each command has, `namespaced` says whether it is about objects of
    namespaces. It stands below the command's own options.
    """
    outputs = (*EVERYWHERE, *more)
    options = (
        *((namespace_option, all_namespaces_option) if namespaced else ()),
        click.option(
            "-o", "--output", type=click.Choice(outputs), default=outputs[0], show_default=True, help="Output format."
        ),
        click.option(
            "--kubeconfig",
            type=click.Path(),
            help="Kubeconfig file; without it, those in $KUBECONFIG, ~/.kube/config, or the pod's service account.",
        ),
        context_option,
        click.option(
            "--no-color",
            is_flag=True,
            help="No colours, the default if NO_COLOR is set or the output is not a terminal.",
        ),
    )
    names = [each.name for each in fields(Common)]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_common(*arguments: Any, **given: Any) -> None:
            common = Common(**{name: given.pop(name) for name in names if name in given})
            command(*arguments, common=common, **given)

        for option in reversed(options):
            option(with_common)
        return with_common

    return decorate


namespace_option = click.option(
    "-n", "--namespace", help="Namespace of pods and other objects that are in one.  [default: the context's]"
)
all_namespaces_option = click.option("-A", "--all-namespaces", is_flag=True, help="Those of all namespaces.")
operator_option = click.option(
    "--operator-url",
    envvar="GPULEDGER_URL",
    help="URL of the operator's view server; without it, the command runs kubectl port-forward.  "
    "[env: GPULEDGER_URL; a bearer token in GPULEDGER_TOKEN]",
)
usage_operator_option = click.option(
    "--operator-url",
    envvar="GPULEDGER_URL",
    help="With --usage: URL of the operator's view server, which then asks the agents in the command's place.  "
    "[env: GPULEDGER_URL; a bearer token in GPULEDGER_TOKEN]",
)


DEPLOYMENT, CONTAINER = "gpuledger", "operator"


def named_settings(file: Path | None, kubeconfig: str | None, context: str | None) -> Settings | None:
    """Return the settings of a file that was named, None if none was. A bad one ends the program with a message."""
    return None if file is None else read_settings(file, kubeconfig, context)


async def settings_in_use(client: KubeClient, named: Settings | None) -> Settings:
    """Return the settings that were named; else those of the cluster's Deployment; without one, the defaults.

    Raises BadInput if the Deployment's settings can't be read, and says that --settings names others.
    """
    from gpuledger.configuration.settings import Settings
    from gpuledger.doctor.reading import settings_of_workload
    from gpuledger.formats.kubernetes.other import LEASE_NAMESPACE
    from gpuledger.kube_api.reads import KubeReads

    if named is not None:
        return named
    try:
        deployment = await KubeReads(client).deployment(LEASE_NAMESPACE, DEPLOYMENT)
    except NotFound:  # it runs outside, or is not installed yet
        return Settings()
    except Denied as error:
        raise BadInput(f"the operator's settings can't be read: {error}; name them by --settings") from error
    try:
        found = await settings_of_workload(client, deployment, CONTAINER)
    except (BadInput, Denied, NotFound) as error:
        where = f"Deployment {LEASE_NAMESPACE}/{DEPLOYMENT}"
        raise BadInput(f"the settings of {where} can't be read: {error}; name them by --settings") from error
    return found[1] if found else Settings()
