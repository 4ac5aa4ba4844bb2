// The selected runs side by side: their last values and their settings.

import { bytes, duration, el, figure, whole } from "/dom.js";
import { parallel } from "/parallel.js";

const RESULTS = [
  ["state", (run) => run.state],
  ["optimizer steps", (run) => whole(run.step)],
  ["time", (run) => duration(run.elapsed)],
  ["began", (run) => (run.began ? new Date(run.began * 1000).toLocaleString() : "")],
  ["trained elements", (run) => whole(run.parameters)],
];

const SHOW = { seconds: duration, memory: bytes };
const WHEN = { step: "last step", epoch: "last epoch", layers: "last snapshot" };

// A series as a row: its place in the table, what it is called, and how its values are written.
function described(id) {
  const [event, ...rest] = id.split(".");
  const name = rest.join(".");
  return { title: `${name}, ${WHEN[event]}`, show: SHOW[name] || figure };
}

export function compare(page) {
  const onlyDifferent = el("input", { type: "checkbox", onchange: () => update() });
  const inside = el("div", { class: "wide" });
  const lines = parallel(page);

  function part(heading, names, value, runs, title = (name) => name) {
    const rows = names
      .map((name) => ({ name, cells: runs.map((run) => value(run, name)) }))
      .map((row) => ({ ...row, differs: new Set(row.cells.map((cell) => cell.text)).size > 1 }))
      .filter((row) => row.differs || !onlyDifferent.checked);
    return el(
      "tbody",
      {},
      el("tr", {}, el("th", { colspan: runs.length + 1, scope: "rowgroup", class: "part" }, heading)),
      rows.map((row) =>
        el(
          "tr",
          { class: row.differs && runs.length > 1 ? "differs" : "" },
          el("th", { scope: "row" }, title(row.name)),
          row.cells.map((cell) => el("td", { "data-value": cell.value }, cell.text)),
        ),
      ),
    );
  }

  function update() {
    lines.update();
    const runs = page.selected();
    const all = (list) => [...new Set(runs.flatMap(list))];
    const latest = (run, name) => {
      const value = run.latest[name];
      return name in run.latest ? { text: described(name).show(value), value: String(value) } : { text: "", value: "" };
    };
    const order = (a, b) => Number(b.startsWith("epoch.")) - Number(a.startsWith("epoch.")) || a.localeCompare(b);
    inside.replaceChildren(
      el(
        "table",
        {},
        el("caption", {}, runs.length ? "Last values and settings" : "No run is selected."),
        el(
          "thead",
          {},
          el("tr", {}, el("th", { scope: "col" }, ""), runs.map((run) =>
            el("th", { scope: "col" }, el("i", { class: `dot ${page.style(run)}` }), run.name))),
        ),
        part("Run", RESULTS.map(([name]) => name), (run, name) => ({ text: RESULTS.find((row) => row[0] === name)[1](run) }), runs),
        part("Last values", all((run) => run.series).sort(order), latest, runs, (id) => described(id).title),
        part("Settings", all((run) => Object.keys(run.settings)), (run, name) => ({ text: run.settings[name] ?? "" }), runs),
      ),
    );
  }

  const node = el("div", {}, el("p", { class: "controls" }, el("label", {}, onlyDifferent, " only what differs")), lines.node, inside);
  return { node, update };
}
