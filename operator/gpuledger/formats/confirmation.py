"""How an operator learns from a node's agent what containers have, before a card whose object is new takes pods.

An annotation of the agent's pod, and one of its Node:

    gpuledger.dev/confirm: 5f2c91d0a3b8e746
    gpuledger.dev/granted: {"answers": "5f2c91d0a3b8e746", "cards": {"GPU-6872...": [{"podUID": ...}]}}

The operator writes the first: a token that it has made up after it had seen the new objects. The agent repeats the
token, with the shares that it has given to containers, in the form in which a GPUAllocation lists its holders. So an
answer is always later than the objects that it is about, whatever was restored or repeated. A Node without that
annotation has no agent that answers. Each writes where it may write anyway: the operator nothing into Nodes, and an
agent nothing into pods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gpuledger.formats.custom_resource.stored_card import holder_json, read_holder
from gpuledger.model.errors import BadInput
from gpuledger.model.share import Holder

CONFIRM_ANNOTATION = "gpuledger.dev/confirm"
GRANTED_ANNOTATION = "gpuledger.dev/granted"

LONGEST_ANSWER = 200 * 1024
"""Characters: all annotations of an object together may have 256 KiB. A share takes some 250."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The agent's word on what containers of its node have."""

    token: str
    """Of the question; empty if it was asked none."""
    holders: tuple[Holder, ...] = ()


def answer_text(token: str, holders: Iterable[Holder] = ()) -> str:
    """Return the agent's annotation. Raises BadInput if there is more to say than an annotation can hold."""
    cards: dict[str, list[Any]] = {}
    for holder in sorted(holders, key=lambda each: (each.share.uuid, str(each.pod), each.pod.uid)):
        cards.setdefault(holder.share.uuid, []).append(holder_json(holder))
    text = orjson.dumps({"answers": token, "cards": cards}).decode()
    if len(text) > LONGEST_ANSWER:
        raise BadInput(f"{GRANTED_ANNOTATION} would have {len(text):,} characters, and may have {LONGEST_ANSWER:,}")
    return text


def asked(pod: Mapping[str, Any]) -> str:
    """Return the token of the question that an agent's pod carries, empty for none."""
    return str(_annotations(pod).get(CONFIRM_ANNOTATION, ""))


def answer_of(node: Mapping[str, Any]) -> str | None:
    """Return the answer that a Node carries, as it is written; None if its agent answers no questions."""
    text = _annotations(node).get(GRANTED_ANNOTATION)
    return None if text is None else str(text)


def read_answer(text: str) -> Answer:
    """Return the answer in an annotation. Raises BadInput."""
    try:
        read = orjson.loads(text)
        holders = [read_holder(uuid, each) for uuid, listed in read["cards"].items() for each in listed]
        return Answer(str(read["answers"]), tuple(holders))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{GRANTED_ANNOTATION} can't be read: {error!r}") from error


def _annotations(found: Mapping[str, Any]) -> Mapping[str, Any]:
    return (found.get("metadata") or {}).get("annotations") or {}
