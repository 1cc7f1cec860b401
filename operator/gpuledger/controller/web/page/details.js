// The panel's details: a card with its holders, or a pod with the reasons why it waits.

import { isAlone, phaseOf, podOf } from "./cluster.js";
import { duration, el, mib, moment, number, percent, plural, secondsSince } from "./dom.js";

const NODES_SHOWN = 50; // of a group; the others are counted
const OPEN_UP_TO = 3; // so few nodes are shown without being asked for

/** A link to a pod's explanation. */
export function podLink(pod, key = "") {
  return el("a", { href: `#pod=${encodeURIComponent(pod)}`, "data-key": `${key}${pod}`, text: pod });
}

export function title(text) { return el("h2", { class: "title", tabindex: -1, "data-key": "title", text }); }

export function chip(text, kind) { return el("span", { class: `chip ${kind}`, text }); }

function gauge(label, used, capacity, text) {
  const meter = el("span", { class: "meter", "aria-hidden": "true" }, el("span", {}));
  meter.firstChild.style.width = `${Math.min(100, capacity ? (100 * used) / capacity : 0)}%`;
  return el("div", { class: "gauge" }, el("dt", { text: label }), el("dd", {}, text, meter));
}

export function fact(label, value) { return value === null || value === undefined || value === "" ? null : el("div", {}, el("dt", { text: label }), el("dd", {}, value)); }

/** A card, and what is used of it by its node's agent's word; null where that is not shown. */
export function cardDetails(card, use, node) {
  const phase = phaseOf(card);
  const { used, capacity } = card;
  const state = [chip(phase.mark ? `${phase.mark} ${phase.word}` : phase.word, `is-${phase.word.replaceAll(" ", "-")}`)];
  if (isAlone(card)) state.push(chip("A one pod alone", ""));
  return [
    title(`GPU ${card.index} of ${card.node}`),
    el("p", { class: "chips" }, state),
    card.reason && el("p", { class: "reason", text: card.reason }),
    el("dl", { class: "gauges" },
      gauge("Memory", used.memoryMiB, capacity.memoryMiB, `${number(used.memoryMiB)} of ${mib(capacity.memoryMiB)}`),
      gauge("Cores", used.cores, capacity.cores, `${used.cores} of ${capacity.cores} %`),
      gauge("Slots", used.number, capacity.number, `${used.number} of ${capacity.number}`)),
    el("h3", { text: card.holders.length ? plural(card.holders.length, "pod") : "No pods" }),
    card.holders.length ? holders(card) : el("p", { class: "dim", text: "No pod holds a share of this card." }),
    useDetails(use, node),
    el("dl", { class: "facts" },
      fact("Model", card.model), fact("Vendor", card.vendor), fact("Mode", card.mode), fact("NUMA node", card.numaNode === null ? "" : String(card.numaNode)),
      fact("Promised to", card.claims ? `${plural(card.claims, "waiting pod")}, once others have left` : ""),
      fact("Conflicts", card.conflicts ? `${plural(card.conflicts, "share")} found here without room for them` : ""),
      fact("UUID", el("code", { text: card.uuid }))),
  ];
}

function holders(card) {
  const heads = ["Pod", "MiB", "Cores", "Slots", "Priority"];
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Pods on this card" }, el("table", {},
    el("thead", {}, el("tr", {}, heads.map((head, place) => el("th", { scope: "col", class: place ? "figure" : null, text: head })))),
    el("tbody", {}, card.holders.map((holder) => {
      const notes = [holder.state === "allocated" ? "" : holder.state, holder.exclusive ? "alone" : "", holder.gang ? `gang ${holder.gang}` : ""].filter(Boolean).join(", ");
      return el("tr", {},
        el("th", { scope: "row" }, podLink(podOf(holder)), notes && el("span", { class: "note", text: notes })),
        el("td", { class: "figure", text: number(holder.memoryMiB), title: `${percent(holder.memoryMiB, card.capacity.memoryMiB)} of the card` }),
        el("td", { class: "figure", text: `${holder.cores} %` }),
        el("td", { class: "figure", text: String(holder.number) }),
        el("td", { class: "figure", text: String(holder.priority) }));
    }))));
}

const KINDS = { "in use": "is-ready", idle: "is-cordoned" };
const known = (value, text) => (value === null ? "?" : text(value));

/** What is used of a card, container by container; nothing while nobody looks at that. */
function useDetails(use, node) {
  if (!use) return null;
  const rows = use.pods.flatMap((pod) => pod.containers.map((container) => [`${pod.namespace}/${pod.pod}: ${container.container}`, container]));
  const { memoryUsedMiB, memoryHeldMiB, memoryIdleMiB, utilizationPercent } = use;
  return [
    el("h3", { text: "Used beside held" }),
    node?.problem ? el("p", { class: "reason", text: `Not known: ${node.problem}.` }) : null,
    el("dl", { class: "gauges" },
      gauge("In use", memoryUsedMiB ?? 0, memoryHeldMiB, `${known(memoryUsedMiB, number)} of ${mib(memoryHeldMiB)} held`),
      gauge("Busy", utilizationPercent ?? 0, 100, known(utilizationPercent, (percent) => `${percent} % of the time`)),
      memoryIdleMiB ? gauge("Idle", memoryIdleMiB, memoryHeldMiB, `${mib(memoryIdleMiB)} held and idle`) : null),
    rows.length ? containers(rows) : null,
  ];
}

function containers(rows) {
  const heads = ["Container", "MiB in use", "Busy", "State"];
  return el("div", { class: "scroll uses", tabindex: 0, role: "region", "aria-label": "What containers use of this card" }, el("table", {},
    el("thead", {}, el("tr", {}, heads.map((head, place) => el("th", { scope: "col", class: place && place < 3 ? "figure" : null, text: head })))),
    el("tbody", {}, rows.map(([name, each]) => el("tr", {},
      el("th", { scope: "row", text: name }),
      el("td", { class: "figure", title: each.memoryLimitMiB === null ? "no limit is enforced" : `limited to ${mib(each.memoryLimitMiB)}`, text: `${known(each.memoryUsedMiB, number)} of ${number(each.memoryHeldMiB)}` }),
      el("td", { class: "figure", text: known(each.utilizationPercent, (percent) => `${percent} %`) }),
      el("td", { title: each.lastKernelSecondsAgo === null ? null : `its last kernel began ${duration(each.lastKernelSecondsAgo)} ago` },
        el("span", { class: `chip ${KINDS[each.state] ?? ""}`, text: each.state === "idle" && each.lastKernelSecondsAgo !== null ? `idle, ${duration(each.lastKernelSecondsAgo)}` : each.state })))))));
}

const STATES = { waiting: "waits", placed: "has its cards", "being-freed": "room is being made", "on-hold": "cards are on hold for it", "not-tried": "not tried yet" };

/** An Explanation, as /v1/explain gives it. */
export function podDetails(found, again) {
  const kind = found.state === "placed" ? "is-ready" : found.state === "waiting" ? "is-cordoned" : "";
  const nodes = found.nodes ?? [];
  return [
    title(`${found.namespace}/${found.pod}`),
    el("p", { class: "chips" }, chip(STATES[found.state] ?? found.state, kind), found.priority ? chip(`priority ${found.priority}`, "") : null,
      el("button", { type: "button", class: "quiet", "data-key": "again", text: "Ask again", on: { click: again } })),
    el("p", { class: "reason", text: found.summary }),
    el("dl", { class: "facts" },
      fact("Gang", found.gang ? el("a", { href: `#gang=${encodeURIComponent(`${found.namespace}/${found.gang}`)}`, "data-key": "gang", text: found.gang }) : ""),
      fact("Queue", found.queue),
      fact("Waits for", found.since ? duration(secondsSince(found.since)) : ""),
      fact("Last tried", found.lastTried ? moment(found.lastTried) : ""),
      fact("Scheduler", found.schedulerSays),
      fact("Not offered", found.schedulerRefused ? `${plural(found.schedulerRefused, "node")} with cards that kube-scheduler itself did not offer (taints, CPU, selectors)` : "")),
    found.containers?.length ? [el("h3", { text: "What it requests" }), el("ul", { class: "plain" }, found.containers.map((container) => el("li", {}, el("strong", { text: container.claim ? `claim ${container.claim}, request ${container.request}` : container.name }), ` ${asked(container)}`)))] : null,
    found.holds?.length ? [el("h3", { text: "Its cards" }), el("ul", { class: "plain" }, found.holds.map((hold) => el("li", {},
      el("a", { href: `#card=${encodeURIComponent(hold.uuid)}`, "data-key": hold.uuid, text: `GPU ${hold.index} of ${hold.node}` }),
      ` ${mib(hold.memoryMiB)}, ${hold.cores} % cores${hold.exclusive ? ", alone" : ""}`)))] : null,
    nodes.length ? [el("h3", { text: `Node by node: ${plural(nodes.length, "node")}` }), nodesDetails(nodes)] : null,
  ];
}

/** Why nodes do not take a pod. */
export function nodesDetails(nodes) {
  const groups = grouped(nodes);
  return groups.map((group) => groupDetails(group, groups.length));
}

function asked({ gpus: cards, memoryMiB, memoryPercent, cores, exclusive }) {
  const memory = memoryMiB ? mib(memoryMiB) : memoryPercent ? `${memoryPercent} % of the memory` : "";
  return [plural(cards, "card"), memory && `${memory}${cards > 1 ? " each" : ""}`, cores ? `${cores} % cores` : "", exclusive ? "alone" : ""].filter(Boolean).join(", ");
}

/** Nodes with the same answer together, the most frequent first. */
function grouped(nodes) {
  const groups = new Map();
  for (const node of nodes) {
    const refused = node.offered === false;
    const text = node.fits ? (refused ? "has room, but kube-scheduler does not offer it" : "would take it") : node.text;
    const key = `${node.reason ?? ""} ${refused} ${text}`;
    if (!groups.has(key)) groups.set(key, { text, offered: !refused, fits: node.fits, nodes: [] });
    groups.get(key).nodes.push(node);
  }
  return [...groups.values()].sort((a, b) => b.nodes.length - a.nodes.length);
}

function groupDetails({ text, offered, fits, nodes }, count) {
  const open = nodes.length <= OPEN_UP_TO && count <= OPEN_UP_TO;
  const list = el("ul", { class: "nodes" });
  const box = el("details", { "data-key": `group ${text}` }, el("summary", {}, el("strong", { text: plural(nodes.length, "node") }), ` ${text}`,
    !offered && !fits ? el("span", { class: "note", text: "not offered by kube-scheduler" }) : null), list);
  const fill = () => { if (!list.firstChild) list.append(...nodes.slice(0, NODES_SHOWN).map(nodeDetails), ...(nodes.length > NODES_SHOWN ? [el("li", { class: "dim", text: `and ${number(nodes.length - NODES_SHOWN)} more` })] : [])); };
  box.addEventListener("toggle", fill);
  if (open) { box.open = true; fill(); }
  return box;
}

function nodeDetails(node) {
  return el("li", {}, el("strong", { text: node.node }),
    node.kubeScheduler && el("p", { text: `kube-scheduler does not offer it: ${node.kubeScheduler.text}` }),
    node.remedy && el("p", { text: node.remedy }),
    node.wouldHaveToLeave?.length ? el("p", {}, "Would have to leave: ", listed(node.wouldHaveToLeave.map((pod) => podLink(pod, node.node)))) : null,
    node.cards?.length ? el("ul", { class: "cards" }, alike(node.cards).map((cards) => cardsDetails(cards))) : null);
}

/** Cards of which the same is said, together. */
function alike(cards) {
  const groups = new Map();
  for (const card of cards) {
    const key = JSON.stringify([card.fits, card.text, card.by]);
    groups.set(key, [...(groups.get(key) ?? []), card]);
  }
  return [...groups.values()];
}

function cardsDetails(cards) {
  const [card] = cards;
  const links = cards.map((each) => el("a", { href: `#card=${encodeURIComponent(each.uuid)}`, "data-key": each.uuid, "aria-label": `GPU ${each.index}`, text: String(each.index) }));
  return el("li", { class: card.fits ? "fits" : null }, cards.length > 1 ? "GPUs " : "GPU ", listed(links), `: ${card.fits ? "fits" : card.text}`,
    card.by?.length ? el("span", { class: "dim" }, ", taken by ", listed(card.by.map((pod) => podLink(pod, card.uuid)))) : null);
}

function listed(links) { return links.flatMap((link, place) => (place ? [", ", link] : [link])); }
