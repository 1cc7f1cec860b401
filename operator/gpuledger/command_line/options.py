"""What several commands share: options, the settings, and how they end."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuledger.configuration.settings import Settings
from gpuledger.model.errors import BadInput, GpuledgerError, NotFound

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

settings_option = click.option(
    "--settings",
    "settings_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="GPULEDGER_SETTINGS",
    help="YAML file with settings; what it leaves out has its default.",
)


def _own_kubeconfig() -> Path | None:
    """Return the file that kubectl takes of itself; None in a pod, which has an account."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return None
    file = Path(os.path.expanduser("~/.kube/config"))  # which stays as it is for a user without a home
    return file if file.is_file() else None


_KUBECONFIG = click.Path(exists=True, dir_okay=False, path_type=Path)
kubeconfig_option = click.option(
    "--kubeconfig",
    type=_KUBECONFIG,
    envvar="KUBECONFIG",
    help="How to reach the API server; without it, as the pod's service account.",
)
"""Of what runs in pods, and of what a person's own cluster must not get by an oversight: simulated nodes."""

own_kubeconfig_option = click.option(
    "--kubeconfig",
    type=_KUBECONFIG,
    envvar="KUBECONFIG",
    default=_own_kubeconfig,
    help="How to reach the API server; without it, by ~/.kube/config, and in a pod as its service account.",
)
"""Of what people run."""


def read_settings(file: Path | None) -> Settings:
    """Return the settings of a file, and of the files that it names.

    Ends the program with a message if it can't be used.
    """
    if file is None:
        return Settings()
    from gpuledger.configuration.settings_file import settings_of

    try:
        return settings_of(file)
    except BadInput as error:
        raise click.ClickException(str(error)) from error


def until_interrupted(
    work: Callable[[], object], new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> None:
    """Run a coroutine to its end, on another event loop if given; what goes wrong ends the program with a message."""
    import asyncio  # 50 ms, which help and `top` do without

    async def go() -> None:
        await work()  # type: ignore[misc]

    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(go())
    except KeyboardInterrupt:
        sys.exit(130)
    except NotFound as error:
        raise click.ClickException(f"{error}; is the CRD installed? kubectl apply -k manifests/") from error
    except (GpuledgerError, OSError) as error:
        raise click.ClickException(str(error)) from error
