// What was held over days: asked for while somebody looks at it, and only then.

import { barChart, dateOf } from "./chart.js";
import { el, hours, number, percent, plural, refill } from "./dom.js";
import { Refused } from "./feed.js";

const AGAIN_MS = 300000;
const BUSY_MS = 3000;
const TYPING_MS = 500; // names of namespaces are typed letter by letter
const SHOWN = 100;
const BUSY = 429;
const DAY_MS = 86400000;
const OTHERS = "others";
const OTHERS_COLOUR = "var(--hue-10)";
const HUES = 10;
const HEADS = ["Card hours", "Part", "Memory, GiB h", "Core hours", "Shares", "Waited, h", "Idle, h", "Wasted, h"];

export class Reports {
  constructor(cluster, feed, place, filterBy) {
    Object.assign(this, { cluster, feed, place, filterBy });
    this.question = null; // null: nobody looks
    this.asked = 0; // an answer to an earlier question comes too late
    this.found = null;
    this.trouble = "";
    this.byDay = false; // whether the numbers by day are unfolded
    document.addEventListener("visibilitychange", () => { if (!document.hidden && this.question !== null && this.due) this.load(); });
    new ResizeObserver(() => { if (this.width !== this.place.clientWidth) this.draw(); }).observe(place);
  }

  /** Show today and so many days before, by what is named, of the namespaces that a filter names. */
  show(days, by, filter) {
    const names = filter.byNamespace ? filter.spaces[0].filter((name) => filter.spaces.every((each) => each.includes(name))) : [];
    const nobody = filter.byNamespace && !names.length; // of no namespace: two words that no name has both
    const question = `since=${days}d&by=${by}${names.length ? `&namespace=${names.map(encodeURIComponent).join(",")}` : ""}`;
    this.filter = filter;
    if (nobody) { this.hide(); refill(this.place, el("p", { class: "dim", text: "No namespace has all of these names." })); return; }
    if (question === this.question) return;
    const typed = this.question !== null && this.question.split("&namespace")[0] === question.split("&namespace")[0];
    this.question = question;
    clearTimeout(this.timer);
    if (typed) this.timer = setTimeout(() => this.load(), TYPING_MS); else this.load();
  }

  hide() {
    this.question = null;
    this.asked += 1;
    clearTimeout(this.timer);
  }

  async load() {
    this.due = false;
    clearTimeout(this.timer);
    const asked = ++this.asked;
    let pause = AGAIN_MS;
    this.place.setAttribute("aria-busy", "true");
    if (!this.found) this.draw();
    try {
      const found = await this.feed.get(`v1/report?${this.question}`);
      if (asked !== this.asked) return;
      this.found = found;
      this.trouble = "";
    } catch (error) {
      if (asked !== this.asked) return;
      this.trouble = error instanceof Refused ? error.message : "The operator can't be reached.";
      if (error instanceof Refused && error.status === BUSY) pause = BUSY_MS;
    }
    this.place.setAttribute("aria-busy", "false");
    this.draw();
    this.timer = setTimeout(() => { if (document.hidden) this.due = true; else this.load(); }, pause);
  }

  draw() {
    this.width = this.place.clientWidth;
    if (!this.width) return;
    const { found, trouble } = this;
    refill(this.place,
      trouble && el("p", { class: "reason", text: trouble }),
      !found && !trouble && el("p", { class: "dim", text: "Adding up …" }),
      this.filter.words.length > 0 && el("p", { class: "dim", text: "Of the filter, only namespaces count here: ns:NAME." }),
      found && this.parts(found));
  }

  parts(found) {
    const { rows, total, cluster, by } = found;
    const first = dateOf(found.since), last = dateOf(lastDay(found));
    const title = `GPUs held from ${first} to ${last} (UTC)`;
    if (!rows.length) return [el("h3", { text: title }), el("p", { class: "dim", text: "Nothing was held." })];
    const largest = rows.slice(0, HUES).map(({ name }) => name);
    const colours = coloursOf(largest, this.cluster.hues[by]);
    const days = everyDay(found, largest);
    const names = [...largest, ...(rows.length > largest.length ? [OTHERS] : [])];
    const most = days.reduce((a, b) => (b.all > a.all ? b : a));
    const spoken = `Card hours by day from ${first} to ${last}, by ${by}: ${hours(total.cardHours)} in all, most on ${dateOf(most.day)} with ${hours(most.all)}. The tables below have the numbers.`;
    return [
      el("h3", { text: title }),
      el("p", { class: "dim", text: `Shares that run are counted until now; all cards' hours are those of the ${plural(cluster.cards, "card")} that are there now.` }),
      sums(total, cluster),
      barChart(days, names, [...colours, OTHERS_COLOUR], spoken, this.width),
      el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `Sums by ${by}` }, this.table(found, colours)),
      this.dayTable(days, names),
    ];
  }

  table({ rows, total, by }, colours) {
    const shown = rows.slice(0, SHOWN), more = rows.length - shown.length;
    const line = (name, sums, colour) => el("tr", {}, el("th", { scope: "row" }, swatch(colour), name), cellsOf(sums, total));
    return el("table", {},
      el("caption", { class: "hidden", text: `What each ${by} held, the most first` }),
      head(by, HEADS),
      el("tbody", {}, shown.map((row, place) => line(this.named(by, row.name), row, colours[place] ?? OTHERS_COLOUR)),
        more > 0 && line(`${plural(more, "other")}`, rest(total, shown), OTHERS_COLOUR)),
      el("tfoot", {}, el("tr", {}, el("th", { scope: "row", text: "Total" }), cellsOf(total, total))));
  }

  named(by, name) {
    if (by !== "namespace" || name.startsWith("(")) return name;
    return el("button", { type: "button", class: "link", "data-key": `report ${name}`, text: name, on: { click: () => this.filterBy(`ns:${name}`) } });
  }

  dayTable(days, names) {
    const held = days.filter(({ all }) => all).toReversed();
    const rows = held.map(({ day, parts, all }) => el("tr", {}, el("th", { scope: "row", text: day }), figure(hours(all)), names.map((_, place) => figure(parts[place] ? hours(parts[place]) : ""))));
    const table = el("table", {}, el("caption", { class: "hidden", text: "Card hours by day, the latest first" }), head("day", ["All", ...names]), el("tbody", {}, rows));
    return el("details", { open: this.byDay, on: { toggle: (event) => { this.byDay = event.target.open; } } },
      el("summary", { "data-key": "by day", text: "Card hours by day" }), el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Card hours by day" }, table));
  }
}

/** The last day that is counted: of those that are to come, nothing is known. */
function lastDay({ until }) { return new Date(Date.parse(`${until}T00:00:00Z`) - DAY_MS).toISOString().slice(0, 10); }

/** Each day with the card hours of the largest and, behind them, of all others. */
function everyDay(found, largest) {
  const known = new Map(found.days.map((each) => [each.day, each])), days = [];
  for (let time = Date.parse(`${found.since}T00:00:00Z`); time <= Date.parse(`${lastDay(found)}T00:00:00Z`); time += DAY_MS) {
    const day = new Date(time).toISOString().slice(0, 10);
    const { cardHours: all = 0, rows = {} } = known.get(day) ?? {};
    const parts = largest.map((name) => rows[name] ?? 0);
    const others = all - parts.reduce((sum, part) => sum + part, 0);
    days.push({ day, all, parts: [...parts, others > 0.01 ? others : 0] });
  }
  return days;
}

/** The colours that the map has for these names, and for the rest such as none of them has. */
function coloursOf(names, known = new Map()) {
  const own = names.map((name) => known.get(name)).map((hue) => (hue < HUES ? hue : null));
  const free = [...Array(HUES).keys()].filter((hue) => !own.includes(hue));
  return own.map((hue) => `var(--hue-${hue ?? free.shift()})`);
}

function sums(total, cluster) {
  const meter = el("span", { class: "meter", "aria-hidden": "true" }, el("span", {}));
  meter.firstChild.style.width = `${Math.min(100, cluster.cardHours ? (100 * total.cardHours) / cluster.cardHours : 0)}%`;
  const told = [
    ["Memory", `${hours(total.memoryGiBHours)} GiB h`],
    ["Core hours", hours(total.coreHours)],
    ["Shares", number(total.shares)],
    ["Waited", `${hours(total.waitedHours)} h`],
    ["Idle", `${hours(total.idleHours)} h`],
    ["Wasted", `${hours(total.wastedHours)} h`],
  ];
  const entry = (name, text, ...more) => el("div", {}, el("dt", { text: name }), el("dd", { text }), more);
  return el("dl", { class: "totals", "aria-label": "Sums" },
    entry("Card hours", hours(total.cardHours)),
    cluster.cardHours > 0 && entry("Of all cards' hours", `${percent(total.cardHours, cluster.cardHours)} of ${hours(cluster.cardHours)}`, el("dd", {}, meter)),
    told.map(([name, text]) => entry(name, text)));
}

function rest(total, shown) {
  return Object.fromEntries(Object.entries(total).map(([amount, value]) => [amount, Math.max(0, value - shown.reduce((sum, row) => sum + row[amount], 0))]));
}

function cellsOf(sums, total) {
  return [hours(sums.cardHours), percent(sums.cardHours, total.cardHours), hours(sums.memoryGiBHours), hours(sums.coreHours), number(Math.round(sums.shares)), hours(sums.waitedHours), hours(sums.idleHours), hours(sums.wastedHours)].map(figure);
}

const figure = (text) => el("td", { class: "figure", text });

function head(first, others) {
  return el("thead", {}, el("tr", {}, el("th", { scope: "col", text: first[0].toUpperCase() + first.slice(1) }), others.map((text) => el("th", { scope: "col", class: "figure", text }))));
}

function swatch(colour) {
  const made = el("span", { class: "swatch", "aria-hidden": "true" });
  made.style.background = colour;
  return made;
}
