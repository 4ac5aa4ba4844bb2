// Rows of the validation that the model gets wrong, and pictures of all its rows.

import { ask } from "/api.js";
import { counted, el, figure, svg, whole } from "/dom.js";
import * as outcomes from "/outcomes.js";

function image(sample) {
  const [channels, height, width] = sample.shape;
  const bytes = Uint8Array.from(atob(sample.pixels), (letter) => letter.charCodeAt(0));
  const canvas = el("canvas", { width, height, role: "img", "aria-label": `image of ${width} by ${height} pixels` });
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(width, height);
  for (let pixel = 0; pixel < width * height; pixel += 1) {
    for (let color = 0; color < 3; color += 1) {
      pixels.data[4 * pixel + color] = bytes[(channels === 3 ? color * width * height : 0) + pixel];
    }
    pixels.data[4 * pixel + 3] = 255;
  }
  context.putImageData(pixels, 0, 0);
  return canvas;
}

function values(sample) {
  const known = sample.values.map((value) => value ?? 0);
  const most = Math.max(...known.map(Math.abs), 1e-30);
  const bars = known.map((value, index) => {
    const height = (Math.abs(value) / most) * 38;
    return svg("rect", { x: (index * 120) / known.length, y: value < 0 ? 40 : 40 - height, width: Math.max(0.5, 110 / known.length), height });
  });
  return el(
    "div",
    {},
    svg("svg", { class: "values", viewBox: "0 0 120 80", role: "img", "aria-label": `${counted(known.length, "value")}; they follow as text` }, bars),
    el("details", {}, el("summary", {}, "Values"), el("p", { class: "numbers" }, sample.values.map((value) => figure(value)).join(" "))),
  );
}

// Tokens as text.
function words(sample) {
  return el("p", { class: "tokens" }, sample.tokens.map((token) => el("span", {}, token)));
}

function row(sample, read, expected, more) {
  return el(
    "figure",
    { class: sample.tokens ? "text" : "" },
    sample.tokens ? words(sample) : sample.pixels ? image(sample) : values(sample),
    el(
      "figcaption",
      {},
      el("span", {}, ...read),
      el("span", {}, "is ", el("strong", { class: "true" }, expected)),
      el("small", {}, `row ${sample.row}${more}`),
    ),
  );
}

// How often each class was read, as a table; the darker a cell, the larger its share of the row.
function confusion(counts, name) {
  const cell = (count, row, column) => {
    const share = count / Math.max(1, counts[row].reduce((sum, each) => sum + each, 0));
    return el("td", { class: `${row === column ? "right" : "mistaken"} share${Math.ceil(5 * share)}` }, whole(count));
  };
  const table = el(
    "table",
    {},
    el("caption", {}, "True classes (rows) and predicted classes (columns)"),
    el("thead", {}, el("tr", {}, el("td", {}), counts.map((_, index) => el("th", { scope: "col" }, name(index))))),
    el("tbody", {}, counts.map((row, index) => el("tr", {}, el("th", { scope: "row" }, name(index)), row.map((count, column) => cell(count, index, column))))),
  );
  return el("div", { class: "wide matrix", tabindex: 0, role: "region", "aria-label": "Confusion matrix" }, table);
}

export function misread(page) {
  const picker = page.picker();
  const inside = el("div", {});
  const said = el("p", { "aria-live": "polite" });
  const slider = el("input", { type: "range", min: 0, max: 0, value: 0, oninput: () => {
    follows = slider.value === slider.max;
    page.refresh();
  } });
  const epoch = el("span", {});
  const choice = el("label", {}, "Validation after epoch ", slider, epoch);
  let [drawn, follows] = ["", true];

  async function update() {
    picker.fill();
    const run = page.focused();
    const last = run.details.validations - 1;
    slider.max = Math.max(0, last);
    if (follows) slider.value = slider.max;
    choice.hidden = last < 0;
    const key = `${run.key} ${slider.value} ${last < 0}`;
    if (key === drawn) return;
    drawn = key;
    const found = await ask("samples", { run: run.key, index: last < 0 ? null : slider.value });
    if (key !== drawn) return;
    if (found.index === null) {
      inside.replaceChildren();
      said.textContent = "The log of this run has no misread rows. They are kept of validations: fit(..., validation=...), ortrain train --validation.";
      return;
    }
    epoch.textContent = String(found.validations[found.index].epoch + 1);
    const name = (number) => found.classes[number] ?? String(number);
    const numbers = found.regression;
    const order = found.samples.length ? "; the most certain mistakes come first" : "";
    said.textContent = numbers ? outcomes.said(numbers) : found.rows === null ? "" : `${whole(found.wrong)} of ${counted(found.rows, "row")} ${found.wrong === 1 ? "is" : "are"} misread${order}.`;
    const maps = Object.entries(found.projection || {}).map(([kind, part]) => outcomes.map(kind, part, Boolean(numbers), name));
    inside.replaceChildren(
      ...(found.confusion ? [confusion(found.confusion, name)] : []),
      ...(numbers ? [el("div", { class: "charts" }, outcomes.predicted(numbers))] : []),
      el("div", { class: "samples" }, found.samples.map((sample) =>
        row(sample, ["read as ", el("strong", { class: "read" }, name(sample.predicted))], name(sample.expected), `, by ${figure(sample.margin)}`))),
      el("div", { class: "samples" }, (numbers?.samples || []).map((sample) =>
        row(sample, ["predicted ", el("strong", { class: "read" }, figure(sample.predicted))], figure(sample.expected), ""))),
      ...(maps.length ? [el("div", { class: "charts" }, maps)] : []),
    );
  }

  return { node: el("div", {}, el("div", { class: "controls" }, picker.node, choice), said, inside), update };
}
