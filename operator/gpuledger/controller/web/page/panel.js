// The panel beside the map: waiting pods, details, history; its tabs, and what the address after # names.

import { Filter } from "./cluster.js";
import { cardDetails, explanationDetails, podLink, title } from "./details.js";
import { byId, duration, el, moment, plural, refill, say, secondsSince } from "./dom.js";
import { Refused } from "./feed.js";
import { byGang, gangLink, gangOf, waitingGang } from "./gang.js";

const TABS = ["waiting", "details", "history"];
const WAITING_SHOWN = 200;
const HISTORY_SHOWN = 100;
const HISTORY_SEARCHED = 1000; // with a filter
const HISTORY_PAUSE_MS = 5000;
const OF_NO_NODE = ["quota", "gang", "preempting"]; // reasons for which it does not count how many nodes give them

export class Panel {
  constructor(cluster, usage, feed, chosen, filterBy) {
    Object.assign(this, { cluster, usage, feed, chosen, filterBy });
    this.filter = new Filter();
    this.shown = null; // { card: UUID }, { pod: "namespace/name" } or { gang: "namespace/name" }
    this.drawn = ""; // the card as it is drawn, as JSON
    this.historyAt = 0;
    for (const name of TABS) {
      byId(`tab-${name}`).addEventListener("click", () => this.open(name));
      byId(`tab-${name}`).addEventListener("keydown", (event) => this.key(event, name));
    }
    addEventListener("hashchange", () => this.follow());
    addEventListener("click", (event) => { // a link to what was shown last changes no address
      if (event.target.closest?.("a")?.getAttribute("href") === location.hash) this.follow();
    });
    this.drawDetails();
  }

  open(name, focus = false) {
    for (const each of TABS) {
      byId(`tab-${each}`).setAttribute("aria-selected", String(each === name));
      byId(`tab-${each}`).tabIndex = each === name ? 0 : -1;
      byId(each).hidden = each !== name;
    }
    this.tab = name;
    if (focus) byId(`tab-${name}`).focus({ preventScroll: true });
    if (name === "history") this.loadHistory();
  }

  key(event, name) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    this.open(TABS[(TABS.indexOf(name) + step + TABS.length) % TABS.length], true);
  }

  /** Show what the address names: #card=UUID, #pod=namespace/name or #gang=namespace/name. */
  follow() {
    const [, kind, text] = /^#(card|pod|gang)=(.+)$/.exec(location.hash) ?? [];
    if (!kind) { // back to before something was chosen
      if (this.shown) { this.shown = null; this.chosen(null); this.drawDetails(); this.open("waiting"); }
      return;
    }
    let value;
    try { value = decodeURIComponent(text); } catch { return; }
    if (kind === "card") this.showCard(value, true); else this.showAnswer(kind, value);
  }

  showCard(uuid, focus) {
    goTo(`#card=${encodeURIComponent(uuid)}`);
    this.shown = { card: uuid };
    this.chosen(uuid);
    this.drawn = "";
    this.open("details");
    this.drawDetails();
    this.arrive(focus);
  }

  /** Show what the operator says of a pod or a gang. */
  async showAnswer(kind, name, quietly = false) {
    goTo(`#${kind}=${encodeURIComponent(name)}`);
    this.shown = { [kind]: name };
    this.chosen(null);
    if (!quietly) {
      this.open("details");
      refill(byId("details"), title(name), el("p", { class: "dim", text: "Asking …" }));
      this.arrive(true);
    }
    const again = () => this.showAnswer(kind, name, true);
    const content = await this.explanation(kind, name, again).catch((error) => {
      const text = error instanceof Refused ? error.message : "The operator can't be reached.";
      return [title(name), el("p", { class: "reason", text }), el("button", { type: "button", "data-key": "again", text: "Ask again", on: { click: again } })];
    });
    if (this.shown[kind] === name) refill(byId("details"), content);
  }

  async explanation(kind, name, again) {
    const found = await this.feed.get(`v1/explain?${kind}=${encodeURIComponent(name)}`);
    const of = `namespace=${encodeURIComponent(found.namespace)}&gang=${encodeURIComponent(found.name)}`;
    const { records } = kind === "gang" ? await this.feed.get(`v1/history?limit=20&${of}`) : { records: [] };
    return explanationDetails(found, records, { again, showCards: this.filterBy });
  }

  showWaiting() {
    this.open("waiting", true);
    this.arrive(false);
  }

  /** Bring the panel into sight: on a narrow screen it is below the map. */
  arrive(focus) {
    const panel = byId("details");
    if (focus) panel.querySelector(".title")?.focus({ preventScroll: true });
    if (matchMedia("(max-width: 900px)").matches) panel.closest("aside").scrollIntoView({ block: "start" });
  }

  /** Draw what a change may have touched. */
  update(waitingChanged) {
    if (waitingChanged) this.drawWaiting();
    this.drawDetails();
    if (this.tab === "history" && Date.now() - this.historyAt > HISTORY_PAUSE_MS) this.loadHistory();
  }

  drawDetails() {
    if (this.shown?.pod || this.shown?.gang) return;
    const panel = byId("details");
    if (!this.shown) { refill(panel, el("p", { class: "dim", text: "Choose a card on the map, or a waiting pod." })); return; }
    const card = this.cluster.cards.get(this.shown.card);
    const use = this.usage.of(this.shown.card), node = card && this.usage.nodes.get(card.node);
    const drawn = JSON.stringify([card ?? null, use, node?.problem]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    refill(panel, card ? cardDetails(card, use, node) : [title("No such card"), el("p", { class: "dim" }, "The ledger has no card ", el("code", { text: this.shown.card }), ".")]);
  }

  drawWaiting() {
    const { waiting } = this.cluster;
    const found = waiting.filter((pod) => this.filter.admitsPod(pod));
    say(byId("tab-waiting"), found.length ? `Waiting ${found.length}` : "Waiting");
    if (this.cluster.activeElsewhere !== null) { refill(byId("waiting"), standby(this.cluster.activeElsewhere)); return; }
    if (!waiting.length) { refill(byId("waiting"), el("p", { class: "dim", text: "No pod waits for a card." })); return; }
    const entries = byGang(found);
    const more = entries.slice(WAITING_SHOWN).reduce((sum, [, pods]) => sum + pods.length, 0);
    refill(byId("waiting"),
      this.cluster.growth.length > 0 && el("p", { class: "reason" }, "Nodes asked for: ", ...this.cluster.growth.flatMap(({ wanted, template, since }, place) => [`${place ? "; " : ""}${wanted} of template ${template}, since `, moment(since)])),
      this.filter.on && el("p", { class: "dim", text: `${found.length || "None"} of ${plural(waiting.length, "pending pod")} ${found.length === 1 ? "matches" : "match"} the filter.` }),
      found.length > 0 && el("ul", { class: "pods" }, entries.slice(0, WAITING_SHOWN).map(([gang, pods]) => (gang ? waitingGang(gang, pods, () => this.showAnswer("gang", gang)) : waitingPod(pods[0], () => this.showAnswer("pod", `${pods[0].namespace}/${pods[0].pod}`))))),
      more > 0 && el("p", { class: "dim", text: `and ${more} more` }));
    this.askAgain(waiting);
  }

  /** Ask again for what is shown when it was tried since, or is not among those that wait any more. */
  askAgain(waiting) {
    const { pod, gang } = this.shown ?? {};
    if (gang) {
      const number = `${gang} ${waiting.filter((each) => gangOf(each) === gang).length}`; // members are tried all the time
      if (this.tried !== number && this.tried?.startsWith(`${gang} `)) this.showAnswer("gang", gang, true);
      this.tried = number;
      return;
    }
    const entry = waiting.find((each) => `${each.namespace}/${each.pod}` === pod);
    const tried = pod && `${pod} ${entry?.lastTried ?? ""} ${Boolean(entry)}`;
    if (pod && this.tried !== undefined && this.tried !== tried && this.tried.startsWith(`${pod} `)) this.showAnswer("pod", pod, true);
    this.tried = tried ?? undefined;
  }

  async loadHistory() {
    this.historyAt = Date.now();
    const panel = byId("history");
    try {
      const { filter } = this;
      const one = filter.names.length === 1 && filter.spaces.flat().length === 1 ? `&namespace=${encodeURIComponent(filter.names[0])}` : "";
      const { kept, dropped, records: all } = await this.feed.get(`v1/history?limit=${filter.on ? HISTORY_SEARCHED : HISTORY_SHOWN}${one}`);
      if (filter !== this.filter) return;
      const records = all.filter((each) => filter.admitsPod(each)).slice(-HISTORY_SHOWN);
      const older = dropped ? `; ${dropped} older ones were dropped` : "";
      if (!records.length) { refill(panel, el("p", { class: "dim", text: filter.on && kept ? `None of the last ${plural(kept, "record")} matches the filter${older}.` : "No records yet." })); return; }
      refill(panel, el("p", { class: "dim", text: `The last ${records.length} ${filter.on ? "that match the filter, " : ""}of ${plural(kept, "record")}${older}, newest first.` }),
        el("ol", { class: "records" }, records.toReversed().map(record)));
    } catch (error) {
      refill(panel, el("p", { class: "reason", text: error instanceof Refused ? error.message : "The operator can't be reached." }));
    }
  }
}

/** Name in the address what is shown, so that the browser's Back leads to what was shown before. */
function goTo(hash) {
  if (location.hash !== hash) history.pushState(null, "", hash);
}

function standby(active) {
  const where = active ? ["; the active one is ", el("code", { text: active })] : [", and none is active at the moment"];
  return el("p", { class: "reason" }, "This replica is on standby", ...where, ". Only that one knows the waiting pods and the history.");
}

function waitingPod(pod, choose) {
  const [most, ...others] = pod.reasons;
  const name = `${pod.namespace}/${pod.pod}`;
  return el("li", {}, el("button", { type: "button", class: "pod", "data-key": name, on: { click: choose } },
    el("span", { class: "row" }, el("strong", { text: name }), el("span", { class: "dim", text: duration(secondsSince(pod.since)) })),
    el("span", { class: "dim", text: pod.request + (pod.priority ? ` · priority ${pod.priority}` : "") + (pod.queue ? ` · queue ${pod.queue}` : "") }),
    el("span", { text: most ? `${most.text}${OF_NO_NODE.includes(most.reason) ? "" : `: ${plural(most.nodes, "node")}`}${others.length ? `, and ${plural(others.length, "other reason")}` : ""}` : "not tried yet" })));
}

const KINDS = { evicted: "is-unhealthy", refused: "is-cordoned", preempting: "is-cordoned", "gang-given-up": "is-cordoned" };

function subject(each) {
  if (each.pod) return podLink(`${each.namespace}/${each.pod}`, each.time);
  return each.gang ? gangLink(gangOf(each), each.time) : el("span", { text: each.cards[0]?.uuid ?? "operator" });
}

function record(each) {
  return el("li", {}, el("span", { class: "row" }, el("span", {}, el("span", { class: `chip ${KINDS[each.kind] ?? ""}`, text: each.kind }), " ", subject(each)), moment(each.time)),
    el("span", { text: each.text }), each.node ? el("span", { class: "dim", text: `${each.node}${each.cards.length ? `, ${plural(each.cards.length, "card")}` : ""}` }) : null);
}
