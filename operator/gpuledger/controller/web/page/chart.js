// Bars by day, stacked, as SVG. It has a name for who does not see it; the tables beside it have the numbers.

import { hours } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 220;
const MARGIN = { left: 46, right: 8, top: 10, bottom: 24 };
const TICKS = 5;
const LABEL_PX = 58; // as wide as "Nov 30" with room

function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const dates = new Intl.DateTimeFormat("en", { month: "short", day: "numeric", timeZone: "UTC" });
export const dateOf = (day) => dates.format(new Date(`${day}T00:00:00Z`));

/** A round step of which a few reach the most. */
function stepFor(most) {
  const raw = (most || 1) / TICKS, power = 10 ** Math.floor(Math.log10(raw));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= raw);
}

/**
 * Draw `days`, [{ day, parts: [hours, ...], all }], each part in the colour of its place. Whoever rests on a bar is told
 * its numbers by name.
 */
export function barChart(days, names, colours, name, width) {
  const most = Math.max(...days.map(({ all }) => all), 0), step = stepFor(most);
  const top = Math.max(step, Math.ceil(most / step - 1e-9) * step);
  const inner = { width: Math.max(60, width - MARGIN.left - MARGIN.right), height: HEIGHT - MARGIN.top - MARGIN.bottom };
  const y = (value) => MARGIN.top + inner.height * (1 - value / top);
  const chart = svg("svg", { class: "chart", role: "img", "aria-label": name, width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}` });
  for (let value = 0; value <= top + step / 2; value += step) {
    const label = svg("text", { x: MARGIN.left - 6, y: y(value) + 4, "text-anchor": "end" });
    label.textContent = hours(value);
    chart.append(svg("line", { x1: MARGIN.left, x2: MARGIN.left + inner.width, y1: y(value), y2: y(value) }), label);
  }
  const band = inner.width / days.length, gap = band > 8 ? 3 : band > 3 ? 1 : 0;
  const every = Math.max(1, Math.ceil(LABEL_PX / band));
  days.forEach(({ day, parts, all }, place) => {
    const x = MARGIN.left + place * band;
    if ((days.length - 1 - place) % every === 0 && x + band / 2 > MARGIN.left + LABEL_PX / 3) { // so that the last day has one
      const label = svg("text", { x: Math.min(x + band / 2, width - LABEL_PX / 3), y: HEIGHT - 6, "text-anchor": "middle" });
      label.textContent = dateOf(day);
      chart.append(label);
    }
    if (all) chart.append(bar(parts, colours, x + gap / 2, Math.max(1, band - gap), y, `${dateOf(day)}: ${hours(all)} card hours`, names));
  });
  return chart;
}

function bar(parts, colours, x, width, y, text, names) {
  const told = svg("title");
  told.textContent = [text, ...parts.map((part, place) => part && `${names[place]}: ${hours(part)}`).filter(Boolean)].join("\n");
  const made = svg("g", {}, told);
  let below = 0;
  parts.forEach((part, place) => {
    if (!part) return;
    const rect = svg("rect", { x, width, y: y(below + part), height: Math.max(0.5, y(below) - y(below + part)) });
    rect.style.fill = colours[place];
    made.append(rect);
    below += part;
  });
  return made;
}
