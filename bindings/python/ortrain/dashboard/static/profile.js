// Where the time of a step goes, by operator.

import { ask } from "/api.js";
import { bytes, counted, el, figure, svg } from "/dom.js";

function rowsOf(rows, title) {
  const busy = rows.reduce((sum, row) => sum + row.milliseconds, 0);
  const most = Math.max(...rows.map((row) => row.milliseconds), 1e-12);
  return el(
    "table",
    { class: "bars" },
    el("caption", {}, title),
    el("thead", {}, el("tr", {}, ["", "calls per step", "ms per step", "share", ""].map((text, index) => el("th", { scope: "col" }, index ? text : "kernel")))),
    el(
      "tbody",
      {},
      rows.map((row) =>
        el(
          "tr",
          {},
          el("th", { scope: "row" }, row.name),
          el("td", {}, row.calls === null ? "" : figure(row.calls)),
          el("td", { "data-value": String(row.milliseconds) }, figure(row.milliseconds)),
          el("td", {}, `${busy ? ((row.milliseconds / busy) * 100).toFixed(1) : 0} %`),
          el("td", { class: "bar" }, svg("svg", { width: 160, height: 12, "aria-hidden": "true" },
            svg("rect", { width: (row.milliseconds / most) * 160, height: 12 }))),
        ),
      ),
    ),
  );
}

export function profile(page) {
  const picker = page.picker();
  const inside = el("div", { class: "wide" });
  let drawn = "";

  async function update() {
    picker.fill();
    const run = page.focused();
    const key = `${run.key} ${run.details.profile}`;
    if (key === drawn) return;
    const found = await ask("profile", { run: run.key });
    drawn = key;
    if (!found.operators.length) {
      inside.replaceChildren(el("p", {}, "The log of this run has no profile: it has taken fewer than 4 optimizer steps, or profile=0."));
      return;
    }
    const facts = [`mean of ${counted(found.steps, "step")} up to step ${found.step}`, `${figure(found.milliseconds)} ms from the first kernel of a step to the last`];
    if (found.arena_bytes) facts.push(`intermediate values take ${bytes(found.arena_bytes)}, of which ${bytes(found.live_bytes)} are in use at the same time`);
    inside.replaceChildren(
      el("p", {}, `${facts.join("; ")}.`),
      rowsOf(found.operators, "By operator"),
      found.nodes.length ? rowsOf(found.nodes, "The slowest nodes") : "",
    );
  }

  return { node: el("div", {}, el("div", { class: "controls" }, picker.node), inside), update };
}
