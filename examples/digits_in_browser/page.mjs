// Trains the digits in steps, between which the browser draws.
import { Ortrain, Tensor, TrainingSession } from "./ortrain.mjs";

const kEpochs = Number(new URLSearchParams(location.search).get("epochs") ?? 8);
const kBatch = 32, kRate = 2e-3, kSamples = 12, kSide = 8, kPixels = kSide * kSide;
const element = (id) => document.getElementById(id);

async function read(name) {
  const answer = await fetch(name);
  if (!answer.ok) throw new Error(`${name}: ${answer.status}; write the folder with prepare.py`);
  return new Uint8Array(await answer.arrayBuffer());
}

async function readSplit(name, count) {
  const images = new Float32Array((await read(`${name}_images.bin`)).buffer);
  return { images, labels: await read(`${name}_labels.bin`), count };
}

// The images and labels of some places, as the model takes them.
function batchOf({ images, labels }, places) {
  const chosen = new Float32Array(places.length * kPixels);
  places.forEach((place, i) => chosen.set(images.subarray(place * kPixels, (place + 1) * kPixels), i * kPixels));
  const classes = BigInt64Array.from(places, (place) => BigInt(labels[place]));
  return [new Tensor("float32", chosen, [places.length, kPixels]), new Tensor("int64", classes, [places.length])];
}

function shuffled(count) {
  const order = Array.from({ length: count }, (_, i) => i);
  for (let i = count - 1; i > 0; --i) {
    const j = Math.floor(Math.random() * (i + 1));
    [order[i], order[j]] = [order[j], order[i]];
  }
  return order;
}

// The class with the largest number in each row.
function classesOf({ data, shape: [rows, columns] }) {
  return Array.from({ length: rows }, (_, row) => {
    const numbers = data.subarray(row * columns, (row + 1) * columns);
    return numbers.indexOf(Math.max(...numbers));
  });
}

function evaluate(session, split) {
  const places = Array.from({ length: split.count }, (_, i) => i);
  const [, logits] = session.evalStep(batchOf(split, places));
  const classes = classesOf(logits);
  return { classes, accuracy: classes.filter((found, i) => found === split.labels[i]).length / split.count };
}

function draw(losses, accuracies, steps) {
  const canvas = element("curve"), context = canvas.getContext("2d");
  const { width, height } = canvas, margin = 30;
  const x = (step) => margin + (step / steps) * (width - 2 * margin);
  const y = (share) => height - margin - share * (height - 2 * margin);
  const line = (points, color) => {
    context.strokeStyle = color;
    context.lineWidth = 2;
    context.beginPath();
    for (const [step, share] of points) context.lineTo(x(step), y(share));
    context.stroke();
  };
  context.clearRect(0, 0, width, height);
  context.fillStyle = "#555";
  context.font = "14px sans-serif";
  const most = Math.max(...losses);
  for (const share of [0, 0.5, 1]) {
    context.fillText((share * most).toFixed(1), 2, y(share) + 5);
    context.fillText(`${100 * share} %`, width - margin - 6, y(share) - 6);
  }
  line(losses.map((loss, step) => [step, loss / most]), "#1763b6");
  line(accuracies, "#b3541e");
}

function show(split, classes) {
  element("samples").replaceChildren(
    ...classes.slice(0, kSamples).map((found, i) => {
      const figure = document.createElement("figure"), canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [kSide, kSide];
      const picture = new ImageData(kSide, kSide);
      for (let p = 0; p < kPixels; ++p) picture.data.set([0, 0, 0, 255 * split.images[i * kPixels + p]], 4 * p);
      canvas.getContext("2d").putImageData(picture, 0, 0);
      const caption = document.createElement("figcaption");
      caption.textContent = found;
      caption.className = found === split.labels[i] ? "" : "wrong";
      figure.append(canvas, caption);
      return figure;
    }),
  );
}

async function train(session, digits) {
  const steps = kEpochs * Math.floor(digits.train.count / kBatch);
  const losses = [], accuracies = [];
  const begun = performance.now();
  for (let epoch = 0; epoch < kEpochs; ++epoch) {
    const order = shuffled(digits.train.count);
    for (let at = 0; at + kBatch <= order.length; at += kBatch) {
      const [loss] = session.trainStep(batchOf(digits.train, order.slice(at, at + kBatch)));
      session.optimizerStep();
      session.lazyResetGrad();
      losses.push(loss.data[0]);
      element("loss").value = loss.data[0].toFixed(4);
      element("progress").textContent = `Step ${losses.length} of ${steps},`;
      if (losses.length % 5 === 0) {
        draw(losses, accuracies, steps);
        await new Promise(requestAnimationFrame);
      }
    }
    const { classes, accuracy } = evaluate(session, digits.test);
    accuracies.push([losses.length, accuracy]);
    element("accuracy").value = `${(100 * accuracy).toFixed(1)} %`;
    show(digits.test, classes);
    draw(losses, accuracies, steps);
  }
  const each = (performance.now() - begun) / steps;
  element("progress").textContent = `${steps} steps, ${each.toFixed(1)} ms each,`;
}

function offer(model) {
  const link = element("model");
  link.href = URL.createObjectURL(new Blob([model], { type: "application/octet-stream" }));
  link.hidden = false;
}

async function main() {
  const counts = JSON.parse(new TextDecoder().decode(await read("digits.json")));
  const digits = { train: await readSplit("train", counts.train), test: await readSplit("test", counts.test) };
  const ortrain = await Ortrain.load(await fetch("ortrain.wasm"));
  const artifacts = {
    checkpoint: await read("checkpoint"),
    training: await read("training_model.onnx"),
    evaluation: await read("eval_model.onnx"),
    optimizer: await read("optimizer_model.onnx"),
  };
  element("progress").textContent = "Ready,";
  element("start").disabled = false;
  element("start").onclick = () =>
    guarded(async () => {
      element("start").disabled = true;
      const session = new TrainingSession(ortrain, artifacts);
      session.learningRate = kRate;
      await train(session, digits);
      offer(session.exportModel(["logits"]));
      session.release();
      element("start").disabled = false;
    });
}

async function guarded(f) {
  try {
    await f();
  } catch (error) {
    element("error").textContent = `${error}`;
    throw error;
  }
}

guarded(main);
