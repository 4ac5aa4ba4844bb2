// Curves of the selected runs, one chart per value.

import { ask } from "/api.js";
import { Chart } from "/chart.js";
import { bytes, duration, el, figure } from "/dom.js";

const NAMES = {
  loss: "Loss",
  epsilon: "Epsilon of all private steps",
  clipped: "Share of rows whose gradient was clipped",
  learning_rate: "Learning rate",
  gradient_norm: "Norm of all gradients",
  parameter_norm: "Norm of all trained parameters",
  seconds: "Time of a step",
  memory: "Memory of the process",
};
const LAST = ["learning_rate", "gradient_norm", "parameter_norm", "seconds", "memory"];
const SHOW = { seconds: duration, memory: bytes };

// Which charts there are, in order, and which series each has of a run: by step where there are such values, else by epoch.
function chartsOf(runs) {
  const found = new Map();
  for (const run of runs) {
    for (const id of run.series) {
      const [event, ...rest] = id.split(".");
      const name = rest.join(".").replace(/^val_/, "");
      const validation = rest.join(".").startsWith("val_");
      const rank = validation ? 3 : { step: 0, layers: 1, epoch: 2 }[event];
      if (!found.has(name)) found.set(name, new Map());
      const byRun = found.get(name);
      if (!byRun.has(run.key)) byRun.set(run.key, {});
      const entry = byRun.get(run.key);
      if (validation) entry.validation = id;
      else if (entry.rank === undefined || rank < entry.rank) Object.assign(entry, { training: id, rank });
    }
  }
  const place = (name) => (name === "loss" ? -1 : LAST.indexOf(name) < 0 ? 0 : 1 + LAST.indexOf(name));
  return [...found].sort(([a], [b]) => place(a) - place(b) || a.localeCompare(b));
}

export function curves(page) {
  const charts = new Map();
  const grid = el("div", { class: "charts" });
  const smoothing = el("input", {
    type: "range", min: 0, max: 0.98, step: 0.02, value: page.setting("smooth") || 0.6,
    oninput: () => change("smooth", smoothing.value),
  });
  const shown = el("span", {}, smoothing.value);
  const logarithmic = el("input", {
    type: "checkbox", checked: page.setting("log") === "1",
    onchange: () => change("log", logarithmic.checked ? "1" : null),
  });
  const axis = el(
    "select",
    { onchange: () => { range = null; change("x", axis.value); } },
    el("option", { value: "step" }, "step"),
    el("option", { value: "elapsed" }, "time"),
  );
  axis.value = page.setting("x") === "elapsed" ? "elapsed" : "step";
  const whole = el("button", { type: "button", disabled: true, onclick: () => zoom(null) }, "Show everything");
  let range = null;
  let asked = 0;

  function change(name, value) {
    page.setting(name, value);
    shown.textContent = smoothing.value;
    page.refresh();
  }

  function zoom(to) {
    range = to;
    whole.disabled = !to;
    page.refresh();
  }

  async function update() {
    asked += 1;
    const question = asked;
    const runs = page.selected();
    const options = { axis: axis.value, logarithmic: logarithmic.checked, range };
    const query = { x: axis.value, points: 800, smooth: smoothing.value, from: range?.[0], to: range?.[1] };
    const answers = await Promise.all(runs.map((run) => ask("series", { ...query, run: run.key })));
    if (question !== asked) return; // a later question has been asked
    const series = new Map(runs.map((run, index) => [run.key, answers[index].series]));
    const wanted = chartsOf(runs);
    for (const [name, byRun] of wanted) {
      if (!charts.has(name)) charts.set(name, new Chart(NAMES[name] || name, { show: SHOW[name] || figure, zoom }));
      const lines = [];
      for (const run of runs) {
        const entry = byRun.get(run.key) || {};
        for (const kind of ["training", "validation"]) {
          const curve = series.get(run.key)?.[entry[kind]];
          if (!curve) continue;
          const several = Boolean(entry.training && entry.validation);
          const label = [runs.length > 1 ? run.name : "", several || runs.length === 1 ? kind : ""].filter(Boolean).join(", ");
          const steady = !entry[kind].startsWith("step.") || name === "learning_rate";
          lines.push({
            ...curve,
            smooth: steady ? null : curve.smooth,
            label: label || run.name,
            style: page.style(run),
            dashed: kind === "validation",
            marks: !entry[kind].startsWith("step."),
          });
        }
      }
      charts.get(name).update(lines, options);
    }
    const nodes = wanted.map(([name]) => charts.get(name).node);
    if (nodes.length !== grid.children.length || nodes.some((node, index) => grid.children[index] !== node)) grid.replaceChildren(...nodes);
    empty.textContent = runs.length ? "No values yet." : "No run is selected.";
    empty.hidden = nodes.length > 0;
  }

  const empty = el("p", { hidden: true });
  const node = el(
    "div",
    {},
    el(
      "form",
      { class: "controls", onsubmit: (event) => event.preventDefault() },
      el("label", {}, "Smoothing ", smoothing, shown),
      el("label", {}, logarithmic, " logarithmic"),
      el("label", {}, "Against ", axis),
      whole,
    ),
    empty,
    grid,
  );
  return { node, update };
}
