// Pictures saved as files: SVG with its colors, which programs other than this page can open, and CSV.

import { el, svg } from "/dom.js";

const STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-family"];
const ROW = 16;

// The drawing as an SVG file: what style sheets say of it is written into its elements; title and legend are drawn around it.
export function asFile(drawing, title, legend) {
  const [, , width, height] = drawing.getAttribute("viewBox").split(" ").map(Number);
  const copy = drawing.cloneNode(true);
  const [given, copied] = [drawing.querySelectorAll("*"), copy.querySelectorAll("*")];
  given.forEach((node, index) => {
    const found = getComputedStyle(node);
    for (const name of STYLES) copied[index].setAttribute(name, found.getPropertyValue(name));
    copied[index].removeAttribute("class");
    copied[index].removeAttribute("tabindex");
  });
  const ink = getComputedStyle(document.body);
  const text = { fill: ink.color, "font-family": "sans-serif", "font-size": "12px" };
  const names = legend.map((entry, index) => {
    const y = 22 + height + ROW * (index + 1);
    const line = { stroke: colour(entry.style), "stroke-width": 2, "stroke-dasharray": entry.dashed ? "6 4" : "none" };
    return [svg("path", { d: `M10 ${y - 4}H32`, ...line }), svg("text", { ...text, x: 40, y }, entry.label)];
  });
  const whole = 30 + height + ROW * legend.length;
  return svg(
    "svg",
    { xmlns: "http://www.w3.org/2000/svg", width, height: whole, viewBox: `0 0 ${width} ${whole}` },
    svg("rect", { width, height: whole, fill: ink.backgroundColor }),
    svg("text", { ...text, x: 10, y: 15, "font-weight": "bold" }, title),
    svg("g", { transform: "translate(0 22)" }, ...copy.childNodes),
    names.flat(),
  );
}

function colour(style) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${style || "accent"}`);
}

function cell(value) {
  const text = value === null || value === undefined ? "" : String(value);
  // A spreadsheet would take a text that begins like a formula for one.
  const plain = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
}

export const asRows = (rows) => rows.map((row) => `${row.map(cell).join(",")}\r\n`).join("");

function download(name, kind, content) {
  const url = URL.createObjectURL(new Blob([content], { type: kind }));
  const link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

// Two buttons below a picture. rows: returns the rows of the table, the first of which are its headings.
export function saver(title, drawing, rows, legend = () => []) {
  const file = title.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "") || "chart";
  const button = (kind, make) =>
    el("button", { type: "button", "aria-label": `Save ${title} as ${kind}`, onclick: make }, kind);
  return el(
    "span",
    { class: "saver" },
    button("SVG", () => download(`${file}.svg`, "image/svg+xml", new XMLSerializer().serializeToString(asFile(drawing(), title, legend())))),
    button("CSV", () => download(`${file}.csv`, "text/csv", asRows(rows()))),
  );
}
