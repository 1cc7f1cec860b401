// What is known of the cluster, and sums over it that follow every change.

export const PHASES = {
  Ready: { mark: "", word: "ready", colour: "--ready" },
  Pending: { mark: "P", word: "pending", colour: "--pending" },
  Unhealthy: { mark: "!", word: "unhealthy", colour: "--unhealthy" },
  Unavailable: { mark: "?", word: "unavailable", colour: "--unavailable" },
  Unaccounted: { mark: "U", word: "unaccounted", colour: "--unaccounted" },
  Cordoned: { mark: "C", word: "cordoned", colour: "--cordoned" },
};
const UNKNOWN = { mark: "P", word: "not ready yet", colour: "--pending" };
export const phaseOf = (card) => PHASES[card.phase] ?? UNKNOWN;
export const isAlone = (card) => card.holders.some((holder) => holder.exclusive);
export const podOf = (holder) => `${holder.namespace}/${holder.pod}${holder.seat ? ` (${holder.seat.kind})` : ""}`;

const HUES = 10;
export const AMOUNTS = ["memoryMiB", "cores", "number"];

/** What is looked for: words that a card, a pod or a record has to have, all of them, and the namespaces of `ns:one,two`. */
export class Filter {
  constructor(text = "") {
    this.text = text.trim();
    const words = this.text.toLowerCase().split(/\s+/).filter(Boolean);
    this.words = words.filter((word) => !word.startsWith("ns:"));
    this.spaces = words.filter((word) => word.startsWith("ns:") && word.length > 3).map((word) => word.slice(3).split(",").filter(Boolean));
  }

  get on() { return this.words.length + this.spaces.length > 0; }
  get byNamespace() { return this.spaces.length > 0; }

  /** The namespaces that are named in full. */
  get names() { return [...new Set(this.spaces.flat())].filter((name) => !name.endsWith("*")); }

  /** Whether a pod of a namespace may be one of those that are looked for. */
  admits(namespace) { return this.spaces.every((names) => names.some((name) => isNamed(namespace, name))); }

  matches(text, namespaces) {
    return this.words.every((word) => text.includes(word)) && this.spaces.every((names) => names.some((name) => namespaces.some((each) => isNamed(each, name))));
  }

  admitsPod(pod) { return !this.on || this.matches(textOfPod(pod), [pod.namespace]); }
}

/** A name is meant in full, unless it ends with a star. */
const isNamed = (namespace, name) => (name.endsWith("*") ? namespace.startsWith(name.slice(0, -1)) : namespace === name);

/** What the filter looks through, for a pending pod or a record. */
function textOfPod(pod) {
  return [podOf(pod), pod.gang ? `gang:${pod.namespace}/${pod.gang}` : "", pod.queue, pod.request, pod.node, pod.kind, pod.text,
    ...(pod.reasons ?? []).map((reason) => reason.text)].join("\n").toLowerCase();
}

export class Cluster {
  constructor() {
    this.nodes = new Map(); // name -> node as it came, with its own `stamp` and `text`
    this.cards = new Map(); // UUID -> card; a card that two nodes report is one
    this.waiting = [];
    this.quotas = new Map(); // namespace -> its limits
    this.budgets = new Map(); // namespace -> its budgets
    this.queues = []; // Kueue's ClusterQueues
    this.growth = []; // templates of which nodes are asked for
    this.grafanaUrl = null;
    this.activeElsewhere = null; // name of the active replica, "" if there is none; null if it is the one that answers
    this.stamp = 0;
    this.hues = { namespace: new Map(), model: new Map() }; // name -> hue, the same as long as the page is open
    this.clear();
  }

  clear() {
    this.nodes.clear();
    this.cards.clear();
    this.totals = noTotals();
    this.namespaces = new Map(); // name -> MiB held
    this.held = new Map(); // namespace -> { cards, kinds: "vendor\nmodel" -> amounts }
    this.models = new Map(); // name -> cards
  }

  /** Take in a message; return the UUIDs of the cards in which something differs. */
  take(message) {
    if (message.full ?? true) this.clear();
    const first = this.nodes.size === 0;
    const changed = new Set();
    for (const name of message.gone ?? []) this.remove(name);
    for (const node of message.nodes) {
      const before = this.nodes.get(node.node);
      if (before) this.compare(before, node, changed);
      this.remove(node.node);
      this.add(node);
    }
    if (message.waiting) this.waiting = message.waiting;
    if (message.namespaces) {
      this.quotas = new Map(message.namespaces.map((each) => [each.namespace, each.quota]));
      this.budgets = new Map(message.namespaces.map((each) => [each.namespace, each.budgets]));
    }
    if (message.queues) this.queues = message.queues;
    if (message.growth) this.growth = message.growth;
    this.grafanaUrl = message.grafanaUrl ?? null;
    this.activeElsewhere = message.activeElsewhere;
    this.giveHues();
    return first ? new Set() : changed;
  }

  compare(before, node, changed) {
    const old = new Map(before.cards.map((card) => [card.uuid, JSON.stringify(card)]));
    for (const card of node.cards) if (old.get(card.uuid) !== JSON.stringify(card)) changed.add(card.uuid);
  }

  add(node) {
    node.stamp = ++this.stamp;
    node.text = null;
    this.nodes.set(node.node, node);
    for (const card of node.cards) this.cards.set(card.uuid, card);
    this.sum(node, 1);
  }

  remove(name) {
    const node = this.nodes.get(name);
    if (!node) return;
    this.nodes.delete(name);
    for (const card of node.cards) if (this.cards.get(card.uuid) === card) this.cards.delete(card.uuid);
    this.sum(node, -1);
  }

  sum(node, sign) {
    add(this.totals.used, node.used, sign);
    add(this.totals.capacity, node.capacity, sign);
    for (const card of node.cards) {
      countCard(this.totals, card, sign);
      count(this.models, card.model || "unknown", sign);
      for (const namespace of spacesOf(card)) this.heldBy(namespace).cards += sign;
      for (const holder of card.holders) {
        count(this.namespaces, holder.namespace, sign * Math.max(1, holder.memoryMiB));
        const { kinds } = this.heldBy(holder.namespace), kind = `${card.vendor}\n${card.model}`;
        if (!kinds.has(kind)) kinds.set(kind, zero());
        add(kinds.get(kind), holder, sign);
      }
    }
  }

  heldBy(namespace) {
    if (!this.held.has(namespace)) this.held.set(namespace, { cards: 0, kinds: new Map() });
    return this.held.get(namespace);
  }

  /** The sums over some nodes' cards that a filter admits; of its namespaces, what they hold of all cards that have its other words. */
  totalsOf(names, filter) {
    const sums = noTotals(), others = new Filter(filter.words.join(" "));
    for (const name of filter.byNamespace ? this.nodes.keys() : names) {
      const node = this.nodes.get(name);
      const [matching, whole] = [Cluster.matching(node, filter), Cluster.matching(node, others)];
      node.cards.forEach((card, position) => {
        if (!whole || whole.has(position)) add(sums.capacity, card.capacity, 1);
        if (matching && !matching.has(position)) return;
        countCard(sums, card, 1);
        if (!filter.byNamespace) add(sums.used, card.used, 1);
        else for (const holder of card.holders) if (filter.admits(holder.namespace)) add(sums.used, holder, 1);
      });
    }
    return sums;
  }

  /** Give a hue to whoever has none, the largest first; those beyond the tenth share one. Nobody's changes. */
  giveHues() {
    for (const [kind, counts] of [["namespace", this.namespaces], ["model", this.models]]) {
      const hues = this.hues[kind];
      if ([...counts.keys()].every((name) => hues.has(name))) continue;
      const missing = [...counts].filter(([name]) => !hues.has(name)).sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
      for (const [name] of missing) hues.set(name, Math.min(hues.size, HUES));
    }
  }

  hue(kind, name) { return `var(--hue-${this.hues[kind].get(name) ?? HUES})`; }

  /** What the filter looks through, for a card: all words that a person may look for. */
  static textOf(card) {
    return [card.node, card.uuid, card.model, card.vendor, phaseOf(card).word, card.reason, card.holders.length ? "used" : "idle",
      ...card.holders.map(podOf),
      ...card.holders.filter((holder) => holder.gang).map((holder) => `gang:${holder.namespace}/${holder.gang}`),
      card.conflicts ? "conflicts" : "", card.claims ? "claims" : ""].join("\n").toLowerCase();
  }

  /** The positions of a node's cards that a filter admits; null stands for all. */
  static matching(node, filter) {
    if (!filter.on) return null;
    node.text ??= node.cards.map((card) => [Cluster.textOf(card), spacesOf(card)]);
    const found = new Set();
    node.text.forEach(([text, spaces], position) => { if (filter.matches(text, spaces)) found.add(position); });
    return found;
  }
}

const spacesOf = (card) => [...new Set(card.holders.map((holder) => holder.namespace))];

function noTotals() { return { used: zero(), capacity: zero(), phases: new Map(), cards: 0, alone: 0 }; }

function countCard(totals, card, sign) {
  totals.cards += sign;
  count(totals.phases, phaseOf(card).word, sign);
  if (isAlone(card)) totals.alone += sign;
}

function add(sum, amounts, sign) { for (const key of AMOUNTS) sum[key] += sign * amounts[key]; }

export function zero() { return { memoryMiB: 0, cores: 0, number: 0 }; }

function count(counts, name, by) {
  const sum = (counts.get(name) ?? 0) + by;
  if (sum > 0) counts.set(name, sum); else counts.delete(name);
}
