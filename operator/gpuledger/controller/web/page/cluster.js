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
export const podOf = (holder) => `${holder.namespace}/${holder.pod}`;

const HUES = 10;
const AMOUNTS = ["memoryMiB", "cores", "number"];

export class Cluster {
  constructor() {
    this.nodes = new Map(); // name -> node as it came, with its own `stamp` and `text`
    this.cards = new Map(); // UUID -> card; a card that two nodes report is one
    this.waiting = [];
    this.activeElsewhere = null; // name of the active replica, "" if there is none; null if it is the one that answers
    this.stamp = 0;
    this.hues = { namespace: new Map(), model: new Map() }; // name -> hue, the same as long as the page is open
    this.clear();
  }

  clear() {
    this.nodes.clear();
    this.cards.clear();
    this.totals = { used: zero(), capacity: zero(), phases: new Map(), cards: 0, alone: 0 };
    this.namespaces = new Map(); // name -> MiB held
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
    const { used, capacity, phases } = this.totals;
    for (const key of AMOUNTS) {
      used[key] += sign * node.used[key];
      capacity[key] += sign * node.capacity[key];
    }
    this.totals.cards += sign * node.cards.length;
    for (const card of node.cards) {
      count(phases, phaseOf(card).word, sign);
      if (isAlone(card)) this.totals.alone += sign;
      count(this.models, card.model || "unknown", sign);
      for (const holder of card.holders) count(this.namespaces, holder.namespace, sign * Math.max(1, holder.memoryMiB));
    }
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
      ...card.holders.map(podOf), ...card.holders.map((holder) => `ns:${holder.namespace}`),
      ...card.holders.filter((holder) => holder.gang).map((holder) => `gang:${holder.namespace}/${holder.gang}`),
      card.conflicts ? "conflicts" : "", card.claims ? "claims" : ""].join("\n").toLowerCase();
  }

  /** The positions of a node's cards that have all words; null stands for all. */
  static matching(node, words) {
    if (!words.length) return null;
    node.text ??= node.cards.map(Cluster.textOf);
    const found = new Set();
    node.text.forEach((text, position) => { if (words.every((word) => text.includes(word))) found.add(position); });
    return found;
  }
}

function zero() { return { memoryMiB: 0, cores: 0, number: 0 }; }

function count(counts, name, by) {
  const sum = (counts.get(name) ?? 0) + by;
  if (sum > 0) counts.set(name, sum); else counts.delete(name);
}
