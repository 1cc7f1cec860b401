// Gangs, pods that start together: their entries among those that wait, and links to them.

import { duration, el, plural, secondsSince } from "./dom.js";

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
