// Namespaces with their quota, what they hold and how many of their pods wait; and Kueue's queues.

import { AMOUNTS, zero } from "./cluster.js";
import { el, number, plural } from "./dom.js";

const SHOWN = 200;
const HEADS = { memoryMiB: "Memory, MiB", cores: "Cores, %", number: "Slots" };

/** A model's name as a key of a ResourceQuota has it. */
const dashed = (model) => model.toLowerCase().replace(/[^\p{L}\p{N}._-]/gu, "-");

/** What a namespace holds of the cards that a limit counts; of all cards without one. */
function heldOf(held, amount, limit = null) {
  let sum = 0;
  for (const [kind, amounts] of held?.kinds ?? []) {
    const [vendor, model] = kind.split("\n");
    if (!limit || (vendor === limit.vendor && (!limit.model || dashed(model).includes(dashed(limit.model))))) sum += amounts[amount];
  }
  return sum;
}

/** Rows of the namespaces that hold cards, wait for some or have a quota, as far as a filter admits them. */
export function drawTeams(cluster, filter, all, filterBy) {
  const waiting = new Map();
  for (const pod of cluster.waiting) waiting.set(pod.namespace, (waiting.get(pod.namespace) ?? 0) + 1);
  const held = [...cluster.held].filter(([, { cards }]) => cards).map(([name]) => name);
  const names = [...new Set([...held, ...cluster.quotas.keys(), ...waiting.keys(), ...filter.names])]
    .filter((name) => filter.admits(name) && (!all || filter.words.every((word) => name.includes(word)))).sort();
  const heads = ["Namespace", "Cards", ...AMOUNTS.map((amount) => HEADS[amount]), "Waiting", ...(cluster.grafanaUrl ? ["Over time"] : [])];
  const rows = names.slice(0, SHOWN).map((name) => row(cluster, name, waiting.get(name) ?? 0, filterBy));
  return [
    all && !names.length && el("p", { class: "dim", text: "No namespace holds cards, waits for some or has a quota of them." }),
    names.length > 0 && grid("Namespaces: what they hold, and may", heads, rows),
    names.length > SHOWN && el("p", { class: "dim", text: `and ${plural(names.length - SHOWN, "namespace")} more` }),
  ];
}

function row(cluster, name, waiting, filterBy) {
  const held = cluster.held.get(name), limits = cluster.quotas.get(name) ?? [];
  const shown = new Map(AMOUNTS.map((amount) => [amount, tightest(held, limits, amount)]));
  const others = limits.filter((limit) => shown.get(limit.counted) !== limit);
  return [
    el("span", {}, el("button", { type: "button", class: "link", "data-key": `team ${name}`, text: name, on: { click: () => filterBy(`ns:${name}`) } }),
      others.map((limit) => el("span", { class: "note", text: `${limit.key} of ${limit.resourceQuota}: ${number(heldOf(held, limit.counted, limit))} of ${number(limit.limit)}` })),
      (cluster.budgets.get(name) ?? []).map((budget) => el("span", { class: budget.spentCardHours >= budget.cardHours ? "note is-unhealthy" : "note", text: budgetText(budget) }))),
    number(held?.cards ?? 0),
    ...AMOUNTS.map((amount) => amountOf(held, amount, shown.get(amount))),
    waiting ? el("span", { class: "chip is-cordoned", text: plural(waiting, "pod") }) : "0",
    ...(cluster.grafanaUrl ? [grafanaLink(cluster.grafanaUrl, [name])] : []),
  ];
}

function budgetText({ key, resourceQuota, cardHours, spentCardHours, until }) {
  const text = `${number(spentCardHours)} of ${number(cardHours)} card hours, ${key} of ${resourceQuota}`;
  return spentCardHours >= cardHours ? `spent until ${until}: ${text}` : text;
}

/** The limit that leaves least, of those that count all cards of a vendor. */
function tightest(held, limits, amount) {
  const left = (limit) => limit.limit - heldOf(held, amount, limit);
  return limits.filter((limit) => limit.counted === amount && !limit.model).sort((a, b) => left(a) - left(b))[0];
}

function amountOf(held, amount, limit) {
  const some = heldOf(held, amount, limit ?? null);
  if (!limit) return number(some);
  const meter = el("span", { class: "meter", "aria-hidden": "true" }, el("span", { class: some >= limit.limit ? "full" : null }));
  meter.firstChild.style.width = `${Math.min(100, limit.limit ? (100 * some) / limit.limit : 100)}%`;
  return el("span", { title: `${limit.key} of ResourceQuota ${limit.resourceQuota}` }, `${number(some)} of ${number(limit.limit)}`, meter);
}

/** Kueue's queues; nothing where there are none. They are of no namespace, so a filter leaves them alone. */
export function drawQueues(queues) {
  if (!queues.length) return null;
  const resource = ({ resource: name, reserved, nominal, borrowed }) => el("span", { class: "line", text: `${name} ${number(reserved)} of ${number(nominal)}${borrowed ? `, ${number(borrowed)} borrowed` : ""}` });
  const rows = queues.slice(0, SHOWN).map(({ queue, cohort, quota, workloads }) => [queue, cohort ?? "-", el("span", {}, quota.map(resource)),
    number(workloads.admitted), number(workloads.waitingForCards), number(workloads.waitingForQuota)]);
  return [grid("Kueue's ClusterQueues, of all namespaces", ["Queue", "Cohort", "Reserved of its quota", "Admitted", "Wait for cards", "Wait for quota"], rows)];
}

/** A table that is one line for each row where there is room, and one box on a telephone: so its roles are written out. */
function grid(caption, heads, rows) {
  return el("table", { role: "table", "aria-label": caption },
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, heads.map((head) => el("th", { role: "columnheader", scope: "col", text: head })))),
    el("tbody", { role: "rowgroup" }, rows.map((cells) => el("tr", { role: "row" }, cells.map((cell, place) => (place
      ? el("td", { role: "cell", "data-head": heads[place] }, cell)
      : el("th", { role: "rowheader", scope: "row" }, cell)))))));
}

/** A link to the dashboard in Grafana, with namespaces as its variable. */
export function grafanaLink(url, namespaces) {
  const address = new URL(url);
  for (const name of namespaces) address.searchParams.append("var-namespace", name);
  const of = namespaces.length ? ` of ${namespaces.join(", ")}` : "";
  return el("a", { href: address.href, target: "_blank", rel: "noopener noreferrer", "data-key": `grafana${of}`, "aria-label": `Grafana${of}`, text: "Grafana" });
}
