// The studio: data in, what was understood, a network, training, predictions and export. The server runs the commands it shows.

import { act, ask, send } from "/api.js";
import { counted, el, table } from "/dom.js";

const NETWORKS = { mlp: "mlp, for rows of numbers", cnn: "cnn, for images", resnet: "resnet, for images", gru: "gru, for sequences of rows" };
const MODEL = /\.onnx$/i;
const WEIGHTS = /\.onnx[._]data$/i; // of a model, in a file beside it
const KNOWN = /\.(csv|tsv|parquet|jsonl|npz|npy|onnx|onnx[._]data)$/i;
const PICTURES = /\.(png|jpe?g|bmp|gif|webp)$/i;
const TOGETHER = 4; // files that are sent at the same time

// What the user chose, which stays when another view is opened.
const chosen = { data: "", target: "", network: "", model: "", epochs: 20, rate: "", name: "", understood: null, seen: "" };

const plain = (name) => name.replace(/\.[^.]*$/, "").replace(/[^A-Za-z0-9_-]+/g, "-").replace(/^-+/, "") || "model";

// ---- files that are dropped or picked ----

async function filesOf(entry, path = "") {
  if (entry.name.startsWith(".")) return [];
  if (entry.isFile) return [[path + entry.name, await new Promise((done, failed) => entry.file(done, failed))]];
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    const some = await new Promise((done, failed) => reader.readEntries(done, failed)); // 100 at a time
    if (!some.length) return found;
    for (const one of some) found.push(...(await filesOf(one, `${path}${entry.name}/`)));
  }
}

// Several folders that have pictures themselves are the classes of one data set.
function asOneFolder(files) {
  const isInClass = (path) => path.split("/").length === 2 && PICTURES.test(path);
  const classes = new Set(files.filter(([path]) => isInClass(path)).map(([path]) => path.split("/")[0]));
  if (classes.size < 2) return files;
  return files.map(([path, file]) => [classes.has(path.split("/")[0]) ? `pictures/${path}` : path, file]);
}

// Copy files and folders into the folder of the studio. Returns the places of data and of models there.
async function upload(given, say) {
  const files = asOneFolder(given).filter(([path]) => (path.includes("/") ? PICTURES : KNOWN).test(path));
  const left = given.length - files.length;
  if (!files.length) throw new Error(`${given.length === 1 ? given[0][0] : "these files"}: expected tables, ONNX models or folders of pictures`);
  const places = new Map(); // what is dropped, by its first name, and where it is then
  for (const [path] of files) {
    const top = path.split("/")[0];
    if (!places.has(top)) places.set(top, (await act("place", { name: top })).path);
  }
  let sent = 0;
  const waiting = [...files];
  const worker = async () => {
    for (let next = waiting.shift(); next; next = waiting.shift()) {
      const [top, ...rest] = next[0].split("/");
      await send([places.get(top), ...rest].join("/"), next[1]);
      sent += 1;
      say(`${sent} of ${counted(files.length, "file")} copied`);
    }
  };
  await Promise.all(Array.from({ length: TOGETHER }, worker));
  const all = [...places.values()];
  return { models: all.filter((name) => MODEL.test(name)), data: all.filter((name) => !MODEL.test(name) && !WEIGHTS.test(name)), left };
}

// ---- the view ----

export function studio(page) {
  const message = el("p", { class: "note", role: "status" });
  const say = (text, bad = false) => {
    message.textContent = text;
    message.className = bad ? "bad" : "note";
  };
  const guarded = (work) => async (...given) => {
    try {
      await work(...given);
    } catch (error) {
      say(error.message, true);
    }
  };

  const dataChoice = el("select", { "aria-label": "Data", onchange: guarded(() => look(dataChoice.value)) });
  const targetChoice = el("select", { onchange: guarded(() => look(chosen.data, targetChoice.value)) });
  const targetLabel = el("label", { hidden: true }, "Predict ", targetChoice);
  const networkChoice = el("select", { onchange: () => choose(networkChoice.value) });
  const epochs = el("input", { type: "number", min: 1, max: 100000, value: chosen.epochs, oninput: () => (chosen.epochs = epochs.valueAsNumber) });
  const rate = el("input", { type: "number", min: 0, step: "any", placeholder: "usual", value: chosen.rate, oninput: () => (chosen.rate = rate.value) });
  const understood = el("div", {});
  const jobs = el("div", { class: "jobs" });
  const results = el("div", {});

  const file = el("input", { type: "file", multiple: true, "aria-label": "Files of data, or an ONNX model", onchange: guarded(() => take([...file.files].map((one) => [one.name, one]))) });
  const folder = el("input", {
    type: "file", webkitdirectory: true, "aria-label": "A folder of pictures",
    onchange: guarded(() => take([...folder.files].map((one) => [one.webkitRelativePath, one]))),
  });
  folder.setAttribute("webkitdirectory", "");
  const drop = el(
    "div",
    {
      class: "drop",
      ondragover: (event) => {
        event.preventDefault();
        drop.classList.add("over");
      },
      ondragleave: () => drop.classList.remove("over"),
      ondrop: guarded(async (event) => {
        event.preventDefault();
        drop.classList.remove("over");
        // The entries can be asked for only now, before anything is waited for.
        const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
        const plainFiles = [...event.dataTransfer.files].map((one) => [one.name, one]);
        await take(entries.length ? (await Promise.all(entries.map((entry) => filesOf(entry)))).flat() : plainFiles);
      }),
    },
    el("p", {}, "Drop tables (CSV, Parquet, JSON lines, NPZ), or a folder of pictures for each class, or a folder of these. Your own ONNX model can come along."),
    el("p", { class: "controls" }, el("label", {}, "Files ", file), el("label", {}, "Folder ", folder)),
  );

  async function take(files) {
    if (!files.length) return;
    say("copying");
    try {
      const { data, models, left } = await upload(files, say);
      if (models.length) chosen.model = models[0];
      if (data.length) await look(data[0]);
      else choose(chosen.model);
      await update();
      const others = data.length > 1 ? `${data.slice(1).join(", ")} can be chosen too. ` : "";
      say(`${others}${left ? `${counted(left, "other file")} ${left === 1 ? "was" : "were"} not copied.` : ""}`);
    } finally {
      file.value = folder.value = "";
    }
  }

  function choose(network) {
    chosen.network = network;
    chosen.model = MODEL.test(network) ? network : "";
  }

  async function look(data, target = "") {
    if (!data) return;
    say(`looking at ${data}`);
    chosen.data = data;
    const found = await ask("studio/data", { path: data, target: target || null });
    Object.assign(chosen, { understood: found, target, network: chosen.model || found.network, name: plain(data) });
    if (target) chosen.name += `-${plain(target)}`;
    say("");
    showUnderstood();
    await update();
  }

  // What data have, such as "a table with 150 rows" or "60 images".
  function holds(found) {
    const noun = found.kind === "images" ? "image" : "row";
    const rows = `${found.rows} ${noun}${found.rows === 1 ? "" : "s"}`;
    return noun === "image" ? rows : `${found.kind === "table" ? "a table" : found.kind} with ${rows}`;
  }

  function showUnderstood() {
    const found = chosen.understood;
    if (!found) return;
    const parts = [el("p", {}, `${found.data}: ${holds(found)}`)];
    targetLabel.hidden = !found.names;
    if (found.names) {
      targetChoice.replaceChildren(...found.names.map((name) => el("option", { value: name, selected: name === found.target }, name)));
      const rows = Object.entries(found.columns).map(([name, how]) => [name, how]);
      rows.push(...Object.entries(found.left_out).map(([name, why]) => [name, `left out: ${why}`]));
      parts.push(el("div", { class: "wide" }, table("Columns", ["Column", "Understood as"], rows)));
    }
    if (found.classes) {
      const rows = Object.entries(found.classes).map(([name, count]) => [name, String(count)]);
      parts.push(el("div", { class: "wide" }, table("Classes", ["Class", "Rows"], rows)));
    }
    if (found.note) parts.push(el("p", { class: "note" }, found.note));
    understood.replaceChildren(...parts);
  }

  const trainButton = el("button", {
    type: "button", class: "main",
    onclick: guarded(async () => {
      const { data, target, network, name, understood: found } = chosen;
      const speed = chosen.rate === "" ? null : Number(chosen.rate);
      const own = `${name}-${plain(network)}`;
      show(await act("train", { data, target, network, name: own, loss: found.loss, epochs: chosen.epochs, rate: speed }));
    }),
  }, "Train");
  const stopButton = el("button", { type: "button", onclick: guarded(async () => show(await act("stop"))) }, "Stop");

  function option(value, text, now) {
    return el("option", { value, selected: value === now }, text);
  }

  function show(state) {
    trainButton.disabled = !chosen.understood;
    trainButton.textContent = state.running ? "Train afterwards" : "Train";
    const now = state.commands.findIndex(({ status }) => status === null);
    stopButton.disabled = !state.running;
    jobs.replaceChildren(
      ...state.commands.map(({ text, status, output }, number) => {
        const copy = el("button", { type: "button", onclick: () => navigator.clipboard.writeText(text) }, "Copy");
        const waits = state.running && number > now ? "waits" : "";
        const outcome = status === null ? waits : status === 0 ? "done" : `ended with status ${status}`;
        const lines = output.split("\n");
        const bad = status !== null && status !== 0;
        return el(
          "section", {},
          el("p", { class: "command" }, el("code", {}, text), " ", copy, " ", el("small", { class: bad ? "bad" : "note" }, outcome)),
          output ? el("pre", {}, (bad ? lines : lines.slice(-8)).join("\n")) : null,
        );
      }),
    );
  }

  function showResults({ artifacts }) {
    const rows = artifacts.map(({ name, trained }) => {
      const button = (text, work) => el("button", { type: "button", disabled: !trained, onclick: guarded(work) }, text);
      return [
        name,
        el(
          "span", { class: "chips" },
          button("Predict the data above", async () => show(await act("predict", { name, data: chosen.data }))),
          button("Export", async () => show(await act("export", { name }))),
          button("Export with preprocessing", async () => show(await act("export", { name, preprocessing: true }))),
        ),
      ];
    });
    results.replaceChildren(
      rows.length ? table("Networks in the folder", ["Name", "What to do"], rows) : el("p", { class: "note" }, "Nothing has been trained here yet."),
    );
  }

  async function update() {
    const state = await ask("studio/state");
    const listed = JSON.stringify([state.data, state.models, state.artifacts, state.running, chosen.data, chosen.network]);
    if (listed !== chosen.seen || !dataChoice.options.length) {
      chosen.seen = listed;
      dataChoice.replaceChildren(option("", "data in the folder", chosen.data), ...state.data.map((name) => option(name, name, chosen.data)));
      const usual = Object.entries(NETWORKS).map(([value, text]) => option(value, text, chosen.network));
      networkChoice.replaceChildren(...usual, ...state.models.map((name) => option(name, `the model ${name}`, chosen.network)));
      showResults(state);
    }
    show(state);
  }

  chosen.seen = "";
  showUnderstood();
  const node = el(
    "div", { class: "studio" },
    el("section", {}, el("h2", {}, "1. Data"), drop, el("p", { class: "controls" }, el("label", {}, "Or ", dataChoice), targetLabel), understood),
    el(
      "section", {},
      el("h2", {}, "2. Network"),
      el(
        "p", { class: "controls" },
        el("label", {}, "Network ", networkChoice), el("label", {}, "Epochs ", epochs), el("label", {}, "Learning rate ", rate), trainButton, stopButton,
      ),
      message,
    ),
    el("section", {}, el("h2", {}, "3. Commands"), jobs),
    el("section", {}, el("h2", {}, "4. Results"), el("p", { class: "note" }, "The other views show the runs while they train."), results),
  );
  return { node, update };
}
