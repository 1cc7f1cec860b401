// The data: the whole cluster once, then changes as they come; and what is asked for single pods.

const LONGEST_PAUSE_S = 30;
const SILENCE_S = 40; // the server says something every 15 s

export class Refused extends Error {
  constructor(status, message) { super(message); this.status = status; }
}

/** Follows the cluster. Calls: cluster(message), change(message), state(kind, text), token(text) -> Promise of a token. */
export class Feed {
  constructor(calls) {
    this.calls = calls;
    this.token = null; // in memory alone
    this.edition = null;
    this.heard = 0; // when the server was heard last, ms
    this.attempt = 0;
    this.wake = null;
  }

  async get(path) {
    const answer = await this.request(path);
    return answer.json();
  }

  /** Ask until the token is one that is accepted. Throws Refused for every other no. */
  async request(path, signal) {
    for (;;) {
      const headers = this.token ? { Authorization: `Bearer ${this.token}` } : {};
      const answer = await fetch(path, { headers, signal, cache: "no-store", credentials: "omit", redirect: "error" });
      if (answer.ok) return answer;
      const text = await answer.json().then((body) => body.error, () => answer.statusText);
      if (answer.status !== 401 && !(answer.status === 403 && this.token)) throw new Refused(answer.status, text);
      this.token = await this.calls.token(this.token ? text : null);
    }
  }

  async run() {
    for (;;) {
      try {
        if (this.edition === null) {
          this.calls.state("wait", "Connecting");
          const cluster = await this.get("v1/cluster");
          this.edition = cluster.edition;
          this.heard = Date.now();
          this.calls.cluster(cluster);
        }
        await this.follow();
        throw new Error("the connection was closed");
      } catch (error) {
        await this.pause(error);
      }
    }
  }

  async follow() {
    const stop = new AbortController();
    const watchdog = setInterval(() => { if (Date.now() - this.heard > SILENCE_S * 1000) stop.abort(); }, 1000);
    try {
      this.heard = Date.now();
      const answer = await this.request(`v1/changes?since=${this.edition}`, stop.signal);
      for await (const message of this.messages(answer.body)) {
        this.attempt = 0;
        this.edition = message.edition;
        this.calls.change(message);
        this.calls.state("live", "Live");
      }
    } finally {
      clearInterval(watchdog);
      stop.abort();
    }
  }

  /** Yield what a text/event-stream says. A large message comes in many pieces: none is searched twice. */
  async *messages(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "", searched = 0;
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      this.heard = Date.now();
      text += value;
      for (let end; (end = text.indexOf("\n\n", searched)) >= 0; searched = 0) {
        const data = text.slice(0, end).split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6));
        text = text.slice(end + 2);
        if (data.length) yield JSON.parse(data.join("\n"));
      }
      searched = Math.max(0, text.length - 1);
    }
  }

  async pause(error) {
    const most = Math.min(LONGEST_PAUSE_S, 2 ** this.attempt);
    this.attempt += 1;
    const until = Date.now() + 1000 * most * (0.75 + 0.25 * Math.random());
    const why = error instanceof Refused ? `: ${error.message}` : "";
    const tell = () => this.calls.state("lost", `Disconnected${why}; retrying in ${Math.max(1, Math.ceil((until - Date.now()) / 1000))} s`);
    tell();
    const ticking = setInterval(tell, 1000);
    await new Promise((resolve) => { this.wake = resolve; setTimeout(resolve, until - Date.now()); });
    clearInterval(ticking);
    this.wake = null;
    this.calls.state("wait", "Reconnecting");
  }

  retryNow() { this.wake?.(); }
}
