// The panel beside the map: waiting pods, details, history; its tabs, and what the address after # names.

import { cardDetails, podDetails, podLink, title } from "./details.js";
import { byId, duration, el, moment, plural, refill, say, secondsSince } from "./dom.js";
import { Refused } from "./feed.js";

const TABS = ["waiting", "details", "history"];
const WAITING_SHOWN = 200;
const HISTORY_PAUSE_MS = 5000;

export class Panel {
  constructor(cluster, feed, chosen) {
    Object.assign(this, { cluster, feed, chosen });
    this.shown = null; // { card: UUID } or { pod: "namespace/name" }
    this.drawn = ""; // the card as it is drawn, as JSON
    this.historyAt = 0;
    for (const name of TABS) {
      byId(`tab-${name}`).addEventListener("click", () => this.open(name));
      byId(`tab-${name}`).addEventListener("keydown", (event) => this.key(event, name));
    }
    addEventListener("hashchange", () => this.follow());
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

  /** Show what the address names: #card=UUID or #pod=namespace/name. */
  follow() {
    const [, kind, text] = /^#(card|pod)=(.+)$/.exec(location.hash) ?? [];
    if (!kind) return;
    let value;
    try { value = decodeURIComponent(text); } catch { return; }
    if (kind === "card") this.showCard(value, true); else this.showPod(value);
  }

  showCard(uuid, focus) {
    history.replaceState(null, "", `#card=${encodeURIComponent(uuid)}`);
    this.shown = { card: uuid };
    this.chosen(uuid);
    this.drawn = "";
    this.open("details");
    this.drawDetails();
    this.arrive(focus);
  }

  async showPod(pod, quietly = false) {
    history.replaceState(null, "", `#pod=${encodeURIComponent(pod)}`);
    this.shown = { pod };
    this.chosen(null);
    if (!quietly) {
      this.open("details");
      refill(byId("details"), title(pod), el("p", { class: "dim", text: "Asking …" }));
      this.arrive(true);
    }
    const content = await this.explanation(pod);
    if (this.shown.pod === pod) refill(byId("details"), content);
  }

  async explanation(pod) {
    try {
      return podDetails(await this.feed.get(`v1/explain?pod=${encodeURIComponent(pod)}`), () => this.showPod(pod, true));
    } catch (error) {
      const text = error instanceof Refused ? error.message : "The operator can't be reached.";
      return [title(pod), el("p", { class: "reason", text }), el("button", { type: "button", "data-key": "again", text: "Ask again", on: { click: () => this.showPod(pod, true) } })];
    }
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
    if (this.shown?.pod) return;
    const panel = byId("details");
    if (!this.shown) { refill(panel, el("p", { class: "dim", text: "Choose a card on the map, or a waiting pod." })); return; }
    const card = this.cluster.cards.get(this.shown.card);
    const drawn = JSON.stringify(card ?? null);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    refill(panel, card ? cardDetails(card) : [title("No such card"), el("p", { class: "dim" }, "The ledger has no card ", el("code", { text: this.shown.card }), ".")]);
  }

  drawWaiting() {
    const { waiting } = this.cluster;
    say(byId("tab-waiting"), waiting.length ? `Waiting ${waiting.length}` : "Waiting");
    if (this.cluster.activeElsewhere !== null) { refill(byId("waiting"), standby(this.cluster.activeElsewhere)); return; }
    if (!waiting.length) { refill(byId("waiting"), el("p", { class: "dim", text: "No pod waits for a card." })); return; }
    const pod = this.shown?.pod;
    refill(byId("waiting"),
      el("ul", { class: "pods" }, waiting.slice(0, WAITING_SHOWN).map((each) => waitingPod(each, () => this.showPod(`${each.namespace}/${each.pod}`)))),
      waiting.length > WAITING_SHOWN && el("p", { class: "dim", text: `and ${waiting.length - WAITING_SHOWN} more` }));
    const entry = waiting.find((each) => `${each.namespace}/${each.pod}` === pod);
    const tried = pod && `${pod} ${entry?.lastTried ?? ""} ${Boolean(entry)}`;
    if (pod && this.tried !== undefined && this.tried !== tried && this.tried.startsWith(`${pod} `)) this.showPod(pod, true);
    this.tried = tried ?? undefined;
  }

  async loadHistory() {
    this.historyAt = Date.now();
    const panel = byId("history");
    try {
      const { kept, dropped, records } = await this.feed.get("v1/history?limit=100");
      if (!records.length) { refill(panel, el("p", { class: "dim", text: "No records since the operator started." })); return; }
      refill(panel, el("p", { class: "dim", text: `The last ${records.length} of ${plural(kept, "record")}${dropped ? `; ${dropped} older ones were dropped` : ""}, newest first.` }),
        el("ol", { class: "records" }, records.toReversed().map(record)));
    } catch (error) {
      refill(panel, el("p", { class: "reason", text: error instanceof Refused ? error.message : "The operator can't be reached." }));
    }
  }
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
    el("span", { class: "dim", text: pod.request + (pod.priority ? ` · priority ${pod.priority}` : "") }),
    el("span", { text: most ? `${most.text}: ${plural(most.nodes, "node")}${others.length ? `, and ${plural(others.length, "other reason")}` : ""}` : "not tried yet" })));
}

const KINDS = { evicted: "is-unhealthy", refused: "is-cordoned", preempting: "is-cordoned" };

function record(each) {
  return el("li", {}, el("span", { class: "row" }, el("span", {}, el("span", { class: `chip ${KINDS[each.kind] ?? ""}`, text: each.kind }), " ", podLink(`${each.namespace}/${each.pod}`, each.time)), moment(each.time)),
    el("span", { text: each.text }), each.node ? el("span", { class: "dim", text: `${each.node}${each.cards.length ? `, ${plural(each.cards.length, "card")}` : ""}` }) : null);
}
