// The studio: data in, what was understood, a network, training, predictions and export. The server runs the commands it shows.

import { act, ask, send } from "/api.js";
import { el, table } from "/dom.js";

const NETWORKS = { mlp: "mlp, for rows of numbers", cnn: "cnn, for images", resnet: "resnet, for images", gru: "gru, for sequences of rows" };
const PICTURES = /\.(png|jpe?g|bmp|gif|webp)$/i;
const TOGETHER = 4; // files that are sent at the same time

// What the user chose, which stays when another view is opened.
const chosen = { data: "", target: "", network: "", epochs: 20, rate: "", name: "", understood: null, seen: "" };

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

async function upload(files, say) {
  if (!files.length) return "";
  const top = files[0][0].split("/")[0];
  const isFolder = files[0][0].includes("/");
  const kept = isFolder ? files.filter(([path]) => PICTURES.test(path)) : files.slice(0, 1);
  if (!kept.length) throw new Error(`${top} has no pictures`);
  const { path: place } = await act("place", { name: top });
  let sent = 0;
  const waiting = [...kept];
  const worker = async () => {
    for (let next = waiting.shift(); next; next = waiting.shift()) {
      const [path, file] = next;
      await send(isFolder ? [place, ...path.split("/").slice(1)].join("/") : place, file);
      sent += 1;
      say(`${sent} of ${kept.length} files copied`);
    }
  };
  await Promise.all(Array.from({ length: TOGETHER }, worker));
  return place;
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
  const networkChoice = el("select", { onchange: () => (chosen.network = networkChoice.value) });
  const epochs = el("input", { type: "number", min: 1, max: 100000, value: chosen.epochs, oninput: () => (chosen.epochs = epochs.valueAsNumber) });
  const rate = el("input", { type: "number", min: 0, step: "any", placeholder: "usual", value: chosen.rate, oninput: () => (chosen.rate = rate.value) });
  const understood = el("div", {});
  const jobs = el("div", { class: "jobs" });
  const results = el("div", {});

  const file = el("input", { type: "file", "aria-label": "A file of data", onchange: guarded(() => take([...file.files].map((one) => [one.name, one]))) });
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
        const entry = event.dataTransfer.items[0]?.webkitGetAsEntry?.();
        await take(entry ? await filesOf(entry) : [...event.dataTransfer.files].map((one) => [one.name, one]));
      }),
    },
    el("p", {}, "Drop a table (CSV, Parquet, JSON lines, NPZ), or a folder with a folder of pictures for each class."),
    el("p", { class: "controls" }, el("label", {}, "File ", file), el("label", {}, "Folder ", folder)),
  );

  async function take(files) {
    say("copying");
    const place = await upload(files, say);
    file.value = folder.value = "";
    if (place) await look(place);
  }

  async function look(data, target = "") {
    if (!data) return;
    say(`looking at ${data}`);
    chosen.data = data;
    const found = await ask("studio/data", { path: data, target: target || null });
    Object.assign(chosen, { understood: found, target, network: found.network, name: plain(data) });
    if (target) chosen.name += `-${plain(target)}`;
    say("");
    showUnderstood();
    await update();
  }

  function showUnderstood() {
    const found = chosen.understood;
    if (!found) return;
    const parts = [el("p", {}, `${found.data}: ${found.rows === undefined ? "" : `${found.rows} `}rows of ${found.kind}`)];
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
    trainButton.disabled = state.running || !chosen.understood;
    stopButton.disabled = !state.running;
    jobs.replaceChildren(
      ...state.commands.map(({ text, status, output }) => {
        const copy = el("button", { type: "button", onclick: () => navigator.clipboard.writeText(text) }, "Copy");
        const outcome = status === null ? "" : status === 0 ? "done" : `ended with status ${status}`;
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

  function showResults({ artifacts, running }) {
    const rows = artifacts.map(({ name, trained }) => {
      const button = (text, work) => el("button", { type: "button", disabled: running || !trained, onclick: guarded(work) }, text);
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
