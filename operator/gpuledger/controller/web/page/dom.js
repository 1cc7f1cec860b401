// Elements and words. Text only ever gets into the page as text: there is no innerHTML anywhere.

/** Make an element. `properties`: class, text, on (event -> handler), anything else is an attribute; null leaves it out. */
export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") made.className = value;
    else if (name === "text") made.textContent = value;
    else if (name === "on") for (const [event, handler] of Object.entries(value)) made.addEventListener(event, handler);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false && child !== ""));
  return made;
}

export const byId = (id) => document.getElementById(id);

/** Set a text only if it differs: a live region would read it again. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Replace what is in a panel, and put the focus back on the element with the same data-key. */
export function refill(panel, ...children) {
  const key = panel.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  const top = panel.scrollTop;
  panel.replaceChildren(...children.flat(Infinity).filter(Boolean));
  panel.scrollTop = top;
  if (key !== undefined) panel.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

const numbers = new Intl.NumberFormat("en");
export const number = (value) => numbers.format(value);
export const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;
/** Hours, with fewer digits the more they are: 0.25, 12.5, 1,234. */
export const hours = (value) => value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 2 : value < 100 ? 1 : 0 });
export const mib = (value) => `${number(value)} MiB`;
export const share = (part, whole) => (whole > 0 ? part / whole : 0);
export const percent = (part, whole) => `${Math.round(100 * share(part, whole))} %`;

/** Large amounts in the largest unit that leaves the whole above 1: "1.2 of 7.8 TiB". */
export function memoryOf(used, capacity) {
  const units = ["MiB", "GiB", "TiB", "PiB"];
  let factor = 1, unit = 0;
  while (capacity / factor >= 1024 && unit < units.length - 1) { factor *= 1024; unit += 1; }
  const digits = (value) => (value / factor).toLocaleString("en", { maximumFractionDigits: unit ? 1 : 0 });
  return `${digits(used)} of ${digits(capacity)} ${units[unit]}`;
}

/** Seconds in words: "5 s", "3 min", "2 h", "4 d". */
export function duration(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h`;
  return `${Math.floor(whole / 86400)} d`;
}

export const secondsSince = (time) => (Date.now() - Date.parse(time)) / 1000;

/** A moment, as `<time>`, in the reader's own time zone. */
export function moment(time) {
  const when = new Date(time);
  const today = when.toDateString() === new Date().toDateString();
  return el("time", { datetime: time, title: when.toLocaleString(), text: today ? when.toLocaleTimeString() : when.toLocaleString() });
}
