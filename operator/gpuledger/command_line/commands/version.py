"""`gpuledger version`: of this program, and of the operator in the cluster."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from gpuledger import __version__
from gpuledger.command_line.cluster_access import ClusterAccess
from gpuledger.command_line.options import CONTAINER, DEPLOYMENT, Common, common_options, operator_option
from gpuledger.model.errors import ApiError, BadInput
from gpuledger.model.json_object import Json


@click.command(short_help="The version of this program, and of the operator.")
@click.option("--client", is_flag=True, help="Only that of this program: no cluster is asked.")
@operator_option
@common_options()
def version(client: bool, operator_url: str | None, common: Common) -> None:
    """Show the version of this program, and that of the operator.

    Asks the operator; where your account may not reach it, the image of its Deployment says it. `explain` and `history`
    need an operator of the same release. Exit status: 0, or 2 if the operator's version can't be found out.
    """
    found: Json = {"client": {"version": __version__}}
    if client:
        common.show(found, lambda _: _lines(found))
        return
    with common.cluster() as cluster:
        found["operator"] = _operators(cluster, operator_url)
    common.show(found, lambda _: _lines(found))
    sys.exit(0 if found["operator"]["version"] else 2)


def _operators(cluster: ClusterAccess, url: str | None) -> Json:
    """Return the operator's version, with who says it; or why it is not known."""
    from gpuledger.command_line.operator_view import answer
    from gpuledger.formats.kubernetes.other import LEASE_NAMESPACE

    try:
        return {"version": str(answer(cluster, "/v1/version", {}, url)["version"]), "source": "operator"}
    except (ApiError, BadInput, KeyError) as error:
        problem = " ".join(str(error).split())
    path = f"/apis/apps/v1/namespaces/{LEASE_NAMESPACE}/deployments/{DEPLOYMENT}"
    try:
        containers = cluster.read(path)["spec"]["template"]["spec"]["containers"]
        image = next(str(each["image"]) for each in containers if each["name"] == CONTAINER)
    except (ApiError, BadInput, KeyError, StopIteration):
        return {"version": None, "source": None, "problem": problem}
    tag = image.partition("@")[0].rpartition("/")[2].partition(":")[2]
    return {"version": tag or None, "source": f"image {image}", "problem": None if tag else problem}


def _lines(found: Json) -> Iterator[str]:
    yield f"client    {found['client']['version']}"
    if (operator := found.get("operator")) is None:
        return
    source = f" ({operator['source']})" if operator["source"] not in (None, "operator") else ""
    yield f"operator  {operator['version'] or 'unknown'}{source}"
    if problem := operator.get("problem"):
        yield f"          {problem}"
    elif operator["version"] != found["client"]["version"]:
        yield "they differ: explain and history need the same release"
