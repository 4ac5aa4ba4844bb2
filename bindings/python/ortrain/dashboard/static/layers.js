// Norms and histograms of each trained parameter and its gradient.

import { ask } from "/api.js";
import { Chart } from "/chart.js";
import { counted, el, figure, folded, svg, table, whole } from "/dom.js";
import { roundTicks, scale } from "/scale.js";

const KINDS = { parameter: "Parameter", gradient: "Gradient" };
const [WIDTH, HEIGHT, RISE, SIDE] = [460, 300, 110, 46];

// Histograms behind each other, the newest in front.
function ridges(title, kind, snapshots) {
  const shown = snapshots.filter((snapshot) => snapshot[kind]?.counts.length && snapshot[kind].min !== null);
  if (!shown.length) return el("p", {}, `${title}: no histograms`);
  const low = Math.min(...shown.map((snapshot) => snapshot[kind].min));
  const high = Math.max(...shown.map((snapshot) => snapshot[kind].max));
  const x = scale(low, high, 8, WIDTH - SIDE);
  const bottom = HEIGHT - 22;
  const densities = shown.map((snapshot) => {
    const { min, max, counts } = snapshot[kind];
    const total = counts.reduce((sum, count) => sum + count, 0) || 1;
    const width = (max - min) / counts.length || (high - low) / counts.length || 1;
    const points = max > min ? counts.map((count, index) => [min + (index + 0.5) * width, count / total / width]) : [[min, 1 / width]];
    return [[points[0][0] - width / 2, 0], ...points, [points.at(-1)[0] + width / 2, 0]];
  });
  const most = Math.max(...densities.flat().map(([, density]) => density)) || 1;
  const room = bottom - RISE;
  const paths = densities.flatMap((points, index) => {
    const base = bottom - (shown.length > 1 ? room * (1 - index / (shown.length - 1)) : 0);
    const line = points.map(([value, density]) => `${x(value).toFixed(1)} ${(base - (density / most) * RISE * 0.9).toFixed(1)}`);
    const label = shown.length < 12 || index % Math.ceil(shown.length / 10) === 0 || index === shown.length - 1;
    return [
      svg("path", { class: "ridge", d: `M${line.join("L")}Z`, "fill-opacity": 0.25 + (0.6 * index) / shown.length }),
      label ? svg("text", { x: WIDTH - SIDE + 6, y: base + 4 }, whole(shown[index].step)) : null,
    ];
  });
  const ticks = roundTicks(low, high, 5).map((tick) => svg("text", { x: x(tick), y: HEIGHT - 6, "text-anchor": "middle" }, figure(tick)));
  return el(
    "figure",
    { class: "ridges" },
    el("figcaption", {}, `${title}: values, by step (newest in front)`),
    svg(
      "svg",
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}: ${shown.length} histograms from step ${shown[0].step} to ${shown.at(-1).step}; their data follow as a table` },
      paths,
      svg("g", { class: "grid", "aria-hidden": "true" }, ticks),
    ),
    folded("Data", () =>
      table(
        `${title}: histograms`,
        ["step", "min", "max", "not finite", "elements in bins of equal width from min to max"],
        shown.map((snapshot) => {
          const { min, max, counts, not_finite } = snapshot[kind];
          return [String(snapshot.step), String(min), String(max), String(not_finite), counts.join(" ")];
        }),
      ),
    ),
  );
}

function normCurve(kind, snapshots, style) {
  const known = snapshots.filter((snapshot) => snapshot[kind] && snapshot[kind].norm !== null);
  const x = known.map((snapshot) => snapshot.step);
  return { label: "norm", style, marks: true, x, step: x, y: known.map((snapshot) => snapshot[kind].norm), total: x.length };
}

export function layers(page) {
  const picker = page.picker();
  const filter = el("input", { type: "search", oninput: () => showList() });
  const list = el("div", { class: "list" });
  const detail = el("div", { class: "detail" });
  const charts = Object.fromEntries(Object.entries(KINDS).map(([kind, title]) => [kind, new Chart(`${title}: norm`)]));
  let found = [];
  let name = page.setting("layer");
  let [drawn, listed] = ["", ""];

  function showList() {
    const words = filter.value.toLowerCase();
    const rows = found.filter((row) => row.name.toLowerCase().includes(words));
    const value = (summary) => (summary?.norm === null || !summary ? "" : figure(summary.norm));
    const body = rows.slice(0, 500).map((row) =>
      el(
        "tr",
        { class: row.name === name ? "current" : "" },
        el("th", { scope: "row" }, el("button", {
          type: "button", "aria-pressed": String(row.name === name),
          onclick: () => {
            name = page.setting("layer", row.name);
            page.refresh();
          },
        }, row.name)),
        el("td", { "data-value": String(row.parameter?.norm ?? "") }, value(row.parameter)),
        el("td", { "data-value": String(row.gradient?.norm ?? "") }, value(row.gradient)),
      ),
    );
    const focused = list.contains(document.activeElement) ? document.activeElement.textContent : null;
    list.replaceChildren(
      el("table", {}, el("caption", {}, `${rows.length} of ${counted(found.length, "parameter")}`),
        el("thead", {}, el("tr", {}, ["parameter", "norm", "norm of gradient"].map((text) => el("th", { scope: "col" }, text)))),
        el("tbody", {}, body)),
    );
    if (focused) [...list.querySelectorAll("button")].find((button) => button.textContent === focused)?.focus();
  }

  async function update() {
    picker.fill();
    const run = page.focused();
    const key = `${run.key} ${run.details.layers}`;
    if (key !== listed) {
      found = (await ask("layers", { run: run.key })).layers;
      if (!found.some((row) => row.name === name)) name = found[0]?.name ?? null;
      listed = key;
      drawn = "";
    }
    if (!found.length) {
      list.replaceChildren();
      detail.replaceChildren(el("p", {}, "The log of this run has no norms and histograms. JSONLogger writes them unless layers=0."));
      return;
    }
    if (drawn === `${key} ${name}`) return;
    drawn = `${key} ${name}`;
    showList();
    const { snapshots } = await ask("layer", { run: run.key, name });
    if (drawn !== `${key} ${name}`) return;
    detail.replaceChildren(
      el("h3", {}, name),
      ...Object.entries(KINDS).map(([kind, title]) =>
        el("div", { class: "pair" }, charts[kind].node, ridges(title, kind, snapshots)),
      ),
    );
    for (const kind of Object.keys(KINDS)) charts[kind].update([normCurve(kind, snapshots, page.style(run))], {});
  }

  const controls = el("div", { class: "controls" }, picker.node, el("label", {}, "Filter ", filter));
  return { node: el("div", {}, controls, el("div", { class: "split" }, list, detail)), update };
}
