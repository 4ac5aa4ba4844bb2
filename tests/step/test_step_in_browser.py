"""examples/step_in_browser: its loop, run by Node.js, with stock onnxruntime behind the calls of onnxruntime-web."""

from __future__ import annotations

import base64
import json
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import numpy as np
import onnxruntime
import pytest
from ortrain import step

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "examples/step_in_browser"
STEPS, BATCH, RATE = 8, 16, 0.01
#: The part of onnxruntime-web that the page uses. A run is a line of JSON, and its answer another. As onnxruntime-web does, it
#: takes values for the inputs of the model alone, and of the declared types.
_WEB = """
import {{ readFileSync, readSync, writeSync }} from "node:fs";
import {{ load, train }} from {script};

const ARRAYS = {{ float32: Float32Array, int64: BigInt64Array }};
class Tensor {{
  constructor(type, data, dims) {{
    if (!(data instanceof ARRAYS[type])) throw new Error(`${{type}} data expected`);
    if (data.length !== dims.reduce((a, b) => a * b, 1)) throw new Error(`${{data.length}} elements for ${{dims}}`);
    Object.assign(this, {{ type, data, dims, location: "cpu" }});
  }}
}}
function line() {{
  const byte = Buffer.alloc(1), bytes = [];
  while (readSync(0, byte, 0, 1) && byte[0] !== 10) bytes.push(byte[0]);
  return JSON.parse(Buffer.from(bytes).toString());
}}
const bytes = (data) => Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString("base64");
const session = {{
  async run(feeds) {{
    const sent = Object.entries(feeds).map(([name, t]) => [name, t.type, bytes(t.data), t.dims]);
    writeSync(1, JSON.stringify(sent) + "\\n");
    return Object.fromEntries(line().map(([name, type, data, dims]) => {{
      const raw = Uint8Array.from(Buffer.from(data, "base64"));
      return [name, new Tensor(type, new ARRAYS[type](raw.buffer), dims)];
    }}));
  }},
}};
const ort = {{ Tensor, InferenceSession: {{ create: async () => session }} }};
const read = async (name) => Uint8Array.from(readFileSync({folder} + "/" + name)).buffer;
await train(ort, await load(read), {{ steps: {steps}, batch: {batch}, rate: {rate} }});
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("page")
    subprocess.run([sys.executable, str(FOLDER / "prepare.py"), str(folder)], check=True, timeout=300)
    return folder


def losses_of_the_page(folder: pathlib.Path) -> list[float]:
    script = json.dumps((FOLDER / "train.js").as_uri())
    program = folder / "page.mjs"
    program.write_text(
        _WEB.format(script=script, folder=json.dumps(str(folder)), steps=STEPS, batch=BATCH, rate=RATE)
    )
    session = onnxruntime.InferenceSession(folder / "step.onnx", providers=["CPUExecutionProvider"])
    kinds = {"float32": np.float32, "int64": np.int64}
    outputs = [value.name for value in session.get_outputs()]
    inputs = {value.name for value in session.get_inputs()}
    losses = []
    with subprocess.Popen(
        ["node", "--input-type=module", "--eval", f"import {json.dumps(program.as_uri())}"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as page:  # fmt: skip
        assert page.stdout is not None
        assert page.stdin is not None
        for line in page.stdout:
            feeds: dict[str, Any] = {
                name: np.frombuffer(base64.b64decode(data), kinds[kind]).reshape(dims)
                for name, kind, data, dims in json.loads(line)
            }
            assert set(feeds) == inputs
            found = dict(zip(outputs, session.run(outputs, feeds), strict=True))
            losses.append(float(found[outputs[0]]))
            answer = [
                [
                    name,
                    str(v.dtype),
                    base64.b64encode(np.ascontiguousarray(v).tobytes()).decode(),
                    list(v.shape),
                ]
                for name, v in found.items()
            ]
            page.stdin.write(json.dumps(answer) + "\n")
            page.stdin.flush()
    assert page.returncode == 0
    return losses


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_the_page_takes_the_steps_of_a_session(folder: pathlib.Path) -> None:
    described = json.loads((folder / "step.json").read_text())
    images = np.fromfile(folder / "images.bin", np.float32).reshape(-1, *described["image"])
    labels = np.fromfile(folder / "labels.bin", np.uint8).astype(np.int64)
    there = step.Session(folder / "step.onnx", checkpoint=folder / "checkpoint", learning_rate=RATE)
    batches = [slice(i * BATCH, (i + 1) * BATCH) for i in range(STEPS)]
    expected = [float(there(images[part], labels[part])) for part in batches]
    assert losses_of_the_page(folder) == pytest.approx(expected, rel=1e-6)
    assert expected[-1] < expected[0]
