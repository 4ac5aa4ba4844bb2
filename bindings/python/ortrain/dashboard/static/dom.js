// Elements of the page, and numbers as text.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node && typeof value === "boolean") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

export const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// A table: headings, and rows whose first cell is the heading of the row.
export function table(caption, headings, rows) {
  const row = (cells) =>
    el("tr", {}, cells.map((cell, index) => el(index ? "td" : "th", index ? {} : { scope: "row" }, cell)));
  return el(
    "table",
    {},
    el("caption", {}, caption),
    el("thead", {}, el("tr", {}, headings.map((heading) => el("th", { scope: "col" }, heading)))),
    el("tbody", {}, rows.map(row)),
  );
}

// A part that is made when it is opened, and made again when it is updated while open.
export function folded(title, make) {
  const inside = el("div", { class: "folded" });
  const node = el("details", {}, el("summary", {}, title), inside);
  node.update = () => {
    if (node.open) inside.replaceChildren(make());
  };
  node.addEventListener("toggle", node.update);
  return node;
}

// A number with five significant digits.
export function figure(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "not finite";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return String(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(4).replace(/\.?0+e/, "e").replace("e+", "e");
  return String(Number(value.toPrecision(5)));
}

export const whole = (value) => (value === null || value === undefined ? "" : value.toLocaleString("en-US"));

// A number with its noun, "1 row" or "2,000 rows"; the nouns of the pages form the plural with "s".
export const counted = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;

export function bytes(value) {
  if (value === null) return figure(value);
  const units = ["B", "kB", "MB", "GB", "TB"];
  let index = 0;
  while (Math.abs(value) >= 1000 && index < units.length - 1) {
    value /= 1000;
    index += 1;
  }
  return `${figure(Number(value.toPrecision(4)))} ${units[index]}`;
}

export function duration(seconds) {
  if (seconds === null) return figure(seconds);
  const sign = seconds < 0 ? "-" : "";
  seconds = Math.abs(seconds);
  if (seconds === 0) return "0 s";
  if (seconds < 1e-3) return `${sign}${figure(seconds * 1e6)} µs`;
  if (seconds < 1) return `${sign}${figure(seconds * 1e3)} ms`;
  if (seconds < 60) return `${sign}${figure(Number(seconds.toPrecision(4)))} s`;
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor((seconds % 3600) / 60)];
  const rest = String(Math.round(seconds % 60)).padStart(2, "0");
  return hours ? `${sign}${hours}:${String(minutes).padStart(2, "0")}:${rest} h` : `${sign}${minutes}:${rest} min`;
}

// A time that is not known better than to a unit.
export function rough(seconds) {
  const [count, unit] = seconds < 90 ? [seconds, "second"] : seconds < 5400 ? [seconds / 60, "minute"] : [seconds / 3600, "hour"];
  const whole = Math.max(1, Math.round(count));
  return `${whole} ${unit}${whole === 1 ? "" : "s"}`;
}
