// The map: a tile for each node with a cell for each of its cards. Only tiles in sight are in the document, and the one
// with the focus; so thousands of nodes cost as much as a screen full of them.

import { Filter, isAlone, phaseOf, podOf } from "./cluster.js";
import { el, memoryOf, number, percent, plural } from "./dom.js";
import { IDLE, spokenUse, usedBy } from "./usage.js";

const SMALL_FROM = 40; // nodes: more than this are drawn small
const NARROW_PX = 560;
const TOUCH = matchMedia("(pointer: coarse)"); // cells for a finger: fewer tiles in a line, and higher ones
const MARGIN_LINES = 2; // beyond the edges, so that a little scrolling shows no gaps
const HIGHLIGHT_MS = 2000;

export class CardMap {
  /** `choose(card)` is called when somebody wants to see a card's details. */
  constructor(cluster, usage, scroller, canvas, choose) {
    Object.assign(this, { cluster, usage, scroller, canvas, choose });
    this.names = []; // of the nodes to show, in order
    this.places = new Map(); // name -> position in `names`
    this.filter = new Filter();
    this.colour = "namespace";
    this.view = "auto";
    this.tiles = new Map(); // name -> { tile, drawn }
    this.active = null; // { node, position } of the cell that Tab reaches
    this.chosen = null; // UUID of the card whose details are shown
    this.changed = new Map(); // UUID -> until when it is highlighted, ms
    this.look = 0; // grows when every tile has to be drawn anew
    scroller.addEventListener("scroll", () => this.later(), { passive: true });
    scroller.addEventListener("keydown", (event) => this.key(event));
    scroller.addEventListener("click", (event) => this.click(event));
    new ResizeObserver(() => this.later()).observe(scroller);
  }

  show(names, filter) {
    this.names = names;
    this.places = new Map(names.map((name, place) => [name, place]));
    if (filter.text !== this.filter.text) this.look += 1; // a change of a node is in its stamp
    this.filter = filter;
    if (!this.active || !this.places.has(this.active.node)) {
      this.active = names.length ? { node: names[0], position: 0 } : null;
      this.look += 1;
    }
    this.later();
  }

  redraw() { this.look += 1; this.later(); }

  /** Let a node's tile be drawn anew, if it is in sight. */
  forget(name) { const known = this.tiles.get(name); if (known) known.drawn = ""; }

  highlight(uuids) {
    const until = Date.now() + HIGHLIGHT_MS;
    for (const uuid of uuids) this.changed.set(uuid, until);
    if (uuids.size) setTimeout(() => {
      for (const [uuid, end] of this.changed) if (end <= Date.now()) { this.changed.delete(uuid); this.forget(this.cluster.cards.get(uuid)?.node); }
      this.later();
    }, HIGHLIGHT_MS + 50);
  }

  later() {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => { this.frame = 0; this.draw(); });
  }

  measure() {
    const width = this.canvas.clientWidth;
    const small = this.view === "small" || (this.view === "auto" && this.names.length > SMALL_FROM);
    const narrow = width < NARROW_PX;
    const finger = TOUCH.matches;
    const columns = small ? Math.max(1, Math.floor(width / (finger ? 320 : narrow ? 160 : 184))) : 1;
    const height = small ? (finger ? 66 : 56) : narrow ? 76 : 54;
    return { small, narrow, columns, height, width: width / columns };
  }

  draw() {
    if (this.scroller.hidden) return;
    const shape = this.measure();
    const form = `${shape.small} ${shape.narrow}`;
    if (form !== this.form) { this.form = form; this.look += 1; }
    this.shape = shape;
    const lines = Math.ceil(this.names.length / shape.columns);
    this.canvas.style.height = `${lines * shape.height}px`;
    this.scroller.classList.toggle("small", shape.small);
    this.scroller.classList.toggle("narrow", shape.narrow);
    this.scroller.setAttribute("aria-rowcount", String(this.names.length));
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / shape.height) - MARGIN_LINES) * shape.columns;
    const last = (Math.ceil((this.scroller.scrollTop + this.scroller.clientHeight) / shape.height) + MARGIN_LINES) * shape.columns;
    const places = [];
    for (let place = first; place < Math.min(last, this.names.length); place += 1) places.push(place);
    const active = this.active ? this.places.get(this.active.node) : undefined;
    if (active !== undefined && active < first) places.unshift(active);
    if (active !== undefined && active >= last) places.push(active);
    this.place(places);
  }

  place(places) {
    const kept = new Set(places.map((place) => this.names[place]));
    for (const [name, { tile }] of this.tiles) if (!kept.has(name)) { tile.remove(); this.tiles.delete(name); }
    let before = null; // the tile that the next one has to follow
    for (const place of places) {
      const tile = this.tileOf(this.names[place], place);
      const after = before ? before.nextSibling : this.canvas.firstChild;
      if (after !== tile) this.canvas.insertBefore(tile, after);
      before = tile;
    }
  }

  tileOf(name, place) {
    const node = this.cluster.nodes.get(name);
    let known = this.tiles.get(name);
    if (!known) { known = { tile: el("div", { role: "row", class: "node" }), drawn: "" }; this.tiles.set(name, known); }
    const { columns, height, width } = this.shape;
    const { tile } = known;
    tile.style.transform = `translate(${(place % columns) * width}px, ${Math.floor(place / columns) * height}px)`;
    tile.style.width = `${width}px`;
    tile.style.height = `${height}px`;
    tile.setAttribute("aria-rowindex", String(place + 1));
    const drawn = `${node.stamp} ${this.look}`;
    if (known.drawn !== drawn) { this.fill(tile, node); known.drawn = drawn; }
    return tile;
  }

  fill(tile, node) {
    const uuids = node.cards.map((card) => card.uuid).join(" ");
    if (tile.dataset.uuids !== uuids) {
      tile.dataset.uuids = uuids;
      tile.dataset.node = node.node;
      tile.replaceChildren(
        el("div", { role: "rowheader", class: "name" }, el("span", { class: "label", title: node.node, text: node.node }), el("span", { class: "sum" })),
        ...node.cards.map((card, position) => el("div", { role: "gridcell", class: "card", "data-position": position },
          el("span", { class: "head", "aria-hidden": "true" }, el("b"), el("span")), el("span", { class: "memory" }), el("span", { class: "cores" }),
          el("span", { class: "badge", "aria-hidden": "true" }))),
      );
    }
    tile.querySelector(".sum").textContent = this.shape.small ? percent(node.used.memoryMiB, node.capacity.memoryMiB) : memoryOf(node.used.memoryMiB, node.capacity.memoryMiB);
    const matching = this.cluster.constructor.matching(node, this.filter);
    node.cards.forEach((card, position) => this.fillCell(tile.children[position + 1], node, card, position, matching));
  }

  fillCell(cell, node, card, position, matching) {
    const phase = phaseOf(card);
    const alone = isAlone(card);
    const active = this.active?.node === node.node && this.active.position === position;
    const use = this.usage.of(card.uuid);
    const changed = this.changed.has(card.uuid);
    const classes = ["card", `is-${phase.word.replaceAll(" ", "-")}`];
    if (alone) classes.push("alone");
    if (this.usage.on) classes.push("with-use");
    if (changed) classes.push("changed");
    if (matching && !matching.has(position)) classes.push("other");
    cell.className = classes.join(" ");
    cell.tabIndex = active ? 0 : -1;
    cell.setAttribute("aria-selected", String(card.uuid === this.chosen));
    cell.setAttribute("aria-label", [spoken(card), spokenUse(use)].filter(Boolean).join(", "));
    cell.title = hint(card, use);
    const [head, memory, cores, badge] = cell.children;
    head.firstChild.textContent = String(card.index);
    const held = percent(card.used.memoryMiB, card.capacity.memoryMiB);
    head.lastChild.textContent = !card.holders.length ? "free" : use ? `${usedPercent(use)}/${held}` : held;
    memory.style.setProperty("--fill", this.bar(card, "memoryMiB", use));
    cores.style.setProperty("--fill", use ? this.busy(use) : this.bar(card, "cores"));
    badge.textContent = phase.mark + (alone && !this.shape.small ? "A" : "") + (use?.memoryIdleMiB ? IDLE.mark : "");
  }

  /** A holder's part of the bar each, with a gap between two, as one background: cheaper than an element each. */
  bar(card, amount, use = null) {
    const stops = [];
    let from = 0;
    for (const holder of card.holders) {
      const part = (100 * holder[amount]) / Math.max(1, card.capacity[amount]);
      if (part <= 0) continue;
      const to = Math.min(100, from + part);
      const [full, pale] = [this.colourOf(card, holder), `color-mix(in srgb, ${this.colourOf(card, holder)} ${use ? 28 : 45}%, var(--cell))`];
      const used = use ? Math.min(part, (100 * (usedBy(use, holder.podUID) ?? 0)) / Math.max(1, card.capacity[amount])) : 0;
      if (used) stops.push(`${full} ${from}% ${from + used}%`);
      stops.push(`${use || holder.state !== "allocated" ? pale : full} ${from + used}% max(${from + used}%, calc(${to}% - 1px))`, `var(--cell) calc(${to}% - 1px) ${to}%`);
      from = to;
    }
    const towards = amount === "memoryMiB" && this.shape.small ? "top" : "right"; // a small cell is higher than wide
    return stops.length ? `linear-gradient(to ${towards}, ${stops.join(", ")}, transparent ${from}%)` : "none";
  }

  /** For which part of the time kernels ran on a card. */
  busy(use) {
    const part = use.utilizationPercent ?? 0;
    return part ? `linear-gradient(to right, var(--text) ${part}%, transparent ${part}%)` : "none";
  }

  colourOf(card, holder) {
    if (!this.filter.admits(holder.namespace)) return "var(--others)";
    if (this.colour === "health") return `var(${phaseOf(card).colour})`;
    return this.colour === "model" ? this.cluster.hue("model", card.model || "unknown") : this.cluster.hue("namespace", holder.namespace);
  }

  // Moving about.

  click(event) {
    const cell = event.target.closest(".card");
    if (!cell) return;
    this.activate(cell.parentElement.dataset.node, Number(cell.dataset.position));
    this.chooseActive();
  }

  key(event) {
    if (!this.active || event.altKey || event.metaKey) return;
    const place = this.places.get(this.active.node);
    const columns = this.shape.columns;
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / this.shape.height) - 1) * columns;
    const cards = this.cluster.nodes.get(this.active.node).cards.length;
    const position = this.active.position;
    const moves = {
      ArrowRight: () => (position + 1 < cards ? this.go(place, position + 1) : this.go(place + 1, 0)),
      ArrowLeft: () => (position > 0 ? this.go(place, position - 1) : this.go(place - 1, Infinity)),
      ArrowDown: () => this.go(place + columns, position),
      ArrowUp: () => this.go(place - columns, position),
      PageDown: () => this.go(Math.min(this.names.length - 1, place + page), position),
      PageUp: () => this.go(Math.max(0, place - page), position),
      Home: () => this.go(event.ctrlKey ? 0 : place, 0),
      End: () => this.go(event.ctrlKey ? this.names.length - 1 : place, Infinity),
      Enter: () => this.chooseActive(true),
      " ": () => this.chooseActive(true),
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    moves[event.key]();
  }

  go(place, position) {
    if (place < 0 || place >= this.names.length) return;
    const cards = this.cluster.nodes.get(this.names[place]).cards.length;
    this.activate(this.names[place], Math.min(position, cards - 1));
    const { columns, height } = this.shape;
    const top = Math.floor(place / columns) * height;
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    else if (top + height > this.scroller.scrollTop + this.scroller.clientHeight) this.scroller.scrollTop = top + height - this.scroller.clientHeight;
    this.draw();
    this.tiles.get(this.names[place]).tile.children[this.active.position + 1].focus({ preventScroll: true });
  }

  activate(node, position) {
    this.active = { node, position };
    this.redraw();
  }

  chooseActive(byKey = false) {
    const card = this.cluster.nodes.get(this.active.node)?.cards[this.active.position];
    if (!card) return;
    this.chosen = card.uuid;
    this.redraw();
    this.choose(card, byKey);
  }
}

/** What a screen reader says of a card. */
export function spoken(card) {
  const pods = card.holders.length;
  const used = `${number(card.used.memoryMiB)} of ${number(card.capacity.memoryMiB)} MiB used by ${plural(pods, "pod")}`;
  const phase = phaseOf(card);
  const more = [phase.mark ? phase.word : "", isAlone(card) ? "held by one pod alone" : "", card.conflicts ? plural(card.conflicts, "conflict") : ""];
  return [`GPU ${card.index} of ${card.node}: ${used}`, ...more.filter(Boolean)].join(", ");
}

function usedPercent(use) { return use.memoryUsedMiB === null ? "?" : Math.round((100 * use.memoryUsedMiB) / Math.max(1, use.memoryMiB)); }

function hint(card, use) {
  return [spoken(card), spokenUse(use), card.model, card.reason, ...card.holders.slice(0, 8).map((holder) => `${podOf(holder)}: ${number(holder.memoryMiB)} MiB, ${holder.cores} % cores`),
    card.holders.length > 8 ? `and ${card.holders.length - 8} more` : ""].filter(Boolean).join("\n");
}
