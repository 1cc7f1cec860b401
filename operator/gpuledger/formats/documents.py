"""Files of Kubernetes objects: YAML with several documents, or JSON."""

from __future__ import annotations

from typing import Any

import orjson
import yaml

from gpuledger.formats.dialects.vendors import UNREADABLE
from gpuledger.model.errors import BadInput


def read_documents(text: str, where: str) -> list[object]:
    """Return the documents of a text. Raises BadInput if it is neither YAML nor JSON, or has none."""
    if text.lstrip()[:1] == "{":  # a cluster's objects are megabytes, and YAML in Python reads some 100 kB a second
        try:
            return [orjson.loads(text)]
        except orjson.JSONDecodeError:
            pass  # YAML can begin like that, too
    try:
        documents = [document for document in yaml.load_all(text, _Loader) if document is not None]
    except UNREADABLE as error:
        raise BadInput(f"{where} can't be read as YAML: {error}") from None
    if not documents:
        raise BadInput(f"{where} is empty: give the YAML of a Node or a Pod")
    return documents


class _Loader(yaml.SafeLoader):
    """Keeps timestamps as text, as Kubernetes has them, and makes Unicode of what JSON may escape in two halves."""

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        value = super().construct_scalar(node)
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if isinstance(value, str) else value


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
