"""The order of events behind a finding: steps, requests, and what became of the pods and cards, in one list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from chaos.arithmetic import DEVICES, holders_of, why_it_waits
from chaos.claims import claim_names, devices_of, reserved_for
from chaos.history import Change
from chaos.outcome import Outcome

Json = dict[str, Any]
Line = tuple[float, str]

BEFORE_S = 1.0
"""How long before the chaos the list begins."""


def write_trace(outcome: Outcome[Any], command: str, file: Path) -> None:
    """Write what is known of a failed run, and the programs' logs beside it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    begin_s = outcome.begin_s
    lines = [f"seed {outcome.plan.seed}; to repeat it: {command}", ""]
    for finding in outcome.findings:
        when = f"{finding.at_s - begin_s:.3f} s, revision {finding.revision}" if finding.revision else "at rest"
        lines += [f"FINDING ({when}) {finding.rule}:", *(f"    {line}" for line in finding.text.splitlines()), ""]
    lines += ["Seconds since the chaos began, and what happened to the pods and cards of the findings:", ""]
    lines += [f"{at_s - begin_s:9.3f}  {text}" for at_s, text in events(outcome) if at_s > begin_s - BEFORE_S]
    file.write_text("\n".join(lines) + "\n")
    for name, text in outcome.logs.items():
        file.with_name(f"{file.stem}.{name}").write_text(text)


def events(outcome: Outcome[Any]) -> list[Line]:
    """Return everything that concerns the findings, in its order."""
    pods = {uid for finding in outcome.findings for uid in finding.pods}
    cards = {uuid for finding in outcome.findings for uuid in finding.cards}
    seen = [each for each in outcome.changes if each.kind == "pod" and _object(each)["metadata"]["uid"] in pods]
    names = {each.key for each in seen}
    claims = {
        f"{each.key.partition('/')[0]}/{name}" for each in seen for _, name, _ in claim_names(_object(each)) if name
    }
    changes = _changes(outcome.changes, names | claims, pods, cards)
    lines = [*_steps(outcome, names), *_requests(outcome, names | claims, cards), *changes]
    return sorted(lines, key=lambda line: line[0])


def _steps(outcome: Outcome[Any], names: set[str]) -> Iterator[Line]:
    for done in outcome.done:
        if not done.step.subject or done.step.subject in names:
            yield done.at_s, f"STEP {done.step}"


def _requests(outcome: Outcome[Any], names: set[str], cards: set[str]) -> Iterator[Line]:
    words = {name.partition("/")[2] for name in names} | {uuid.lower() for uuid in cards}
    for at_s, proxy, text in outcome.exchanges:
        subject = text.partition(": ")[0].split()[-1]
        if subject in words or ("passed" not in text and text.startswith(("list", "watch", "running"))):
            yield at_s, f"{proxy}: {text}"


def _changes(changes: Iterable[Change], names: set[str], pods: set[str], cards: set[str]) -> Iterator[Line]:
    for change in changes:
        if change.kind == "pod" and change.key in names:
            yield change.at_s, f"[{change.revision}] pod {change.key} {_pod(change)}"
        elif change.kind == "claim" and change.key in names:
            yield change.at_s, f"[{change.revision}] claim {change.key} {_claim(change)}"
        elif change.kind == "card":
            text = _card(change, pods, of_all=_object(change)["spec"]["uuid"] in cards)
            if text:
                yield change.at_s, f"[{change.revision}] card {_object(change)['spec']['uuid']} {text}"


def _pod(change: Change) -> str:
    if change.now is None:
        return "is gone"
    metadata, status = change.now["metadata"], change.now.get("status") or {}
    said = [f"uid {metadata['uid']}", status.get("phase", "")]
    if change.now["spec"].get("nodeName"):
        said.append(f"on node {change.now['spec']['nodeName']}")
    if status.get("startTime"):
        said.append(f"started {status['startTime']}")
    if metadata.get("deletionTimestamp"):
        said.append(f"to be deleted by {metadata['deletionTimestamp']}")
    if not change.now["spec"].get("nodeName"):
        said += [f"told: {text}" for text in why_it_waits(change.now)]
    for name, value in (metadata.get("annotations") or {}).items():
        if name.startswith("gpuledger.dev/") and (name == DEVICES or not _had(change, name, value)):
            said.append(f"{name}={value}")
    return ", ".join(said)


def _claim(change: Change) -> str:
    if change.now is None:
        return "is gone"
    said = [f"has {devices_of(change.now)}, for {sorted(reserved_for(change.now))}"]
    if change.now["metadata"].get("deletionTimestamp"):
        said.append("is being deleted")
    return ", ".join(said)


def _had(change: Change, name: str, value: str) -> bool:
    return bool(((change.before or {}).get("metadata", {}).get("annotations") or {}).get(name) == value)


def _card(change: Change, pods: set[str], of_all: bool) -> str:
    """Say what has changed on a card, for these pods or for all; nothing if nothing has."""
    before = {holder["podUID"]: holder for holder in holders_of(change.before or {})}
    now = {holder["podUID"]: holder for holder in holders_of(change.now or {})}
    changed = [uid for uid in before.keys() | now.keys() if before.get(uid) != now.get(uid) and (of_all or uid in pods)]
    said = [f"{_holder(before.get(uid))} -> {_holder(now.get(uid))}" for uid in changed]
    if of_all:
        said += [text for what in ("spec", "phase", "claims", "ended") if (text := _difference(change, what))]
    return "; ".join(said)


def _holder(holder: Json | None) -> str:
    if holder is None:
        return "nothing"
    amounts = f"{holder['memoryMiB']} MiB, {holder['cores']} %, {holder['number']} slots"
    containers = "+".join(f"{c['name']}={c['memoryMiB']}" for c in holder["containers"])
    until = f" until {holder['deadline']}" if holder.get("deadline") else ""
    return f"{holder['namespace']}/{holder['pod']} ({amounts}; {containers}; {holder['state']}{until})"


def _difference(change: Change, what: str) -> str:
    def part(card: Json | None) -> object:
        if card is None:
            return "gone"
        if what == "ended":
            return [each["key"] for each in (card.get("status") or {}).get("ended") or ()]
        if what in ("phase", "claims"):  # claims keep room for a pod that preempts
            return (card.get("status") or {}).get(what)
        spec = card["spec"]
        return {"node": spec["nodeName"], "healthy": spec["healthy"], **spec["capacity"]}

    before, now = part(change.before), part(change.now)
    return "" if before == now else f"{what} {before} -> {now}"


def _object(change: Change) -> Json:
    return change.now or change.before or {}
