// Gangs, pods that start together: their entries among those that wait, and their details.

import { chip, fact, nodesDetails, podLink, title } from "./details.js";
import { duration, el, moment, plural, secondsSince } from "./dom.js";

const MEMBERS_SHOWN = 100;
const STATES = {
  incomplete: "not all created", waiting: "waits", "others-turn": "another one is tried alone", "held-back": "another one goes first", "room-found": "cards are on hold for it",
  gathering: "is being bound", running: "runs",
};
const MEMBER_STATES = { running: "runs", "on-hold": "cards on hold", fits: "finds cards", "no-cards": "finds none", waiting: "waits" };

/** A gang as namespace/name, of anything that has both; empty if it has none. */
export const gangOf = (each) => (each.gang ? `${each.namespace}/${each.gang}` : "");

/** A link to a gang's details. */
export function gangLink(gang, key = "") {
  return el("a", { href: `#gang=${encodeURIComponent(gang)}`, "data-key": `gang ${key}${gang}`, text: `gang ${gang}` });
}

/** The waiting pods in their order, those of one gang together where the first of them is: [name of the gang or "", pods]. */
export function byGang(waiting) {
  const groups = new Map();
  for (const pod of waiting) {
    const gang = gangOf(pod);
    const key = gang || `${pod.namespace}/${pod.pod}/`;
    if (!groups.has(key)) groups.set(key, [gang, []]);
    groups.get(key)[1].push(pod);
  }
  return [...groups.values()];
}

export function waitingGang(gang, pods, choose) {
  const oldest = pods.reduce((least, pod) => (pod.since < least ? pod.since : least), pods[0].since);
  const kinds = new Map();
  for (const pod of pods) kinds.set(pod.request, (kinds.get(pod.request) ?? 0) + 1);
  const [[request, many], ...others] = [...kinds].sort((a, b) => b[1] - a[1]);
  const priority = Math.max(...pods.map((pod) => pod.priority));
  return el("li", {}, el("button", { type: "button", class: "pod gang", "data-key": `gang ${gang}`, on: { click: choose } },
    el("span", { class: "row" }, el("strong", { text: gang }), el("span", { class: "dim", text: duration(secondsSince(oldest)) })),
    el("span", { class: "dim", text: `gang, ${plural(pods.length, "pod")}, ${others.length ? `${many} of them` : "each"} ${request}${priority ? ` · priority ${priority}` : ""}${pods[0].queue ? ` · queue ${pods[0].queue}` : ""}` }),
    el("span", { text: pods.find((pod) => pod.reasons.length)?.reasons[0].text ?? "not tried yet" })));
}

/** A GangReport, as /v1/explain gives it, and its records. */
export function gangDetails(found, records, { again, showCards }) {
  const kind = found.state === "running" ? "is-ready" : found.state === "waiting" || found.state === "incomplete" ? "is-cordoned" : "";
  const gang = gangOf(found);
  const turn = found.turn && `${found.turn.gang ?? "a gang of another namespace"} ${found.turn.kind === "first" ? "goes first" : "is tried alone"}, for ${found.turn.secondsLeft} s more`;
  return [
    title(`gang ${gang}`),
    el("p", { class: "chips" }, chip(STATES[found.state] ?? found.state, kind), found.priority ? chip(`priority ${found.priority}`, "") : null,
      el("button", { type: "button", class: "quiet", "data-key": "again", text: "Ask again", on: { click: again } }),
      found.running ? el("button", { type: "button", class: "quiet", "data-key": "cards", text: "Show its cards", on: { click: () => showCards(`gang:${gang}`) } }) : null),
    el("p", { class: "reason", text: found.summary }),
    el("dl", { class: "facts" },
      fact("Minimum", String(found.minimum)),
      fact("Run", String(found.running)),
      fact("Wait", found.waiting ? String(found.waiting) : ""),
      fact("Without GPUs", found.withoutGPUs ? String(found.withoutGPUs) : ""),
      fact("Places kept", found.keptPlaces ? `${found.keptPlaces}, for members that replace others` : ""),
      fact("Not created", found.notCreated ? String(found.notCreated) : ""),
      fact("With cards on hold", found.onHold ? String(found.onHold) : ""),
      fact("Stand in Bind", found.inBind ? String(found.inBind) : ""),
      fact("Waits for", found.since && found.state !== "running" ? duration(secondsSince(found.since)) : ""),
      fact("Overtaken by", found.overtakenBy ? `${plural(found.overtakenBy, "gang")} that came after it` : ""),
      fact("Turn", turn),
      fact("Named by", found.source)),
    found.fitsOn.length ? [el("h3", { text: "Where members find cards at once" }), list(found.fitsOn.map((each) => [el("strong", { text: each.node }), ` ${plural(each.members, "member")}`]))] : null,
    found.missing.length ? [el("h3", { text: "What the others lack" }), list(found.missing.map((each) => [el("strong", { text: plural(each.members, "member") }), `: ${each.request}${each.members > 1 ? " for each" : ""}`]))] : null,
    found.nodes.length ? [el("h3", { text: `Why ${found.example} finds none beside them` }), nodesDetails(found.nodes)] : null,
    found.members.length ? [el("h3", { text: plural(found.members.length + found.membersLeftOut, "member") }), members(found)] : null,
    records.length ? [el("h3", { text: "What has happened" }), el("ol", { class: "records" }, records.toReversed().map((each) => el("li", {},
      el("span", { class: "row" }, el("span", {}, chip(each.kind, ""), each.pod ? [" ", podLink(`${each.namespace}/${each.pod}`, each.time)] : null), moment(each.time)), el("span", { text: each.text }))))] : null,
  ];
}

function members({ namespace, members: all, membersLeftOut }) {
  const left = membersLeftOut + Math.max(0, all.length - MEMBERS_SHOWN);
  return list([...all.slice(0, MEMBERS_SHOWN).map((each) => [podLink(`${namespace}/${each.pod}`, "member"), el("span", { class: "note", text: `${MEMBER_STATES[each.state] ?? each.state}${each.node ? `, ${each.node}` : ""}` })]),
    ...(left ? [[`and ${left} more`]] : [])]);
}

function list(entries) { return el("ul", { class: "plain" }, entries.map((entry) => el("li", {}, entry))); }
