// Trains a step model with onnxruntime-web: the outputs of a step are the inputs of the next.

/** Reads what prepare.py wrote. `read(name)` returns a promise of an ArrayBuffer. */
export async function load(read) {
  const text = new TextDecoder().decode(await read("step.json"));
  const { about, shapes, image, count } = JSON.parse(text);
  const values = new Float32Array(await read("start.bin"));
  const state = {};
  let at = 0;
  for (const [name, dims] of Object.entries(shapes)) {
    const size = dims.reduce((a, b) => a * b, 1);
    state[name] = { data: values.slice(at, at + size), dims };
    at += size;
  }
  return {
    about,
    state,
    image,
    count,
    images: new Float32Array(await read("images.bin")),
    labels: new Uint8Array(await read("labels.bin")),
    model: new Uint8Array(await read("step.onnx")),
  };
}

/** Takes steps; `ort` is onnxruntime-web, `onStep(step, loss)` is called after each. */
export async function train(ort, data, { provider = "wasm", steps = 100, batch = 32, rate = 0.01, onStep }) {
  const { about } = data;
  const changed = Object.values(about.state);
  // On WebGPU what a step changes stays in the memory of the device; the loss is read.
  const locations = Object.fromEntries(changed.map((name) => [name, "gpu-buffer"]));
  delete locations["step.next"];
  const session = await ort.InferenceSession.create(data.model, {
    executionProviders: [provider],
    ...(provider === "webgpu" ? { preferredOutputLocation: locations } : {}),
  });
  let state = { step: new ort.Tensor("int64", BigInt64Array.of(0n), []) };
  for (const [name, { data: values, dims }] of Object.entries(data.state))
    state[name] = new ort.Tensor("float32", values, dims);
  const fixed = Object.fromEntries(
    about.frozen.filter((name) => !(name in about.state)).map((name) => [name, state[name]]),
  );
  const learningRate = new ort.Tensor("float32", Float32Array.of(rate), []);
  const size = data.image.reduce((a, b) => a * b, 1);

  for (let step = 0; step < steps; ++step) {
    const images = new Float32Array(batch * size), labels = new BigInt64Array(batch);
    for (let i = 0; i < batch; ++i) {
      const from = (step * batch + i) % data.count;
      images.set(data.images.subarray(from * size, (from + 1) * size), i * size);
      labels[i] = BigInt(data.labels[from]);
    }
    const inputs = [
      new ort.Tensor("float32", images, [batch, ...data.image]),
      new ort.Tensor("int64", labels, [batch]),
    ];
    const results = await session.run({
      ...fixed,
      ...state,
      ...Object.fromEntries(about.batch.map((name, i) => [name, inputs[i]])),
      learning_rate: learningRate,
    });
    for (const [name, tensor] of Object.entries(state))
      if (!(name in fixed) && tensor.location === "gpu-buffer") tensor.dispose();
    state = Object.fromEntries(Object.entries(about.state).map(([before, after]) => [before, results[after]]));
    const loss = results[about.outputs[0]];
    onStep?.(step + 1, loss.data[0]);
  }
  return { session, state: { ...fixed, ...state } };
}
