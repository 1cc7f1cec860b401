// The panel's details: a card with its holders, or a pod or a gang with the reasons why it waits.

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
        el("th", { scope: "row" }, holder.seat ? podOf(holder) : podLink(podOf(holder)), notes && el("span", { class: "note", text: notes })),
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

const STATES = {
  waiting: "waits", placed: "has its cards", "being-freed": "room is being made", "room-found": "room is found for it",
  incomplete: "not all created", "others-turn": "another one is tried alone", "held-back": "another one goes first", gathering: "is being bound", running: "runs",
};
const MEMBER_STATES = { running: "runs", "on-hold": "cards on hold", fits: "finds cards", "no-cards": "finds none", waiting: "waits" };
const MEMBERS_SHOWN = 100;

/** A command to run, and what copies it; where the browser does not let a page do that, it can be selected at once. */
function command(text) {
  const code = el("code", { text });
  const copy = async (event) => {
    try {
      await navigator.clipboard.writeText(text);
      event.target.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      event.target.textContent = "Selected";
    }
  };
  return el("p", { class: "command" }, code, el("button", { type: "button", class: "quiet", "data-key": "copy", "aria-label": "Copy the command", text: "Copy", on: { click: copy } }));
}

/** An Explanation, as /v1/explain gives it, and the records of a gang. */
export function explanationDetails(found, records, { again, showCards }) {
  const isGang = found.kind === "gang", members = isGang ? found.members : null;
  const name = `${found.namespace}/${found.name}`;
  const refused = found.nodes.filter((node) => node.offered === false).length;
  return [
    title(isGang ? `gang ${name}` : name),
    el("p", { class: "chips" }, chip(STATES[found.state] ?? found.state, found.hasPlace ? "is-ready" : ["waiting", "incomplete"].includes(found.state) ? "is-cordoned" : ""), found.priority ? chip(`priority ${found.priority}`, "") : null,
      el("button", { type: "button", class: "quiet", "data-key": "again", text: "Ask again", on: { click: again } }),
      members?.running ? el("button", { type: "button", class: "quiet", "data-key": "cards", text: "Show its cards", on: { click: () => showCards(`gang:${name}`) } }) : null),
    el("p", { class: "reason", text: found.summary }),
    found.warnings.map((warning) => el("p", { class: "reason", text: warning })),
    found.hasPlace ? null : command(`kubectl gpuledger explain ${found.kind}/${found.name} -n ${found.namespace}`),
    el("dl", { class: "facts" },
      fact("Gang", found.gang && !isGang ? el("a", { href: `#gang=${encodeURIComponent(`${found.namespace}/${found.gang}`)}`, "data-key": "gang", text: found.gang }) : ""),
      members ? memberFacts(members) : null,
      fact("Named by", isGang ? found.gangWords : ""),
      fact("Queue", found.queue),
      fact("Waits for", found.since && !found.hasPlace ? duration(secondsSince(found.since)) : ""),
      fact("Last tried", found.lastTried ? moment(found.lastTried) : ""),
      fact("Scheduler", found.schedulerSays),
      fact("Not offered", refused ? `${plural(refused, "node")} with cards that kube-scheduler itself did not offer (taints, CPU, selectors)` : "")),
    section("What it requests", found.requests.map((each) => [el("strong", { text: entry(each.name) }), ` ${each.text}`])),
    section("Its cards", found.holds.map((hold) => [el("a", { href: `#card=${encodeURIComponent(hold.uuid)}`, "data-key": hold.uuid, text: `GPU ${hold.index} of ${hold.node}` }),
      ` ${mib(hold.memoryMiB)}, ${hold.cores} % cores${hold.exclusive ? ", alone" : ""}`])),
    members ? section("Where members find cards at once", members.fitsOn.map((each) => [el("strong", { text: each.node }), ` ${plural(each.members, "member")}`])) : null,
    members ? section("What the others lack", members.missing.map((each) => [el("strong", { text: plural(each.members, "member") }), `: ${each.request}${each.members > 1 ? " for each" : ""}`])) : null,
    found.nodes.length ? [el("h3", { text: found.example ? `Why ${found.example} finds none beside them` : `Node by node: ${plural(found.nodes.length, "node")}` }), nodesDetails(found.nodes)] : null,
    members ? section(plural(members.pods.length + members.podsLeftOut, "member"), memberEntries(found.namespace, members)) : null,
    records.length ? [el("h3", { text: "What has happened" }), el("ol", { class: "records" }, records.toReversed().map((each) => el("li", {},
      el("span", { class: "row" }, el("span", {}, chip(each.kind, ""), each.pod ? [" ", podLink(`${each.namespace}/${each.pod}`, each.time)] : null), moment(each.time)), el("span", { text: each.text }))))] : null,
  ];
}

function memberFacts(members) {
  const turn = members.turn && `${members.turn.gang ?? "a gang of another namespace"} ${members.turn.kind === "first" ? "goes first" : "is tried alone"}, for ${members.turn.secondsLeft} s more`;
  return [
    fact("Minimum", String(members.minimum)),
    fact("Run", String(members.running)),
    fact("Wait", members.waiting ? String(members.waiting) : ""),
    fact("Without GPUs", members.withoutGPUs ? String(members.withoutGPUs) : ""),
    fact("Places kept", members.keptPlaces ? `${members.keptPlaces}, for members that replace others` : ""),
    fact("Not created", members.notCreated ? String(members.notCreated) : ""),
    fact("With cards on hold", members.onHold ? String(members.onHold) : ""),
    fact("Stand in Bind", members.inBind ? String(members.inBind) : ""),
    fact("Overtaken by", members.overtakenBy ? `${plural(members.overtakenBy, "gang")} that came after it` : ""),
    fact("Turn", turn),
  ];
}

function memberEntries(namespace, { pods, podsLeftOut }) {
  const left = podsLeftOut + Math.max(0, pods.length - MEMBERS_SHOWN);
  return [...pods.slice(0, MEMBERS_SHOWN).map((each) => [podLink(`${namespace}/${each.pod}`, "member"), el("span", { class: "note", text: `${MEMBER_STATES[each.state] ?? each.state}${each.node ? `, ${each.node}` : ""}` })]),
    ...(left ? [[`and ${left} more`]] : [])];
}

/** A container, or a request of a claim, which is CLAIM/REQUEST. */
function entry(name) {
  const [claim, ...request] = name.split("/");
  return request.length ? `claim ${claim}, request ${request.join("/")}` : name;
}

/** A list under a heading; nothing if it is empty. */
function section(heading, entries) {
  return entries.length ? [el("h3", { text: heading }), el("ul", { class: "plain" }, entries.map((entry) => el("li", {}, entry)))] : null;
}

/** Why nodes do not take a pod. */
function nodesDetails(nodes) {
  const groups = grouped(nodes);
  return groups.map((group) => groupDetails(group, groups.length));
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
    node.wouldHaveToLeave.length ? el("p", {}, "Would have to leave: ", listed(node.wouldHaveToLeave.map((pod) => podLink(pod, node.node)))) : null,
    node.cards.length ? el("ul", { class: "cards" }, alike(node.cards).map((cards) => cardsDetails(cards))) : null);
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
    card.by.length ? el("span", { class: "dim" }, ", taken by ", listed(card.by.map((pod) => podLink(pod, card.uuid)))) : null);
}

function listed(links) { return links.flatMap((link, place) => (place ? [", ", link] : [link])); }
