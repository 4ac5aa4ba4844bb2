// The model as a graph: groups that open and close, and in color what trains.

import { ask } from "/api.js";
import { counted, el, svg, table, whole } from "/dom.js";

const TRAINS = {
  all: "trains",
  part: "trains in part",
  frozen: "frozen",
  none: "no parameters",
};
const MARGIN = 16;

function line(points) {
  const parts = [`M${points[0].join(" ")}`];
  for (let index = 1; index < points.length; index += 1) {
    const [[x, y], [toX, toY]] = [points[index - 1], points[index]];
    const middle = (y + toY) / 2;
    parts.push(`C${x} ${middle} ${toX} ${middle} ${toX} ${toY}`);
  }
  return parts.join("");
}

const short = (text, width) => {
  const most = Math.floor((width - 16) / 7.2);
  return text.length <= most ? text : `${text.slice(0, Math.max(1, most - 1))}…`;
};

export function graph(page) {
  const picker = page.picker();
  const drawing = svg("svg", { role: "group", "aria-label": "Model" });
  const frame = el("div", { class: "graph", tabindex: 0, role: "region", "aria-label": "Graph of the model, which can be scrolled" }, drawing);
  const detail = el("aside", { class: "detail", "aria-live": "polite", "aria-label": "Selected part of the model" });
  const groups = el("p", { class: "chips" });
  const summary = el("p", {});
  const size = el("span", {}, "100 %");
  let [opened, drawn, current, zoom, picture] = [null, "", null, 1, null];

  function setZoom(to) {
    zoom = Math.min(4, Math.max(0.05, to));
    size.textContent = `${Math.round(zoom * 100)} %`;
    if (!picture) return;
    const [width, height] = [picture.width + 2 * MARGIN, picture.height + 2 * MARGIN];
    drawing.setAttribute("viewBox", `${-MARGIN} ${-MARGIN} ${width} ${height}`);
    drawing.setAttribute("width", width * zoom);
    drawing.setAttribute("height", height * zoom);
  }

  const fit = () => picture && setZoom(Math.min(1, (frame.clientWidth - 4) / (picture.width + 2 * MARGIN)));

  function select(box) {
    current = box.key;
    for (const node of drawing.querySelectorAll(".box")) node.classList.toggle("current", node.dataset.key === current);
    const facts = [
      ["what", box.group ? `group of ${counted(box.nodes, "node")}` : box.operator],
      ["training", TRAINS[box.trains]],
      ["elements of parameters", whole(box.elements)],
      ["of which train", whole(box.trained_elements)],
    ];
    if (box.inputs.length) facts.push(["inputs", box.inputs.join(", ")]);
    if (box.outputs.length) facts.push(["outputs", box.outputs.join(", ")]);
    const own = box.own.map((entry) => [entry.name, entry.shape.join(" × "), entry.trained ? "trains" : "frozen"]);
    detail.replaceChildren(
      el("h3", {}, box.name),
      table("Description", ["", ""], facts),
      own.length ? table("Parameters", ["name", "shape", ""], own) : "",
      box.group ? el("button", { type: "button", onclick: () => change(box.key, true) }, "Open the group") : "",
    );
  }

  function change(key, open) {
    const keys = new Set(picture.opened.map((group) => group.key));
    const within = (other) => other === key || ["/", ".", "#"].some((separator) => other.startsWith(key + separator));
    if (open) keys.add(key);
    else for (const other of keys) if (within(other)) keys.delete(other);
    opened = keys.size ? [...keys] : [""];
    current = open ? null : key;
    drawn = "";
    page.refresh();
  }

  function drawBox(box) {
    const kind = box.group ? counted(box.nodes, "node") : box.operator;
    const node = svg(
      "g",
      {
        class: `box ${box.trains}${box.group ? " group" : ""}`,
        "data-key": box.key,
        tabindex: 0,
        role: "button",
        "aria-label": `${box.label}, ${kind}, ${TRAINS[box.trains]}${box.group ? ", opens" : ""}`,
        transform: `translate(${box.x} ${box.y})`,
        onclick: () => select(box),
        onfocus: () => select(box),
        ondblclick: () => box.group && change(box.key, true),
        onkeydown: (event) => {
          if (event.key !== "Enter" && event.key !== " ") return;
          event.preventDefault();
          if (box.group) change(box.key, true);
          else select(box);
        },
      },
      svg("title", {}, `${box.name} (${kind}, ${TRAINS[box.trains]})`),
      svg("rect", { width: box.width, height: box.height, rx: box.group ? 10 : 3 }),
      svg("text", { x: box.width / 2, y: 18, "text-anchor": "middle" }, short(box.label, box.width)),
      svg("text", { class: "kind", x: box.width / 2, y: 34, "text-anchor": "middle" }, short(kind + (box.group ? " +" : ""), box.width)),
    );
    return node;
  }

  function draw() {
    drawing.replaceChildren(
      svg("g", { class: "lines", "aria-hidden": "true" }, picture.lines.map((edge) => svg("path", { d: line(edge.points) }))),
      ...picture.boxes.map(drawBox),
    );
    const { parameters } = picture;
    summary.textContent = `${picture.file}: ${counted(picture.nodes, "node")}; ${whole(parameters.trained)} of ${counted(parameters.parameters, "parameter")} ${parameters.trained === 1 ? "trains" : "train"}, ${whole(parameters.trained_elements)} of ${counted(parameters.elements, "element")}. Enter opens a group.`;
    groups.replaceChildren(
      ...picture.opened.map((group) => el("button", { type: "button", onclick: () => change(group.key, false) }, `Close ${group.label}`)),
    );
    if (current) drawing.querySelector(`[data-key="${CSS.escape(current)}"]`)?.focus();
  }

  async function update() {
    picker.fill();
    const run = page.focused();
    const key = `${run.key} ${run.details.model} ${opened}`;
    if (key === drawn) return;
    drawn = key;
    const found = await ask("graph", { run: run.key, open: opened });
    if (key !== drawn) return;
    const first = picture === null;
    picture = found;
    if (!found.boxes.length) {
      summary.textContent = "The log of this run has no graph. It is written if the Python package onnx is installed.";
      drawing.replaceChildren();
      return;
    }
    draw();
    if (first) fit();
    else setZoom(zoom);
  }

  const legend = el("ul", { class: "legend trains" }, Object.entries(TRAINS).map(([kind, text]) =>
    el("li", {}, svg("svg", { width: 22, height: 14, "aria-hidden": "true" }, svg("g", { class: `box ${kind}` }, svg("rect", { x: 1, y: 1, width: 20, height: 12, rx: 3 }))), text)));
  const buttons = el(
    "span",
    {},
    el("button", { type: "button", "aria-label": "smaller", onclick: () => setZoom(zoom / 1.25) }, "−"),
    size,
    el("button", { type: "button", "aria-label": "larger", onclick: () => setZoom(zoom * 1.25) }, "+"),
    el("button", { type: "button", onclick: fit }, "Fit"),
  );
  const node = el("div", {}, el("div", { class: "controls" }, picker.node, buttons, legend), summary, groups, el("div", { class: "split wideleft" }, frame, detail));
  return { node, update };
}
