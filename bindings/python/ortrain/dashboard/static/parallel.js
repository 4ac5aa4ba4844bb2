// Settings of runs against a result: an axis for each setting that differs, and a line for each run.

import { counted, el, figure, svg } from "/dom.js";
import { saver } from "/save.js";
import { extent, roundTicks, scale } from "/scale.js";

const HEIGHT = 260;
const MARGIN = { top: 26, right: 90, bottom: 12, left: 60 };
const BETWEEN = 150; // pixels from one axis to the next
const NOT_CHOSEN = new Set(["artifacts", "callbacks", "metrics"]); // settings that do not say how to train

// Settings that differ between the runs.
function differing(runs) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))].filter((name) => !NOT_CHOSEN.has(name));
  return names.filter((name) => new Set(runs.map((run) => run.settings[name] ?? "")).size > 1);
}

// An axis of numbers, logarithmic if they differ by a factor of 30 or more, else one of names.
function axisOf(title, values) {
  const numbers = values.map((value) => (value === "" || value === null ? NaN : Number(value)));
  const [top, bottom] = [MARGIN.top, HEIGHT - MARGIN.bottom];
  if (numbers.every((value) => Number.isFinite(value))) {
    const [least, most] = [Math.min(...numbers), Math.max(...numbers)];
    const logarithmic = least > 0 && most / least >= 30;
    const [low, high] = extent(numbers, logarithmic);
    const at = scale(low, high, bottom, top, logarithmic);
    const few = [...new Set(numbers)];
    const ticks = few.length <= 6 ? few : roundTicks(low, high, 5);
    return { title, place: (index) => at(numbers[index]), ticks: ticks.map((tick) => [at(tick), figure(tick)]) };
  }
  const names = [...new Set(values.map(String))].sort();
  const at = scale(0, Math.max(1, names.length - 1), bottom - 12, top + 12);
  return {
    title,
    place: (index) => at(names.indexOf(String(values[index]))),
    ticks: names.map((name, index) => [at(index), name.slice(0, 14) || "not set"]),
  };
}

export function parallel(page) {
  const choice = el("select", { onchange: () => { drawn = ""; update(); } });
  const inside = el("div", { class: "wide" });
  const node = el(
    "section",
    { class: "chart", "aria-label": "Settings against results" },
    el("h3", {}, "Settings against results"),
    el("p", { class: "controls" }, el("label", {}, "Result ", choice)),
    inside,
  );
  let drawn = "";

  function results(runs) {
    const names = [...new Set(runs.flatMap((run) => Object.keys(run.latest)))].filter((name) => name.startsWith("epoch."));
    const order = (name) => (name === "epoch.val_loss" ? 0 : name.startsWith("epoch.val_") ? 1 : 2);
    return names.sort((a, b) => order(a) - order(b) || a.localeCompare(b));
  }

  function update() {
    const known = results(page.selected());
    if (choice.childElementCount !== known.length || [...choice.options].some((option, index) => option.value !== known[index])) {
      const before = choice.value;
      choice.replaceChildren(...known.map((name) => el("option", { value: name }, name.slice("epoch.".length))));
      if (known.includes(before)) choice.value = before;
    }
    const result = choice.value;
    const runs = page.selected().filter((run) => Number.isFinite(run.latest[result]));
    const settings = differing(runs);
    node.hidden = runs.length < 2 || !settings.length;
    const seen = JSON.stringify([result, settings, runs.map((run) => [run.key, run.name, run.latest[result]])]);
    if (node.hidden || seen === drawn) return;
    drawn = seen;
    const columns = [...settings.map((name) => [name, runs.map((run) => run.settings[name] ?? "")]), [result.slice("epoch.".length), runs.map((run) => run.latest[result])]];
    const axes = columns.map(([name, values]) => axisOf(name, values));
    const drawing = picture(axes, runs);
    const rows = () => [["run", ...columns.map(([name]) => name)], ...runs.map((run, index) => [run.name, ...columns.map(([, values]) => values[index])])];
    const legend = () => runs.map((run) => ({ label: run.name, style: page.style(run) }));
    inside.replaceChildren(drawing, saver("Settings against results", () => drawing, rows, legend));
  }

  function picture(axes, runs) {
    const width = MARGIN.left + MARGIN.right + BETWEEN * (axes.length - 1);
    const across = (index) => MARGIN.left + BETWEEN * index;
    const lines = runs.map((run, row) =>
      svg(
        "path",
        { class: `curve ${page.style(run)}`, "data-run": run.name, d: `M${axes.map((axis, index) => `${across(index)} ${axis.place(row).toFixed(1)}`).join("L")}` },
        svg("title", {}, run.name),
      ));
    const drawn = axes.map((axis, index) => [
      svg("line", { x1: across(index), x2: across(index), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }),
      svg("text", { class: "title", x: across(index), y: 14, "text-anchor": "middle" }, axis.title),
      axis.ticks.map(([y, text]) => svg("text", { x: across(index) + 5, y: y + 4 }, text)),
    ]);
    const said = `A line for each of ${counted(runs.length, "run")} over ${axes.map((axis) => axis.title).join(", ")}; the table below has the values`;
    return svg("svg", { class: "parallel", width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": said },
      svg("g", { class: "grid axes" }, drawn.flat(2)), lines);
  }

  return { node, update };
}
