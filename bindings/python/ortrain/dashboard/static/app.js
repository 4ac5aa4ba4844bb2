// The page: the list of runs, the tabs, and the refresh interval.

import { ask, post, token } from "/api.js";
import { compare } from "/compare.js";
import { curves } from "/curves.js";
import { counted, duration, el, rough, whole } from "/dom.js";
import { graph } from "/graph.js";
import { layers } from "/layers.js";
import { misread } from "/misread.js";
import { profile } from "/profile.js";
import { studio } from "/studio.js";

const SECONDS = 1; // between two questions for what is new
const COLOURS = 8;
const SELECTED_AT_FIRST = 6;
const VIEWS = { ...(token ? { train: studio } : {}), curves, compare, layers, profile, misread, graph };
const TITLES = {
  train: "Train",
  curves: "Curves",
  compare: "Side by side",
  layers: "Layers",
  profile: "Profile",
  misread: "Validation",
  graph: "Model",
};
const STATES = { running: "running", complete: "complete", stopped: "stopped", failed: "failed", lost: "no end written" };

const byId = (id) => document.getElementById(id);
const settings = new URLSearchParams(location.hash.slice(1));

const page = {
  runs: [],
  chosen: settings.has("runs") ? new Set(settings.get("runs").split(",").filter(Boolean)) : null, // null: the newest
  focus: settings.get("run"),
  tab: settings.get("tab") in VIEWS ? settings.get("tab") : Object.keys(VIEWS)[0],
  styles: new Map(),
  view: null,
  seen: "",

  selected() {
    if (this.chosen) return this.runs.filter((run) => this.chosen.has(run.key));
    return this.runs.slice(0, SELECTED_AT_FIRST);
  },
  focused() {
    return this.runs.find((run) => run.key === this.focus) || this.selected()[0] || this.runs[0];
  },
  style(run) {
    if (!this.styles.has(run.key)) this.styles.set(run.key, `c${this.styles.size % COLOURS}`);
    return this.styles.get(run.key);
  },
  setting(name, value) {
    if (value === undefined) return settings.get(name);
    if (value === null || value === "") settings.delete(name);
    else settings.set(name, value);
    history.replaceState(null, "", `#${settings}`);
    return value;
  },
  // A choice of one run, for views that show one.
  picker() {
    const select = el("select", {
      onchange: () => {
        this.focus = this.setting("run", select.value);
        this.open(this.tab);
        byId("view").querySelector("select")?.focus();
      },
    });
    const fill = () => {
      const [now, options] = [this.focused()?.key, this.runs.map((run) => el("option", { value: run.key }, run.name))];
      if (select.textContent !== options.map((option) => option.textContent).join("")) select.replaceChildren(...options);
      if (now && select.value !== now) select.value = now;
    };
    fill();
    return { node: el("label", { class: "picker" }, "Run ", select), fill };
  },
  open(tab) {
    this.tab = this.setting("tab", tab);
    for (const button of byId("tabs").children) {
      const current = button.id === `tab-${tab}`;
      button.setAttribute("aria-selected", String(current));
      button.tabIndex = current ? 0 : -1;
    }
    byId("view").setAttribute("aria-labelledby", `tab-${tab}`);
    this.view = VIEWS[tab](this);
    byId("view").replaceChildren(this.runs.length || tab === "train" ? this.view.node : welcome());
    this.refresh();
  },
  async refresh() {
    const view = this.view;
    if (!this.runs.length && this.tab !== "train") return;
    try {
      await view.update();
    } catch (error) {
      if (view === this.view) say(`This could not be shown: ${error.message}`);
    }
  },
};

function say(text) {
  if (byId("status").textContent !== text) byId("status").textContent = text;
}

function welcome() {
  return el(
    "section",
    { class: "welcome" },
    el("h2", {}, "There is no run in this folder yet"),
    el("p", {}, "A run appears here as soon as it begins. Either of these commands starts one:"),
    el("pre", {}, "ortrain train artifacts --data train.npz --epochs 10"),
    el("pre", {}, 'from ortrain.trainer import JSONLogger\ntrainer.fit(data, epochs=10, callbacks=[JSONLogger("runs/first.jsonl")])'),
  );
}

// ---- the list of runs ----

// Which epoch a run is in, and how much longer it takes at its present speed.
function left(run) {
  const [epochs, steps] = [Number(run.settings.epochs), Number(run.settings.epochs) * Number(run.settings.steps_per_epoch)];
  if (!(epochs > 0)) return [];
  const now = [`epoch ${Math.min(epochs, (run.epoch || 0) + 1)} of ${epochs}`];
  if (steps > run.step && run.step > 0) now.push(`${rough((run.elapsed * (steps - run.step)) / run.step)} left`);
  return now;
}

function describe(run) {
  const parts = [STATES[run.state], `step ${whole(run.step)}`, duration(run.elapsed)];
  if (run.state === "running") parts.push(...left(run));
  if (run.read < 1) parts.push(`${Math.round(run.read * 100)} % read`);
  return parts.join(", ");
}

function notes(run) {
  const found = [];
  if (run.error) found.push(el("p", { class: "bad" }, run.error));
  if (run.bad_lines) {
    const title = `${run.bad_lines} ${run.bad_lines === 1 ? "line" : "lines"} could not be read`;
    found.push(
      el("details", { class: "bad" }, el("summary", {}, title), el("ul", {}, run.problems.map((text) => el("li", {}, text)))),
    );
  }
  return found;
}

function toggle(run, on) {
  page.chosen = new Set(page.selected().map((other) => other.key));
  if (on) page.chosen.add(run.key);
  else page.chosen.delete(run.key);
  page.setting("runs", [...page.chosen].join(",") || "none");
  page.refresh();
}

async function rename(run, name) {
  const wanted = window.prompt("Name of the run (empty: the one in its log)", name.textContent);
  if (wanted === null) return;
  try {
    await post("name", { run: run.key, name: wanted });
    await show();
  } catch (error) {
    say(`The run could not be renamed: ${error.message}`);
  }
}

const rows = new Map();

function showRuns() {
  const selected = new Set(page.selected().map((run) => run.key));
  const nodes = page.runs.map((run) => {
    if (!rows.has(run.key)) {
      const box = el("input", { type: "checkbox", onchange: () => toggle(run, box.checked) });
      const text = el("span", { class: "state" });
      const name = el("span", { class: "name", title: run.file, id: `name-${run.key}` }, run.name);
      const label = el("label", {}, box, el("i", { class: `dot ${page.style(run)}` }), name, text);
      const button = el("button", { type: "button", class: "rename", "aria-describedby": name.id, onclick: () => rename(run, name) }, "Rename");
      const more = el("div", {});
      rows.set(run.key, { node: el("div", { class: "run" }, label, button, more), box, name, text, more, noted: "" });
    }
    const row = rows.get(run.key);
    row.box.checked = selected.has(run.key);
    if (row.name.textContent !== run.name) row.name.textContent = run.name;
    row.text.textContent = describe(run);
    row.text.className = `state ${run.state}`;
    const noted = JSON.stringify([run.error, run.bad_lines]);
    if (noted !== row.noted) {
      row.noted = noted;
      row.more.replaceChildren(...notes(run));
    }
    return row.node;
  });
  const list = byId("runs");
  if (list.children.length !== nodes.length || nodes.some((node, index) => list.children[index] !== node)) list.replaceChildren(...nodes);
}

let othersSeen = "";

function showOthers(others) {
  if (othersSeen === others.join("\n")) return;
  othersSeen = others.join("\n");
  const title = `${others.length} ${others.length === 1 ? "file is" : "files are"} not shown`;
  byId("others").replaceChildren(
    ...(others.length ? [el("details", {}, el("summary", {}, title), el("ul", {}, others.map((text) => el("li", {}, text))))] : []),
  );
}

// ---- tabs ----

function makeTabs() {
  const names = Object.keys(VIEWS);
  byId("tabs").append(
    ...names.map((name) =>
      el("button", { id: `tab-${name}`, role: "tab", type: "button", "aria-controls": "view", onclick: () => page.open(name) }, TITLES[name]),
    ),
  );
  byId("tabs").addEventListener("keydown", (event) => {
    const index = names.indexOf(page.tab);
    const to = { ArrowLeft: index - 1, ArrowRight: index + 1, Home: 0, End: names.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    page.open(names[(to + names.length) % names.length]);
    byId(`tab-${page.tab}`).focus();
  });
}

// ---- what is new ----

async function show() {
  try {
    const found = await ask("runs");
    const had = page.runs.length;
    page.runs = found.runs.sort((a, b) => (b.began || 0) - (a.began || 0) || a.name.localeCompare(b.name));
    for (const run of [...page.runs].reverse()) page.style(run);
    const name = found.folder.split(/[\\/]/).pop() || found.folder;
    byId("folder").textContent = name;
    byId("folder").title = found.folder;
    document.title = `${name} · ortrain`;
    const running = page.runs.filter((run) => run.state === "running").length;
    say(`${counted(page.runs.length, "run")}, ${running} running`);
    showRuns();
    showOthers(found.others);
    const seen = page.runs.map((run) => `${run.key} ${run.version} ${run.state} ${run.name}`).join();
    if (Boolean(had) !== Boolean(page.runs.length) && page.tab !== "train") page.open(page.tab);
    else if (seen !== page.seen || page.tab === "train") await page.refresh();
    page.seen = seen;
  } catch (error) {
    say(`The server does not answer (${error.message}). Is ortrain dashboard still running?`);
  }
}

async function follow() {
  await show();
  setTimeout(follow, document.hidden ? 5000 : SECONDS * 1000);
}

makeTabs();
page.open(page.tab);
follow();
