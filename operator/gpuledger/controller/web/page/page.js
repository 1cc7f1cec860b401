// Puts the parts together: what the server sends goes into the cluster, and from there into what is shown.

import { Cluster, Filter, PHASES } from "./cluster.js";
import { byId, duration, el, memoryOf, number, percent, plural, refill, say } from "./dom.js";
import { Feed } from "./feed.js";
import { CardMap } from "./map.js";
import { Panel } from "./panel.js";
import { Reports } from "./reports.js";
import { CardTable } from "./table.js";
import { drawQueues, drawTeams, grafanaLink } from "./teams.js";
import { IDLE, Usage } from "./usage.js";

const LEGEND_LIMIT = 10;
const ANNOUNCE_MS = 5000;
const natural = new Intl.Collator("en", { numeric: true });

const cluster = new Cluster();
let loaded = false;
let lastChange = 0;
let filter = new Filter();
let order = []; // names of all nodes, sorted by name
let state = { kind: "wait", text: "Connecting" };

const feed = new Feed({ cluster: take, change: take, state: setState, token: askForToken });
const usage = new Usage(feed, showUse);
const panel = new Panel(cluster, usage, feed, (uuid) => { map.chosen = uuid; map.redraw(); }, filterBy);
const map = new CardMap(cluster, usage, byId("map"), byId("canvas"), (card, byKey) => panel.showCard(card.uuid, byKey));
const reports = new Reports(cluster, feed, byId("report"), filterBy);
const table = new CardTable(cluster, usage, byId("table"), (card) => panel.showCard(card.uuid, true));

function take(message) {
  const first = !loaded;
  loaded = true;
  const names = cluster.nodes.size;
  const known = new Set(message.full ? [] : cluster.nodes.keys());
  const waited = cluster.waiting.length;
  const elsewhere = cluster.activeElsewhere;
  const changed = cluster.take(message);
  if (message.full || message.gone.length || names !== cluster.nodes.size || message.nodes.some((node) => !known.has(node.node))) {
    order = [...cluster.nodes.keys()].sort(natural.compare);
  }
  if (!message.full && (message.nodes.length || message.gone.length || message.waiting)) lastChange = Date.now();
  map.highlight(changed);
  arrange();
  panel.update(Boolean(message.waiting || message.growth) || first || elsewhere !== cluster.activeElsewhere);
  if (!first && waited !== cluster.waiting.length) announce(`${plural(cluster.waiting.length, "pod")} waiting`);
  if (first) {
    panel.follow();
    requestAnimationFrame(() => { document.documentElement.dataset.ready = "true"; performance.mark("rendered"); });
  }
}

// Which nodes, and in which order.

const SORTS = {
  full: (node) => -node.used.memoryMiB / Math.max(1, node.capacity.memoryMiB),
  empty: (node) => node.used.memoryMiB / Math.max(1, node.capacity.memoryMiB),
  trouble: (node) => -node.cards.filter((card) => card.phase !== "Ready" || card.conflicts).length,
  pods: (node) => -node.cards.reduce((sum, card) => sum + card.holders.length, 0),
  idle: (node) => -usage.idleOf(node.node),
};

function arrange() {
  let names = order;
  if (filter.on) names = names.filter((name) => Cluster.matching(cluster.nodes.get(name), filter).size);
  const key = SORTS[byId("sort").value];
  if (key) {
    const keys = new Map(names.map((name) => [name, key(cluster.nodes.get(name))]));
    names = names.toSorted((a, b) => keys.get(a) - keys.get(b)); // stable: by name among equals
  }
  map.show(names, filter);
  table.show(names, filter);
  drawCluster(names);
  drawTotals(names);
  drawLegend();
}

function drawCluster(names) {
  const view = byId("view").value, asTable = view === "table", asTeams = view === "teams", asReports = view === "reports";
  const nothing = loaded && !names.length && !asTeams && !asReports;
  byId("map").hidden = asTable || asTeams || asReports || nothing;
  byId("table").hidden = !asTable || nothing;
  byId("teams").hidden = !loaded || asReports || !(asTeams || filter.byNamespace);
  byId("teams").classList.toggle("all", asTeams);
  byId("empty").hidden = !nothing;
  byId("reports").hidden = !loaded || !asReports;
  document.querySelector(".tools").hidden = loaded && !cluster.nodes.size && !asReports;
  for (const id of OF_CARDS) byId(id).closest("label").hidden = asReports;
  byId("legend").hidden = asTeams || asReports || (loaded && !cluster.nodes.size);
  if (!byId("teams").hidden) refill(byId("teams"), drawTeams(cluster, filter, asTeams, filterBy), asTeams && drawQueues(cluster.queues));
  if (nothing) drawEmpty();
  else if (asTable) table.draw();
  if (!byId("reports").hidden) reports.show(Number(byId("days").value), byId("by").value, filter); else reports.hide();
  say(byId("found"), filter.on && !asReports ? `${plural(names.length, "node")} of ${number(cluster.nodes.size)}` : "");
}

/** What is used was chosen, or there is something new to say of it. */
function showUse() {
  byId("sort-idle").disabled = !usage.on;
  if (!usage.on && byId("sort").value === "idle") byId("sort").value = "name";
  say(byId("usage-note"), usage.note());
  map.redraw();
  arrange();
  panel.drawDetails();
}

function drawEmpty() {
  if (cluster.nodes.size) {
    refill(byId("empty"), el("p", {}, "No card matches all of these words."), el("button", { type: "button", "data-key": "clear", text: "Show all", on: { click: () => filterBy("") } }));
  } else {
    refill(byId("empty"), el("h3", { text: "No GPUs in the ledger yet" }),
      el("p", {}, "Cards appear as soon as a node registers some: label it with ", el("code", { text: "kubectl label node NAME gpuledger.dev/agent=true" }), ", and the node agent starts there."),
      el("p", { class: "dim", text: "Nodes with HAMi's or Volcano's device plugin register their cards on their own." }));
  }
}

/** Show what has all words of a text, and have the address say so: in an entry of its own, or in the latest. */
function filterBy(text, another = true) {
  byId("filter").value = text;
  look();
  remember(another);
}

function look() {
  filter = panel.filter = new Filter(byId("filter").value);
  byId("map").scrollTop = 0;
  arrange();
  panel.drawWaiting();
  if (panel.tab === "history") panel.loadHistory();
}

// What is chosen is in the address, before the # that names what the panel shows: it can be bookmarked and sent.

const OF_CARDS = ["colour", "usage", "sort"]; // what a report has no use for
const CHOICES = ["filter", "view", ...OF_CARDS, "days", "by"];
const usual = new Map(CHOICES.map((id) => [id, byId(id).value]));

function remember(another) {
  const chosen = new URLSearchParams(CHOICES.filter((id) => byId(id).value.trim() !== usual.get(id)).map((id) => [id, byId(id).value.trim()]));
  const query = chosen.toString().replaceAll("%3A", ":").replaceAll("%2C", ",").replaceAll("%2F", "/");
  const address = `${location.pathname}${query && `?${query}`}${location.hash}`;
  if (address === location.pathname + location.search + location.hash) return;
  if (another) history.pushState(null, "", address); else history.replaceState(null, "", address);
}

/** Choose what the address says; a word that a list does not have is as none. */
function recall() {
  const said = new URLSearchParams(location.search);
  for (const id of CHOICES) {
    byId(id).value = said.get(id) ?? usual.get(id);
    if (byId(id).selectedIndex < 0) byId(id).value = usual.get(id);
  }
  map.view = byId("view").value;
  map.colour = byId("colour").value;
  const idleAfterS = byId("usage").value ? Number(byId("usage").value) : null;
  if (idleAfterS !== usage.idleAfterS) usage.choose(idleAfterS);
  byId("sort-idle").disabled = !usage.on;
  if (!usage.on && byId("sort").value === "idle") byId("sort").value = usual.get("sort");
  map.redraw();
  look();
}

// Above the map.

function drawTotals(names) {
  const { used, capacity, phases, cards } = filter.on ? cluster.totalsOf(names, filter) : cluster.totals;
  const pending = cluster.waiting.filter((pod) => filter.admitsPod(pod)).length;
  const held = filter.byNamespace ? " held" : "";
  const counts = Object.values(PHASES).map(({ word, mark }) => [word, mark, phases.get(word) ?? 0]).filter(([, , many]) => many);
  const content = [
    total(`Memory${held}`, memoryOf(used.memoryMiB, capacity.memoryMiB), used.memoryMiB, capacity.memoryMiB),
    total(`Cores${held}`, percent(used.cores, capacity.cores), used.cores, capacity.cores),
    total(`Slots${held}`, `${number(used.number)} of ${number(capacity.number)}`, used.number, capacity.number),
    ...(usage.on ? uses() : []),
    el("div", {}, el("dt", { text: "Waiting" }), el("dd", {}, el("button", { type: "button", class: "link", "data-key": "waiting", text: plural(pending, "pod"), on: { click: () => panel.showWaiting() } }))),
    el("div", { class: "phases" }, el("dt", { text: plural(names.length, "node") }), el("dd", { text: plural(cards, "card") }),
      el("dd", { class: "small" }, counts.map(([word, mark, many]) => el("span", { class: `is-${word}` }, mark ? el("span", { class: "mark", "aria-hidden": "true", text: mark }) : null, `${number(many)} ${word}`)))),
    cluster.grafanaUrl ? el("div", {}, el("dt", { text: "Over time" }), el("dd", {}, grafanaLink(cluster.grafanaUrl, filter.names))) : null,
  ];
  refill(byId("totals"), content);
}

function uses() {
  const { used: inUse, held, idle } = usage.sums;
  const all = cluster.totals.used.memoryMiB;
  return [total("In use, of what is held", memoryOf(inUse, held), inUse, held), total([el("span", { class: "mark", "aria-hidden": "true", text: IDLE.mark }), "Held and idle"], memoryOf(idle, all), idle, all)];
}

function total(label, text, used, capacity) {
  const meter = el("span", { class: "meter", "aria-hidden": "true" }, el("span", {}));
  meter.firstChild.style.width = `${capacity ? (100 * used) / capacity : 0}%`;
  return el("div", {}, el("dt", {}, label), el("dd", { text }), el("dd", {}, meter));
}

function drawLegend() {
  const colour = byId("colour").value;
  const counts = colour === "namespace" ? cluster.namespaces : colour === "model" ? cluster.models : null;
  const entries = [];
  if (counts) {
    const largest = [...counts].sort((a, b) => cluster.hues[colour].get(a[0]) - cluster.hues[colour].get(b[0])).slice(0, LEGEND_LIMIT);
    for (const [name] of largest) entries.push(legendEntry(name, cluster.hue(colour, name), colour === "namespace" ? `ns:${name}` : name));
    if (counts.size > LEGEND_LIMIT) entries.push(el("span", { class: "entry" }, swatch(`var(--hue-${LEGEND_LIMIT})`), `${number(counts.size - LEGEND_LIMIT)} more`));
  } else {
    for (const { word, colour: name } of Object.values(PHASES)) if (cluster.totals.phases.has(word)) entries.push(legendEntry(word, `var(${name})`, word));
  }
  const { phases, alone } = cluster.totals; // only letters that are on the map
  const marks = Object.values(PHASES).filter(({ mark, word }) => mark && phases.has(word)).map(({ mark, word }) => [mark, word]);
  if (usage.sums.idle) marks.push([IDLE.mark, IDLE.word]);
  refill(byId("legend"), entries, el("span", { class: "marks" }, marks.map(([mark, word]) => el("span", { class: "entry phase" }, el("span", { class: "mark", text: mark }), word)),
    alone ? el("span", { class: "entry" }, el("span", { class: "swatch alone", "aria-hidden": "true" }), "one pod alone (A)") : null));
}

function legendEntry(name, colour, filter) {
  const pressed = byId("filter").value === filter;
  return el("button", { type: "button", class: "entry", "aria-pressed": String(pressed), "data-key": `legend ${name}`, on: { click: () => filterBy(pressed ? "" : filter) } }, swatch(colour), name);
}

function swatch(colour) {
  const made = el("span", { class: "swatch", "aria-hidden": "true" });
  made.style.background = colour;
  return made;
}

// The connection.

function setState(kind, text) {
  if (kind !== state.kind) announce(kind === "live" ? "Live" : kind === "lost" ? "Disconnected, retrying" : "");
  state = { kind, text };
  drawState();
}

function drawState() {
  const age = duration((Date.now() - feed.heard) / 1000);
  const since = lastChange ? `, last change ${duration((Date.now() - lastChange) / 1000)} ago` : "";
  const text = state.kind === "live" ? `Live${since}` : loaded ? `${state.text}; showing data from ${age} ago` : state.text;
  byId("state").dataset.kind = state.kind;
  say(byId("state-text"), text);
  byId("retry").hidden = state.kind !== "lost";
  document.body.classList.toggle("stale", state.kind === "lost" && loaded);
}

let announced = 0;
function announce(text) {
  clearTimeout(announced);
  announced = setTimeout(() => say(byId("live"), text), Math.min(ANNOUNCE_MS, 500));
}

let asking = null; // one dialogue, however many requests want a token
function askForToken(why) {
  asking ??= new Promise((resolve) => {
    if (why) say(byId("token-text"), `Not accepted: ${why}`);
    byId("token").showModal();
    byId("token-form").onsubmit = (event) => {
      event.preventDefault();
      const token = byId("token-value").value.trim();
      byId("token-value").value = "";
      byId("token").close();
      asking = null;
      resolve(token);
    };
  });
  return asking;
}

// What people can choose.

let typing = 0;
let written = false; // whether the latest entry of the address is of what is being typed
byId("filter").addEventListener("input", () => {
  cancelAnimationFrame(typing);
  typing = requestAnimationFrame(() => { filterBy(byId("filter").value, !written); written = true; });
});
byId("filter").addEventListener("change", () => { written = false; });
addEventListener("popstate", recall);
for (const id of CHOICES) if (id !== "filter") byId(id).addEventListener("change", () => remember(true));
byId("token").addEventListener("cancel", (event) => event.preventDefault());
byId("colour").addEventListener("change", () => { map.colour = byId("colour").value; map.redraw(); drawLegend(); });
byId("sort").addEventListener("change", () => { byId("map").scrollTop = 0; arrange(); });
byId("view").addEventListener("change", () => { map.view = byId("view").value; byId("map").scrollTop = 0; arrange(); });
byId("usage").addEventListener("change", () => usage.choose(byId("usage").value ? Number(byId("usage").value) : null));
for (const id of ["days", "by"]) byId(id).addEventListener("change", arrange);
byId("reload").addEventListener("click", () => reports.load());
byId("retry").addEventListener("click", () => feed.retryNow());
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); toMap(); });
byId("to-map").addEventListener("click", toMap);

function toMap() {
  const place = document.querySelector(".card[tabindex='0']") ?? byId("map");
  place.scrollIntoView({ block: "center" });
  place.focus({ preventScroll: true });
}

const THEMES = ["auto", "light", "dark"];
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = `Theme: ${theme}`;
  try { localStorage.setItem("theme", theme); } catch { /* not kept, then */ }
}
byId("theme").addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]));
let kept = null;
try { kept = localStorage.getItem("theme"); } catch { /* as the system has it */ }
setTheme(THEMES.includes(kept) ? kept : "auto");

setInterval(() => { if (!document.hidden) drawState(); }, 1000);
setInterval(() => { if (loaded && !document.hidden) panel.drawWaiting(); }, 30000); // for how long they wait
panel.open("waiting");
recall();
feed.run();
