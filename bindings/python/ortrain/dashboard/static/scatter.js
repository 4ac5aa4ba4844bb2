// Points in a plane.

import { counted, el, figure, folded, svg, table } from "/dom.js";
import { saver } from "/save.js";
import { extent, roundTicks, scale } from "/scale.js";

const [WIDTH, HEIGHT] = [440, 340];
const MARGIN = { top: 24, right: 12, bottom: 36, left: 62 };

// points: { x, y, label, style, strength }. headings: those of the table, for x, y and the label. diagonal: a line where x is y.
export function scatter(title, points, { across, up, headings, diagonal = false, names = [] }) {
  const both = diagonal ? extent(points.flatMap((point) => [point.x, point.y])) : null;
  const [left, right] = both || extent(points.map((point) => point.x));
  const [low, high] = both || extent(points.map((point) => point.y));
  const [x, y] = [scale(left, right, MARGIN.left, WIDTH - MARGIN.right), scale(low, high, HEIGHT - MARGIN.bottom, MARGIN.top)];
  const bottom = HEIGHT - MARGIN.bottom;
  const grid = [
    ...roundTicks(left, right, 5).map((tick) => [
      svg("line", { x1: x(tick), x2: x(tick), y1: MARGIN.top, y2: bottom }),
      svg("text", { x: x(tick), y: bottom + 14, "text-anchor": "middle" }, figure(tick)),
    ]),
    ...roundTicks(low, high, 5).map((tick) => [
      svg("line", { x1: MARGIN.left, x2: WIDTH - MARGIN.right, y1: y(tick), y2: y(tick) }),
      svg("text", { x: MARGIN.left - 6, y: y(tick) + 4, "text-anchor": "end" }, figure(tick)),
    ]),
  ];
  const drawing = svg(
    "svg",
    { class: "scatter", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}: ${counted(points.length, "point")}; they follow as a table` },
    svg("g", { class: "grid", "aria-hidden": "true" }, grid.flat()),
    diagonal ? svg("line", { class: "diagonal", x1: x(left), y1: y(left), x2: x(right), y2: y(right) }) : null,
    points.map((point) =>
      svg(
        "circle",
        { class: `point ${point.style || ""}`, cx: x(point.x), cy: y(point.y), r: 3.2, "fill-opacity": point.strength ?? 0.75 },
        svg("title", {}, point.label),
      ),
    ),
    svg("text", { x: (MARGIN.left + WIDTH) / 2, y: HEIGHT - 4, "text-anchor": "middle" }, across),
    svg("text", { x: 12, y: 13 }, up),
  );
  const rows = points.map((point) => [point.x, point.y, point.label]);
  const legend = el("ul", { class: "legend trains" }, names.map((name) => el("li", {}, el("i", { class: `dot ${name.style}` }), name.label)));
  return el(
    "section",
    { class: "chart", "aria-label": title },
    el("h3", {}, title),
    drawing,
    legend,
    folded("Data", () => table(title, headings, rows.map((row) => row.map(String)))),
    saver(title, () => drawing, () => [headings, ...rows], () => names),
  );
}
