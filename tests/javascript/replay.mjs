// Replays recorded runs of onnxruntime-training 1.19.2 with the class of bindings/javascript:
//   node replay.mjs FOLDER FIXTURES PACKED NAME...
// FOLDER has ortrain.wasm and the modules, FIXTURES is tests/data/fixtures, PACKED what tests/replay/pack.py wrote. Fails if a loss
// differs from the recorded one by more than 1e-4 of it, as tests/session/test_fixtures.py. What a session saves must train on
// as that session does.
import assert from "node:assert";
import { readFile } from "node:fs/promises";
import path from "node:path";
import { pathToFileURL } from "node:url";

const kTolerance = 1e-4;
const [folder, fixtures, packed, ...names] = process.argv.slice(2);
const { Ortrain, Tensor, TrainingSession } = await import(pathToFileURL(path.resolve(folder, "ortrain.mjs")));
const ortrain = await Ortrain.load(await readFile(path.join(folder, "ortrain.wasm")));
const kTypes = { 1: ["float32", Float32Array], 7: ["int64", BigInt64Array] };

async function artifactsOf(name) {
  const read = (file) => readFile(path.join(fixtures, name, file));
  return {
    checkpoint: await read("checkpoint"),
    training: await read("training_model.onnx"),
    evaluation: await read("eval_model.onnx"),
    optimizer: await read("optimizer_model.onnx"),
  };
}

// What there is to do: a schedule, and the steps with their inputs and recorded losses.
async function runOf(name) {
  const lines = (await readFile(path.join(packed, `${name}.run`), "utf8")).trim().split("\n");
  const { buffer } = Uint8Array.from(await readFile(path.join(packed, `${name}.data`)));
  const run = { schedule: null, steps: [], evaluations: [] };
  const inputs = [];
  let at = 0;
  for (const [word, ...numbers] of lines.map((line) => line.split(" "))) {
    if (word === "scheduler") run.schedule = numbers.map(Number);
    if (word === "input") {
      const [type, , ...shape] = numbers.map(Number);
      const [kind, array] = kTypes[type];
      const end = at + shape.reduce((product, n) => product * n, 1) * array.BYTES_PER_ELEMENT;
      inputs.push(new Tensor(kind, new array(buffer.slice(at, end)), shape));
      at = end;
    }
    if (word === "step") run.steps.push({ inputs: inputs.slice(-2), loss: Number(numbers[0]) });
    if (word === "eval") run.evaluations.push({ inputs: inputs.slice(2 * run.evaluations.length).slice(0, 2), loss: Number(numbers[0]) });
  }
  return run;
}

function train(session, { inputs }, scheduled) {
  const [loss] = session.trainStep(inputs);
  session.optimizerStep();
  if (scheduled) session.schedulerStep();
  session.lazyResetGrad();
  return loss.data[0];
}

async function replay(name) {
  const artifacts = await artifactsOf(name), run = await runOf(name);
  const session = new TrainingSession(ortrain, artifacts);
  if (run.schedule) session.registerLinearSchedule(...run.schedule);
  let worst = 0;
  const compare = (found, recorded) => {
    worst = Number.isFinite(found) ? Math.max(worst, Math.abs(found - recorded) / Math.abs(recorded)) : Infinity;
  };
  assert(run.steps.length > 0);
  for (const step of run.steps) compare(train(session, step, run.schedule), step.loss);
  for (const step of run.evaluations) compare(session.evalStep(step.inputs)[0].data[0], step.loss);
  assert([...session.parameters().values()].every(({ data }) => data.every(Number.isFinite)));
  if (!run.schedule) {
    const resumed = new TrainingSession(ortrain, { ...artifacts, checkpoint: session.save() });
    assert.strictEqual(train(resumed, run.steps[0]), train(session, run.steps[0]), "a session resumes from what was saved");
    assert.strictEqual(train(resumed, run.steps[0]), train(session, run.steps[0]), "moments are part of a checkpoint");
    resumed.release();
  }
  session.release();
  return worst;
}

let failed = names.length === 0;
for (const name of names) {
  const worst = await replay(name);
  failed ||= !(worst <= kTolerance);
  console.log(`${worst <= kTolerance ? "ok" : "FAILED"} ${name}: losses within ${worst.toExponential(1)} of the recorded ones`);
}
assert.throws(
  () => new TrainingSession(ortrain, { checkpoint: new Uint8Array(8), training: new Uint8Array(8) }),
  /checkpoint/,
  "errors say what was being read",
);
const tooLarge = (scope) => {
  const [dimensions] = scope.bytes(BigInt64Array.of(2n ** 20n, 2n ** 20n));
  scope.made((out) => ortrain.general.CreateTensorAsOrtValue(ortrain.allocator, dimensions, 2, 1, out));
};
// 4 TB: their number modulo 2^32 would be 0.
assert.throws(() => ortrain.scoped(tooLarge), /1048576, 1048576.*the most are 268435455/);
process.exit(failed ? 1 : 0);
