// What a validation found besides misread rows: predicted numbers against actual ones, and a map of the rows.

import { counted, figure } from "/dom.js";
import { scatter } from "/scatter.js";

const COLOURS = 8;
const MOST_NAMES = 20;

export function predicted(regression) {
  const points = regression.points.map(([expected, found, row]) => ({
    x: expected,
    y: found,
    label: `row ${row}: predicted ${figure(found)}, is ${figure(expected)}`,
  }));
  return scatter("Predicted against actual", points, {
    across: "actual", up: "predicted", headings: ["actual", "predicted", "row"], diagonal: true,
  });
}

// Rows on their two principal components, by class or, for numbers, the stronger the larger.
export function map(kind, part, isNumber, name) {
  const labels = [...new Set(part.points.map((point) => point[2]))].sort((a, b) => a - b);
  const strength = new Map(labels.map((label, index) => [label, 0.15 + (0.85 * (index + 1)) / labels.length]));
  const style = (label) => (isNumber ? "c0" : `c${((label % COLOURS) + COLOURS) % COLOURS}`);
  const shown = (label) => (isNumber ? figure(label) : name(label));
  const points = part.points.map(([x, y, label, row]) => ({
    x, y, style: style(label), strength: isNumber ? strength.get(label) : 0.75, label: `row ${row}: ${shown(label)}`,
  }));
  const share = (index) => (part.variance[index] === undefined ? "" : `, ${Math.round(100 * part.variance[index])} % of the variance`);
  const title = kind === "inputs" ? "Map of what the model takes" : "Map of what the model returns";
  return scatter(title, points, {
    across: `first component${share(0)}`,
    up: `second component${share(1)}`,
    headings: ["first component", "second component", "row"],
    names: isNumber ? [] : labels.slice(0, MOST_NAMES).map((label) => ({ label: shown(label), style: style(label) })),
  });
}

export const said = (regression) =>
  `The root of the mean squared error of ${counted(regression.rows, "row")} is ${figure(regression.error)}. ` +
  "The rows with the largest errors follow, the largest first.";
