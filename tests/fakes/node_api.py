"""The API server as an agent asks it: also for the pods of one node."""

import re
from typing import Any

from fakes.api_server import ApiServer, Operation
from gpuledger.formats.kubernetes.pod import bound_node

Json = dict[str, Any]


class NodeApi(ApiServer):
    """An API server in memory that knows the agent's selector, too."""

    def _list(self, operation: Operation, names: tuple[str, ...], parameters: dict[str, str]) -> list[Json]:
        of_node = re.fullmatch(r"spec\.nodeName=([^,]+)", parameters.get("fieldSelector", ""))
        if of_node is None:
            return super()._list(operation, names, parameters)
        return [pod for pod in self.pods.values() if bound_node(pod) == of_node[1]]
