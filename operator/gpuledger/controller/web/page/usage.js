// What is used beside what is held: asked for while somebody looks at it, and only then.

import { number, plural } from "./dom.js";
import { Refused } from "./feed.js";

const AGAIN_MS = 10000;
const AGAIN_TIMES = 10; // and so many times as long as the answer took: of thousands of nodes it is megabytes
const REASONS_NAMED = 2; // of more, the others are counted
export const IDLE = { mark: "Z", word: "held and idle" };

export class Usage {
  /** `changed()` is called when there is something else to show. */
  constructor(feed, changed) {
    Object.assign(this, { feed, changed });
    this.idleAfterS = null; // null: nobody looks
    this.asked = 0; // grows with each choice: an answer to an earlier one comes too late
    this.clear();
    document.addEventListener("visibilitychange", () => { if (!document.hidden && this.on && this.due) this.load(); });
  }

  get on() { return this.idleAfterS !== null; }

  clear() {
    this.nodes = new Map(); // name -> node as it came
    this.cards = new Map(); // UUID -> card as it came
    this.sums = { used: 0, held: 0, idle: 0 }; // MiB; `used` and `held` of cards of which it is known
    this.trouble = "";
  }

  /** Show it, with who counts as idle after so many seconds; null: show it no longer. */
  choose(idleAfterS) {
    this.idleAfterS = idleAfterS;
    clearTimeout(this.timer);
    if (this.on) this.load();
    else { this.asked += 1; this.clear(); this.changed(); }
  }

  async load() {
    this.due = false;
    clearTimeout(this.timer);
    const asked = ++this.asked;
    const began = Date.now();
    try {
      const found = await this.feed.get(`v1/usage?idleAfterS=${this.idleAfterS}`);
      if (asked !== this.asked) return;
      this.take(found.nodes);
    } catch (error) {
      if (asked !== this.asked) return;
      this.trouble = error instanceof Refused ? error.message : "the operator can't be reached";
    }
    this.changed();
    const pause = Math.max(AGAIN_MS, AGAIN_TIMES * (Date.now() - began));
    this.timer = setTimeout(() => { if (document.hidden) this.due = true; else this.load(); }, pause);
  }

  take(nodes) {
    this.clear();
    for (const node of nodes) {
      this.nodes.set(node.node, node);
      for (const card of node.cards) {
        this.cards.set(card.uuid, card);
        this.sums.idle += card.memoryIdleMiB;
        if (card.memoryUsedMiB === null) continue;
        this.sums.used += card.memoryUsedMiB;
        this.sums.held += card.memoryHeldMiB;
      }
    }
  }

  /** A card's use; null while nobody looks, or it is not known yet. */
  of(uuid) { return this.on ? this.cards.get(uuid) ?? null : null; }

  /** MiB that are held and idle on a node. */
  idleOf(name) { return (this.nodes.get(name)?.cards ?? []).reduce((sum, card) => sum + card.memoryIdleMiB, 0); }

  /** Why it is not known what is used, in a sentence; empty if all of it is. */
  note() {
    if (!this.on) return "";
    if (this.trouble) return `What is used is not known: ${this.trouble}`;
    const reasons = new Map();
    for (const { node, problem } of this.nodes.values()) if (problem) reasons.set(problem, [...(reasons.get(problem) ?? []), node]);
    const told = [...reasons].sort((a, b) => b[1].length - a[1].length).slice(0, REASONS_NAMED)
      .map(([reason, names]) => `${names.length > 1 ? plural(names.length, "node") : names[0]}: ${reason}`);
    return told.length ? `What is used is not known of ${told.join("; ")}${reasons.size > REASONS_NAMED ? `; and ${plural(reasons.size - REASONS_NAMED, "other reason")}` : ""}` : "";
  }
}

/** What is known to be used by a pod on a card, MiB; null: it is not known. */
export function usedBy(use, podUID) {
  const pod = use?.pods.find((each) => each.podUID === podUID);
  const known = (pod?.containers ?? []).filter((container) => container.memoryUsedMiB !== null);
  return known.length ? known.reduce((sum, container) => sum + container.memoryUsedMiB, 0) : null;
}

/** What a screen reader says of a card's use, after what is held. */
export function spokenUse(use) {
  if (!use) return "";
  const used = use.memoryUsedMiB === null ? "use not known" : `${number(use.memoryUsedMiB)} MiB in use`;
  const busy = use.utilizationPercent === null ? "" : `${use.utilizationPercent} % busy`;
  return [used, busy, use.memoryIdleMiB ? `${number(use.memoryIdleMiB)} MiB ${IDLE.word}` : ""].filter(Boolean).join(", ");
}
