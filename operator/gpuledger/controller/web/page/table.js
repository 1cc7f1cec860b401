// The same as the map, as a table of cards: for screen readers, and for reading numbers.

import { Filter, isAlone, phaseOf, podOf, Cluster } from "./cluster.js";
import { el, number, refill } from "./dom.js";
import { gangOf } from "./gang.js";

const PAGE = 100;
const USES = ["In use, MiB", "Busy, %", "Held and idle, MiB"];
const uses = (use) => [use?.memoryUsedMiB ?? null, use?.utilizationPercent ?? null, use ? use.memoryIdleMiB : null].map((value) => (value === null ? "?" : number(value)));
const gangsOf = (card) => [...new Map(card.holders.filter(gangOf).map((holder) => [gangOf(holder), holder.gang]))];

export class CardTable {
  constructor(cluster, usage, place, choose) {
    Object.assign(this, { cluster, usage, place, choose });
    this.page = 0;
    this.names = [];
    this.filter = new Filter();
  }

  show(names, filter) {
    if (this.filter.text !== filter.text) this.page = 0;
    this.names = names;
    this.filter = filter;
  }

  draw() {
    const cards = this.names.flatMap((name) => {
      const node = this.cluster.nodes.get(name);
      const matching = Cluster.matching(node, this.filter);
      return matching ? node.cards.filter((_, position) => matching.has(position)) : node.cards;
    });
    const pages = Math.max(1, Math.ceil(cards.length / PAGE));
    this.page = Math.min(this.page, pages - 1);
    const shown = cards.slice(this.page * PAGE, (this.page + 1) * PAGE);
    const gangs = shown.some((card) => gangsOf(card).length);
    const heads = ["Node", "GPU", "Phase", "Memory used, MiB", "of", "Cores, %", "Slots", ...(this.usage.on ? USES : []), "Model", "Pods", ...(gangs ? ["Gangs"] : [])];
    refill(this.place,
      el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Cards as a table" },
        el("table", {},
          el("caption", { class: "hidden", text: "Cards, in the order and with the filter chosen above" }),
          el("thead", {}, el("tr", {}, heads.map((head, place) => el("th", { scope: "col", class: place >= 3 && place < 7 + (this.usage.on ? USES.length : 0) ? "figure" : null, text: head })))),
          el("tbody", {}, shown.map((card) => this.row(card, gangs))))),
      pages > 1 && el("p", { class: "pages" },
        this.turn("Previous", -1, this.page === 0), el("span", { text: `Page ${this.page + 1} of ${pages}` }), this.turn("Next", 1, this.page === pages - 1)));
  }

  row(card, gangs) {
    const phase = phaseOf(card);
    return el("tr", { class: `is-${phase.word.replaceAll(" ", "-")}` },
      el("th", { scope: "row", text: card.node }),
      el("td", {}, el("button", { type: "button", class: "link", "data-key": card.uuid, "aria-label": `GPU ${card.index} of ${card.node}: details`, text: String(card.index), on: { click: () => this.choose(card, true) } })),
      el("td", {}, phase.mark ? el("span", { class: "mark", "aria-hidden": "true", text: phase.mark }) : null, phase.word),
      el("td", { class: "figure", text: number(card.used.memoryMiB) }),
      el("td", { class: "figure", text: number(card.capacity.memoryMiB) }),
      el("td", { class: "figure", text: String(card.used.cores) }),
      el("td", { class: "figure", text: `${card.used.number} of ${card.capacity.number}` }),
      ...(this.usage.on ? uses(this.usage.of(card.uuid)).map((text) => el("td", { class: "figure", text })) : []),
      el("td", { text: card.model }),
      el("td", { text: card.holders.map(podOf).join(", ") + (isAlone(card) ? " (alone)" : "") }),
      gangs ? el("td", {}, gangsOf(card).flatMap(([gang, name], place) => [place ? ", " : "", el("a", { href: `#gang=${encodeURIComponent(gang)}`, "data-key": `${card.uuid} ${gang}`, title: gang, text: name })])) : null);
  }

  turn(text, by, disabled) {
    return el("button", { type: "button", disabled, "data-key": text, text, on: { click: () => { this.page += by; this.draw(); } } });
  }
}
