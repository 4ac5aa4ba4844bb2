// A chart of curves: axes, legend with the values at the cursor, zoom by mouse and keyboard, and the data as a table.

import { duration, el, figure, folded, svg, table, whole } from "/dom.js";
import { saver } from "/save.js";
import { extent, logTicks, nearest, roundTicks, scale, timeTicks } from "/scale.js";

const HEIGHT = 220;
const MARGIN = { top: 8, right: 12, bottom: 34, left: 62 };
const ROWS = 200; // of the table
let charts = 0;

export class Chart {
  // show: how a value is written. zoom: called with the part of the x axis to show, null for all of it.
  constructor(title, { show = figure, zoom = () => {} } = {}) {
    charts += 1;
    this.title = title;
    this.show = show;
    this.zoom = zoom;
    this.curves = [];
    this.options = { axis: "step", logarithmic: false, range: null };
    this.cursor = null;
    this.clip = `clip${charts}`;
    this.drawing = svg("svg", {
      class: "plot",
      height: HEIGHT,
      tabindex: 0,
      role: "img",
      "aria-label": `${title}. Arrow keys move the cursor, plus and minus zoom, Escape shows everything.`,
      onpointermove: (event) => this.point(event),
      onpointerleave: () => this.setCursor(null),
      onpointerdown: (event) => this.beginDrag(event),
      onpointerup: (event) => this.endDrag(event),
      ondblclick: () => this.zoom(null),
      onkeydown: (event) => this.key(event),
      onblur: () => this.setCursor(null),
    });
    this.legend = el("ul", { class: "legend" });
    this.spoken = el("p", { class: "spoken", "aria-live": "polite" });
    this.note = el("p", { class: "note" });
    this.data = folded("Data", () => this.asTable());
    this.node = el(
      "section",
      { class: "chart", "aria-label": title },
      el("h3", {}, title),
      this.drawing,
      this.legend,
      this.note,
      this.spoken,
      this.data,
      saver(title, () => this.drawing, () => this.asRows(), () => this.curves),
    );
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  // Each curve: { label, style, dashed, marks, x, step, y, smooth, not_finite, total }.
  update(curves, options) {
    this.curves = curves;
    this.options = { ...this.options, ...options };
    const lost = curves.reduce((sum, curve) => sum + (curve.not_finite || 0), 0);
    this.note.textContent = lost ? `${lost} ${lost === 1 ? "value is" : "values are"} not finite and not drawn` : "";
    this.draw();
    this.data.update();
  }

  shownX(value) {
    return this.options.axis === "elapsed" ? duration(value) : `step ${whole(Math.round(value))}`;
  }

  draw() {
    const width = Math.max(240, this.node.clientWidth - 2);
    const { axis, logarithmic, range } = this.options;
    const values = this.curves.flatMap((curve) => curve.y);
    const [low, high] = extent(values, logarithmic);
    const ends = this.curves.filter((curve) => curve.x.length).flatMap((curve) => [curve.x[0], curve.x.at(-1)]);
    const [start, end] = range || (ends.length ? [Math.min(...ends), Math.max(...ends)] : [0, 1]);
    this.x = scale(start, end, MARGIN.left, width - MARGIN.right);
    this.y = scale(low, high, HEIGHT - MARGIN.bottom, MARGIN.top, logarithmic);
    this.width = width;
    const across = axis === "elapsed" ? timeTicks : roundTicks;
    const ticks = { x: across(start, end, width / 90), y: (logarithmic ? logTicks : roundTicks)(low, high, 5) };
    this.drawing.setAttribute("width", width);
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.mark = svg("g", { class: "cursor" });
    this.drawing.replaceChildren(
      svg("clipPath", { id: this.clip }, svg("rect", this.area(5))),
      svg("g", { class: "grid", "aria-hidden": "true" }, this.grid(ticks)),
      svg("g", { "clip-path": `url(#${this.clip})` }, this.curves.flatMap((curve) => this.lines(curve))),
      svg(
        "text",
        { class: "axis", x: (MARGIN.left + width) / 2, y: HEIGHT - 4, "text-anchor": "middle" },
        axis === "elapsed" ? "time" : "optimizer step",
      ),
      this.mark,
    );
    if (!values.length) {
      this.drawing.append(svg("text", { class: "empty", x: width / 2, y: HEIGHT / 2, "text-anchor": "middle" }, "no values"));
    }
    this.drawCursor();
  }

  // The place of the curves, with some room around it.
  area(room = 0) {
    const [x, y] = [MARGIN.left - room, MARGIN.top - room];
    return { x, y, width: this.width - x - MARGIN.right + room, height: HEIGHT - y - MARGIN.bottom + room };
  }

  grid(ticks) {
    const bottom = HEIGHT - MARGIN.bottom;
    const across = ticks.y.map((tick) => [
      svg("line", { x1: MARGIN.left, x2: this.width - MARGIN.right, y1: this.y(tick), y2: this.y(tick) }),
      svg("text", { x: MARGIN.left - 6, y: this.y(tick) + 4, "text-anchor": "end" }, this.show(tick)),
    ]);
    const down = ticks.x.map((tick) => [
      svg("line", { x1: this.x(tick), x2: this.x(tick), y1: MARGIN.top, y2: bottom }),
      svg(
        "text",
        { x: this.x(tick), y: bottom + 14, "text-anchor": "middle" },
        this.options.axis === "elapsed" ? duration(tick) : whole(tick),
      ),
    ]);
    return [...across, ...down].flat();
  }

  path(curve, values) {
    const parts = [];
    for (let index = 0; index < values.length; index += 1) {
      if (this.options.logarithmic && !(values[index] > 0)) continue;
      parts.push(`${parts.length ? "L" : "M"}${this.x(curve.x[index]).toFixed(1)} ${this.y(values[index]).toFixed(1)}`);
    }
    return parts.join("");
  }

  lines(curve) {
    const style = `curve ${curve.style}${curve.dashed ? " dashed" : ""}`;
    const found = [svg("path", { class: `${style}${curve.smooth ? " faint" : ""}`, d: this.path(curve, curve.y) })];
    if (curve.smooth) found.push(svg("path", { class: style, d: this.path(curve, curve.smooth) }));
    if ((curve.marks && curve.x.length <= 200) || curve.x.length === 1) {
      curve.x.forEach((x, index) => {
        if (this.options.logarithmic && !(curve.y[index] > 0)) return;
        found.push(svg("circle", { class: `mark ${curve.style}`, cx: this.x(x), cy: this.y(curve.y[index]), r: 2.6 }));
      });
    }
    return found;
  }

  // ---- the cursor ----

  setCursor(x, speak = false) {
    this.cursor = x;
    this.drawCursor();
    if (speak && x !== null) {
      const said = this.curves.map((curve) => `${curve.label} ${this.valueAt(curve).text}`);
      this.spoken.textContent = `${this.shownX(x)}: ${said.join(", ")}`;
    }
  }

  valueAt(curve) {
    if (!curve.x.length) return { text: "none", index: -1 };
    const index = this.cursor === null ? curve.x.length - 1 : nearest(curve.x, this.cursor);
    return { text: this.show(curve.y[index]), index };
  }

  drawCursor() {
    const marks = [];
    if (this.cursor !== null) {
      const x = this.x(this.cursor);
      marks.push(svg("line", { x1: x, x2: x, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }));
    }
    const rows = this.curves.map((curve) => {
      const { text, index } = this.valueAt(curve);
      const value = index < 0 ? null : curve.y[index];
      if (this.cursor !== null && index >= 0 && (value > 0 || !this.options.logarithmic)) {
        marks.push(svg("circle", { class: `mark ${curve.style}`, cx: this.x(curve.x[index]), cy: this.y(value), r: 4 }));
      }
      const at = index < 0 ? "" : ` ${this.shownX(curve.x[index])}`;
      return el(
        "li",
        {},
        svg("svg", { class: "swatch", width: 22, height: 8, "aria-hidden": "true" },
          svg("path", { class: `curve ${curve.style}${curve.dashed ? " dashed" : ""}`, d: "M0 4H22" })),
        el("span", { class: "name" }, curve.label),
        el("b", { class: "value", "data-value": value === null ? "" : String(value) }, text),
        el("small", {}, at),
      );
    });
    this.mark.replaceChildren(...marks);
    this.legend.replaceChildren(...rows);
  }

  // ---- mouse and keyboard ----

  at(event) {
    const pixel = event.clientX - this.drawing.getBoundingClientRect().left;
    return this.x.invert(Math.min(this.width - MARGIN.right, Math.max(MARGIN.left, pixel)));
  }

  point(event) {
    const x = this.at(event);
    this.setCursor(x);
    if (this.dragged !== undefined) {
      const [from, to] = [this.x(this.dragged), this.x(x)].sort((a, b) => a - b);
      this.mark.append(svg("rect", { class: "brush", ...this.area(), x: from, width: to - from }));
    }
  }

  beginDrag(event) {
    if (event.button) return;
    this.dragged = this.at(event);
    this.drawing.setPointerCapture(event.pointerId);
  }

  endDrag(event) {
    if (this.dragged === undefined) return;
    const [from, to] = [this.dragged, this.at(event)].sort((a, b) => a - b);
    this.dragged = undefined;
    if (this.x(to) - this.x(from) > 8) this.zoom([from, to]);
  }

  key(event) {
    const all = [...new Set(this.curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
    const [start, end] = [this.x.invert(MARGIN.left), this.x.invert(this.width - MARGIN.right)];
    const seen = all.filter((x) => x >= start && x <= end);
    if (!seen.length) return;
    const now = this.cursor === null ? seen.length : nearest(seen, this.cursor);
    const middle = this.cursor ?? (start + end) / 2;
    const width = (end - start) / 4;
    const moves = { ArrowLeft: now - 1, ArrowRight: now + 1, PageUp: now - 10, PageDown: now + 10, Home: 0, End: seen.length - 1 };
    if (event.key in moves) {
      this.setCursor(seen[Math.max(0, Math.min(seen.length - 1, moves[event.key]))], true);
    } else if (event.key === "+" || event.key === "=") {
      const from = Math.max(start, Math.min(end - 2 * width, middle - width));
      this.zoom([from, from + 2 * width]);
    } else if (event.key === "-" || event.key === "Escape") {
      this.zoom(null);
    } else {
      return;
    }
    event.preventDefault();
  }

  asRows() {
    const rows = this.curves.flatMap((curve) =>
      curve.x.map((x, index) => [curve.label, curve.step[index], this.options.axis === "elapsed" ? x : null, curve.y[index]]));
    return [["curve", "step", "seconds", this.title], ...rows];
  }

  asTable() {
    if (this.curves.length === 0) return el("p", {}, "no values");
    return el(
      "div",
      {},
      this.curves.map((curve) => {
        const stride = Math.max(1, Math.ceil(curve.x.length / ROWS));
        const rows = [];
        for (let index = (curve.x.length - 1) % stride; index < curve.x.length; index += stride) {
          rows.push([String(curve.step[index]), String(curve.y[index])]);
        }
        const shown = rows.length < curve.total ? ` (${rows.length} of ${curve.total} points)` : "";
        return table(`${this.title}: ${curve.label}${shown}`, ["step", "value"], rows);
      }),
    );
  }
}
