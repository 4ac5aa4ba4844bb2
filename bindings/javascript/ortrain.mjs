// Training in a page or in Node.js: a class over the calls of C that the module ortrain.wasm has. Written by hand; the places of
// the calls in their tables are generated.
import { Files } from "./files.mjs";
import * as slots from "./generated/slots.mjs";

const kVersion = 32; // of the tables
const kElements = {
  float32: { type: 1, array: Float32Array },
  uint8: { type: 2, array: Uint8Array },
  int8: { type: 3, array: Int8Array },
  int32: { type: 6, array: Int32Array },
  int64: { type: 7, array: BigInt64Array },
  bool: { type: 9, array: Uint8Array },
  float64: { type: 11, array: Float64Array },
};

function kindOf(type) {
  const found = Object.entries(kElements).find(([, kind]) => kind.type === type);
  if (found === undefined) throw new Error(`tensors of ONNX's element type ${type} have no array in JavaScript`);
  return found;
}

// Values with a shape. The values are row-major.
export class Tensor {
  constructor(type, data, shape) {
    const kind = kElements[type];
    if (kind === undefined) throw new Error(`expected one of the types ${Object.keys(kElements).join(", ")}, found "${type}"`);
    const count = shape.reduce((product, dimension) => product * dimension, 1);
    if (data.length !== count)
      throw new Error(`a tensor of shape [${shape.join(", ")}] has ${count} elements, found ${data.length}`);
    this.type = type;
    this.data = data instanceof kind.array ? data : kind.array.from(data);
    this.shape = [...shape];
  }
}

// The module, and the calls of C by table and name. Calls that fail throw what the library says.
export class Ortrain {
  // From the bytes of ortrain.wasm, or the answer of fetch().
  static async load(source) {
    const bytes = await (source instanceof Response ? source.arrayBuffer() : source);
    const module = await WebAssembly.compile(bytes);
    const files = new Files();
    const instance = await WebAssembly.instantiate(module, { wasi_snapshot_preview1: files.imports(module) });
    return new Ortrain(instance, files);
  }

  constructor({ exports }, files) {
    this.exports = exports;
    this.files = files;
    files.memory = exports.memory;
    exports._initialize();
    const functions = exports.__indirect_function_table;
    const at = (address) => functions.get(this.view().getUint32(address, true));
    const table = (address, names) =>
      Object.fromEntries(Object.entries(names).map(([name, slot]) => [name, at(address + 4 * slot)]));
    const getApi = at(exports.OrtGetApiBase());
    this.general = table(getApi(kVersion), slots.general);
    this.training = table(this.general.GetTrainingApi(kVersion), slots.training);
    this.extension = table(exports.OrtrainGetApi(kExtensionVersion), slots.extension);
    this.scoped((scope) => {
      this.environment = scope.made((out) => this.general.CreateEnv(kWarnings, scope.text("ortrain"), out));
      this.options = scope.made((out) => this.general.CreateSessionOptions(out));
      this.memoryInfo = scope.made((out) => this.general.CreateCpuMemoryInfo(kArena, 0, out));
      this.allocator = scope.made((out) => this.general.GetAllocatorWithDefaultOptions(out));
    });
  }

  view() {
    return new DataView(this.exports.memory.buffer);
  }

  // The same numbers choose the same random numbers, as in dropout.
  setSeed(seed) {
    this.check(this.training.SetSeed(BigInt(seed)));
  }

  check(status) {
    if (status === 0) return;
    const message = this.textAt(this.general.GetErrorMessage(status));
    this.general.ReleaseStatus(status);
    throw new Error(message);
  }

  textAt(address) {
    const all = new Uint8Array(this.exports.memory.buffer);
    return new TextDecoder().decode(all.slice(address, all.indexOf(0, address)));
  }

  // Calls `f` with memory for arguments, which is freed afterwards.
  scoped(f) {
    const scope = new Scope(this);
    try {
      return f(scope);
    } finally {
      scope.free();
    }
  }
}

const kExtensionVersion = 2, kWarnings = 2, kArena = 1;

// Memory for the arguments of calls, and values to release after them.
class Scope {
  constructor(ortrain) {
    this.ortrain = ortrain;
    this.blocks = [];
    this.values = [];
  }

  free() {
    for (const value of this.values) this.ortrain.general.ReleaseValue(value);
    for (const block of this.blocks) this.ortrain.exports.free(block);
  }

  block(length) {
    const at = this.ortrain.exports.malloc(Math.max(1, length));
    if (at === 0) throw new Error(`out of memory while allocating ${length} bytes for an argument`);
    this.blocks.push(at);
    return at >>> 0;
  }

  bytes(content) {
    const given = ArrayBuffer.isView(content)
      ? new Uint8Array(content.buffer, content.byteOffset, content.byteLength)
      : new Uint8Array(content);
    const at = this.block(given.length);
    new Uint8Array(this.ortrain.exports.memory.buffer).set(given, at);
    return [at, given.length];
  }

  text(string) {
    return this.bytes(new TextEncoder().encode(`${string}\0`))[0];
  }

  pointers(addresses) {
    return this.bytes(Uint32Array.from(addresses))[0];
  }

  // What a call writes through its last argument.
  made(call) {
    const out = this.block(8);
    this.ortrain.view().setBigUint64(out, 0n, true);
    this.ortrain.check(call(out));
    return this.ortrain.view().getUint32(out, true);
  }

  name(call) {
    const at = this.made((out) => call(this.ortrain.allocator, out));
    const name = this.ortrain.textAt(at);
    this.ortrain.check(this.ortrain.general.AllocatorFree(this.ortrain.allocator, at));
    return name;
  }

  // The handle of a tensor over a copy of its values.
  value({ type, data, shape }) {
    const [at, length] = this.bytes(data);
    const [dimensions] = this.bytes(BigInt64Array.from(shape, BigInt));
    const { general, memoryInfo } = this.ortrain;
    const value = this.made((out) =>
      general.CreateTensorWithDataAsOrtValue(
        memoryInfo, at, length, dimensions, shape.length, kElements[type].type, out),
    );
    this.values.push(value);
    return value;
  }

  // The copy of a tensor, whose handle is released.
  taken(value) {
    this.values.push(value);
    const { general } = this.ortrain;
    const info = this.made((out) => general.GetTensorTypeAndShape(value, out));
    try {
      const rank = this.made((out) => general.GetDimensionsCount(info, out));
      const dimensions = this.block(8 * rank);
      this.ortrain.check(general.GetDimensions(info, dimensions, rank));
      const [name, kind] = kindOf(this.made((out) => general.GetTensorElementType(info, out)));
      const count = this.made((out) => general.GetTensorShapeElementCount(info, out));
      const data = this.made((out) => general.GetTensorMutableData(value, out));
      const { buffer } = this.ortrain.exports.memory;
      const shape = Array.from(new BigInt64Array(buffer.slice(dimensions, dimensions + 8 * rank)), Number);
      const bytes = buffer.slice(data, data + count * kind.array.BYTES_PER_ELEMENT);
      return new Tensor(name, new kind.array(bytes), shape);
    } finally {
      general.ReleaseTensorTypeAndShapeInfo(info);
    }
  }
}

// A training session. Its files are given, and returned, as bytes.
export class TrainingSession {
  // `artifacts` has the bytes of the checkpoint and of the models: checkpoint, training, evaluation, optimizer. The last two may
  // be missing: there are no evaluation steps then, or no optimizer steps.
  constructor(ortrain, { checkpoint, training, evaluation, optimizer }) {
    this.ortrain = ortrain;
    ortrain.scoped((scope) => {
      this.state = scope.made((out) => ortrain.training.LoadCheckpointFromBuffer(...scope.bytes(checkpoint), out));
      const models = [training, evaluation, optimizer].flatMap((model) => (model ? scope.bytes(model) : [0, 0]));
      try {
        this.session = scope.made((out) =>
          ortrain.training.CreateTrainingSessionFromBuffer(
            ortrain.environment, ortrain.options, this.state, ...models, out),
        );
      } catch (error) {
        ortrain.training.ReleaseCheckpointState(this.state);
        throw error;
      }
    });
  }

  // Frees the memory of the session, which cannot be used afterwards.
  release() {
    this.ortrain.training.ReleaseTrainingSession(this.session);
    this.ortrain.training.ReleaseCheckpointState(this.state);
    this.session = this.state = 0;
  }

  // Computes the outputs of the training model, the loss first, and adds to the gradients.
  trainStep(inputs) {
    return this.step("TrainStep", "TrainingSessionGetTrainingModelOutputCount", inputs);
  }

  evalStep(inputs) {
    return this.step("EvalStep", "TrainingSessionGetEvalModelOutputCount", inputs);
  }

  step(name, counting, inputs) {
    const { ortrain, session } = this;
    return ortrain.scoped((scope) => {
      const count = scope.made((out) => ortrain.training[counting](session, out));
      const given = scope.pointers(inputs.map((input) => scope.value(input)));
      const outputs = scope.pointers(new Array(count).fill(0));
      ortrain.check(ortrain.training[name](session, 0, inputs.length, given, count, outputs));
      const handles = new Uint32Array(ortrain.exports.memory.buffer.slice(outputs, outputs + 4 * count));
      return Array.from(handles, (handle) => scope.taken(handle));
    });
  }

  optimizerStep() {
    this.ortrain.check(this.ortrain.training.OptimizerStep(this.session, 0));
  }

  // The next training step overwrites the gradients.
  lazyResetGrad() {
    this.ortrain.check(this.ortrain.training.LazyResetGrad(this.session));
  }

  get learningRate() {
    const { ortrain, session } = this;
    return ortrain.scoped((scope) => {
      const at = scope.block(4);
      ortrain.check(ortrain.training.GetLearningRate(session, at));
      return ortrain.view().getFloat32(at, true);
    });
  }

  set learningRate(rate) {
    this.ortrain.check(this.ortrain.training.SetLearningRate(this.session, rate));
  }

  // From `initial` up over the first `warmup` steps and down to 0 at step `total`.
  registerLinearSchedule(warmup, total, initial) {
    const { training } = this.ortrain;
    this.ortrain.check(training.RegisterLinearLRScheduler(this.session, BigInt(warmup), BigInt(total), initial));
  }

  schedulerStep() {
    this.ortrain.check(this.ortrain.training.SchedulerStep(this.session));
  }

  // The parameters by name.
  parameters() {
    const { ortrain, state } = this;
    return ortrain.scoped((scope) => {
      const count = scope.made((out) => ortrain.extension.CheckpointGetParameterCount(state, out));
      const found = new Map();
      for (let i = 0; i < count; ++i) {
        const name = scope.name((allocator, out) =>
          ortrain.extension.CheckpointGetParameterName(state, i, allocator, out),
        );
        const value = scope.made((out) =>
          ortrain.training.GetParameter(state, scope.text(name), ortrain.allocator, out),
        );
        found.set(name, scope.taken(value));
      }
      return found;
    });
  }

  // The bytes of a checkpoint.
  save(includeOptimizerState = true) {
    const { ortrain, state } = this;
    return this.file("checkpoint", (path) =>
      ortrain.training.SaveCheckpoint(state, path, includeOptimizerState ? 1 : 0),
    );
  }

  // The bytes of an ONNX model that computes these outputs with the trained parameters.
  exportModel(outputs) {
    const { ortrain, session } = this;
    return this.file("model.onnx", (path, scope) => {
      const names = scope.pointers(outputs.map((output) => scope.text(output)));
      return ortrain.training.ExportModelForInferencing(session, path, outputs.length, names);
    });
  }

  // What a call writes into a file.
  file(name, call) {
    const { ortrain } = this;
    ortrain.scoped((scope) => ortrain.check(call(scope.text(`/${name}`), scope)));
    const bytes = ortrain.files.read(name);
    ortrain.files.remove(name);
    return bytes;
  }
}
