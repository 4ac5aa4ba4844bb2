"""Weights apart from their models: written when asked or above 2 GB, mapped by sessions, run by onnxruntime."""

from __future__ import annotations

import json
import math
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from ortrain import artifacts
from ortrain._files.weights import load_with_weights_apart, write_copy
from ortrain.api import CheckpointState
from ortrain.artifacts import LoRA
from recorded import Fixture
from system import needs_proc
from training import Training


def run(path: pathlib.Path, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(path)
    return np.asarray(session.run(None, {session.get_inputs()[0].name: x})[0])


def places_of(path: pathlib.Path) -> dict[str, tuple[str, int]]:
    """The file and the offset of each initializer that is apart."""
    graph = onnx.load(path, load_external_data=False).graph
    entries = {
        t.name: {e.key: e.value for e in t.external_data} for t in graph.initializer if t.data_location
    }
    return {name: (found["location"], int(found["offset"])) for name, found in entries.items()}


def test_an_export_has_its_weights_apart_when_asked(tmp_path: pathlib.Path) -> None:
    fixture = Fixture("encoder")
    artifacts.generate_artifacts(
        fixture.path("model.onnx"),
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=tmp_path,
    )
    outputs = []
    for config in ({}, {"ortrain.external_data": "always"}):
        file = tmp_path / f"{len(config)}.onnx"
        Training(tmp_path, config).module.export_model_for_inferencing(str(file), ["output"])
        outputs.append(run(file, fixture.batches[0][0]))
    np.testing.assert_array_equal(*outputs)
    assert not (tmp_path / "0.onnx.data").exists()
    places = places_of(tmp_path / "1.onnx")
    assert {file for file, _ in places.values()} == {"1.onnx.data"}
    assert all(offset % 4096 == 0 for _, offset in places.values())
    assert (tmp_path / "1.onnx").stat().st_size < (tmp_path / "0.onnx").stat().st_size / 2
    with pytest.raises(ValueError, match=r"ortrain\.external_data"):
        Training(tmp_path, {"ortrain.external_data": "never"})


LOOKS_UP = """
import re, sys
import numpy as np
from ortrain import InferenceSession

def anonymous():
    with open("/proc/self/status") as status:
        return int(re.search(r"RssAnon:\\s+(\\d+)", status.read())[1]) << 10

before = anonymous()
session = InferenceSession(sys.argv[1])
rows = session.run(None, {"i": np.array([1, 99_999])})[0]
print(anonymous() - before, rows.tolist())
"""


@needs_proc
def test_an_inference_session_maps_external_data(tmp_path: pathlib.Path) -> None:
    table = np.arange(100_000 * 128, dtype=np.float32).reshape(100_000, 128)
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "i"], ["y"])],
        "g",
        [helper.make_tensor_value_info("i", TensorProto.INT64, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 128])],
        [numpy_helper.from_array(table, "table")],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data")
    ran = subprocess.run(
        [sys.executable, "-c", LOOKS_UP, str(tmp_path / "m.onnx")],
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    grown, rows = ran.stdout.split(" ", 1)
    assert int(grown) < table.nbytes / 4
    np.testing.assert_array_equal(json.loads(rows), table[[1, 99_999]])


@pytest.mark.parametrize("given_apart", [True, False])
def test_artifacts_share_a_file_with_their_constants(given_apart: bool, tmp_path: pathlib.Path) -> None:
    fixture = Fixture("encoder")
    path = tmp_path / "model.onnx"
    shutil.copy(fixture.path("model.onnx"), path)
    large = tmp_path / "large.onnx"
    model = onnx.load(path)
    # A table that is large enough to stay in its file, and that the loss depends on.
    table = np.random.default_rng(0).normal(
        size=(300, model.graph.output[0].type.tensor_type.shape.dim[-1].dim_value)
    )
    name = model.graph.output[0].name
    model.graph.initializer.append(numpy_helper.from_array(table.astype(np.float32), "table.weight"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(0, np.int64), "axis"))
    model.graph.node.append(helper.make_node("ReduceMean", ["table.weight"], ["row"], axes=[0], keepdims=0))
    model.graph.node.append(helper.make_node("Add", [name, "row"], ["moved"], "moved"))
    model.graph.output[0].name = "moved"
    onnx.save(model, large, save_as_external_data=given_apart, location="large.data", size_threshold=1024)
    lora = LoRA(r=2)
    losses = []
    for external in (None, True):
        folder = tmp_path / str(external)
        report = artifacts.generate_artifacts(
            large if external or not given_apart else onnx.load(large),
            adapter=lora,
            loss=artifacts.LossType.CrossEntropyLoss,
            artifact_directory=folder,
            external_data=external,
        )
        losses.append([Training(folder).step(*batch) for batch in fixture.batches[:2]])
        assert report.weights == (folder / "weights.data" if external else None)
    assert losses[0] == losses[1]
    training, evaluation = (
        places_of(tmp_path / "True" / f"{kind}_model.onnx") for kind in ("training", "eval")
    )
    assert {file for file, _ in training.values()} == {"weights.data"}
    assert all(training[name] == place for name, place in evaluation.items() if name in training)
    assert set(training) & set(evaluation)


SIZES = {"layers": 33, "width": 4096}  # 33 matrices of 64 MB, 2.2 GB
SMALLER = {"layers": 24, "width": 1536}  # 24 matrices of 9 MB, 226 MB
PEAK = """
import json, sys
from ortrain import artifacts, cli

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

def make(model, folder, kind):
    lora = artifacts.LoRA(r=4) if kind == "lora" else None
    artifacts.generate_artifacts(
        model, adapter=lora, loss=artifacts.LossType.MSELoss, optimizer=artifacts.OptimType.SGD, artifact_directory=folder
    )

before = peak()
code = make(*sys.argv[2:]) if sys.argv[1] == "make" else cli.main(sys.argv[1:])
print(json.dumps([peak(), peak() - before]))
sys.exit(code)
"""


def peak_of(*command: object) -> list[int]:
    """Run a command of ortrain in a process; return its peak resident memory, and that without the imports."""
    ran = subprocess.run(
        [sys.executable, "-c", PEAK, *map(str, command)],
        check=True, capture_output=True, text=True, timeout=1200,
    )  # fmt: skip
    found: list[int] = json.loads(ran.stdout.splitlines()[-1])
    return found


def model_over_2_gb(path: pathlib.Path, sizes: dict[str, int] = SIZES) -> int:
    """Write a model of square matrices with a few numbers each, in a file with holes; return the bytes of its weights."""
    layers, width = sizes["layers"], sizes["width"]
    nodes, tensors, bytes_of_one = [], [], 4 * width * width
    with open(path.with_suffix(".data"), "wb") as data:
        for layer in range(layers):
            data.seek(layer * bytes_of_one)
            data.write(np.full(width, (layer + 1) / 100, np.float32).tobytes())
            tensor = TensorProto(name=f"fc{layer}.weight", data_type=TensorProto.FLOAT, dims=[width, width])
            tensor.data_location = TensorProto.EXTERNAL
            entries = {"location": "large.data", "offset": layer * bytes_of_one, "length": bytes_of_one}
            for key, value in entries.items():
                tensor.external_data.add(key=key, value=str(value))
            tensors.append(tensor)
            source = f"h{layer}" if layer else "x"
            nodes.append(helper.make_node("MatMul", [source, tensor.name], [f"h{layer + 1}"], f"fc{layer}"))
        data.truncate(layers * bytes_of_one)
    nodes[-1].output[0] = "y"
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width]) for name in "xy"]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return layers * bytes_of_one


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["lora", "all"])
def test_a_model_of_more_than_2_gb_becomes_artifacts_and_an_export(kind: str, tmp_path: pathlib.Path) -> None:
    size = model_over_2_gb(tmp_path / "large.onnx")
    assert size > 2.2e9
    folder = tmp_path / "artifacts"
    assert peak_of("make", tmp_path / "large.onnx", folder, kind)[0] < 1.3 * size
    training = Training(folder)
    x = np.random.default_rng(0).normal(size=(1, SIZES["width"])).astype(np.float32)
    assert math.isfinite(training.step(x, x))
    exported = tmp_path / "exported.onnx"
    training.module.export_model_for_inferencing(str(exported), ["y"])
    assert (tmp_path / "exported.onnx.data").stat().st_size >= size
    del training
    assert run(exported, x).shape == (1, SIZES["width"])


def exports_of(folder: pathlib.Path, given: pathlib.Path, bits: str) -> dict[str, list[object]]:
    """The ways to export artifacts with adapters, by the name of the result."""
    if bits:
        kinds = ("dequantized", "requantized")
        return {kind: [folder, "--adapters", kind] for kind in kinds} | {
            "inside": [folder, "--external-data"]
        }
    return {
        "merged": [folder, "--adapters", "merged"],
        "into": [folder, "--adapters", "merged", "--into", given],
        "apart": [folder, "--adapters", "apart"],
        "inside": [folder, "--external-data"],
    }


def check_peaks(tmp_path: pathlib.Path, sizes: dict[str, int], bits: str, most: Callable[..., bool]) -> None:
    """Quantize, make artifacts and export, each in a process whose peaks, with the size of the model, `most` accepts."""
    given = tmp_path / "large.onnx"
    size = model_over_2_gb(given, sizes)
    if bits:
        small = tmp_path / "small.onnx"
        assert most(*peak_of("quantize", given, small, "--bits", bits), size)
        given = small
    folder = tmp_path / "artifacts"
    options = ["--loss", "mse", "--adapter", "lora", "--out", folder]
    assert most(*peak_of("artifacts", given, *options), size)
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    for number, (name, parameter) in enumerate(state.parameters):
        rng = np.random.default_rng(number)
        state.parameters[name] = rng.normal(0, 0.01, parameter.data.shape).astype(np.float32)
    CheckpointState.save_checkpoint(state, folder / "best.ckpt")
    x = np.random.default_rng(0).normal(size=(2, sizes["width"])).astype(np.float32)
    outputs: dict[str, np.ndarray] = {}
    for name, (source, *others) in exports_of(folder, given, bits).items():
        file = tmp_path / f"{name}.onnx"
        assert most(*peak_of("export", source, file, *others), size), name
        outputs[name] = run(file, x) if name != "apart" else np.zeros(0)
        assert not list(tmp_path.glob(".ortrain-*"))
        for path in tmp_path.glob(f"{name}.*"):
            path.unlink()
    expected = outputs.pop("inside")
    for name in outputs.keys() - {"apart", "requantized"}:
        np.testing.assert_allclose(outputs[name], expected, atol=1e-4 * np.abs(expected).max())


@needs_proc
@pytest.mark.parametrize("bits", ["", "4", "8"])
def test_commands_hold_one_weight_of_a_model_in_memory_at_a_time(bits: str, tmp_path: pathlib.Path) -> None:
    # Mapped weights count too where a session is open: the export by itself.
    check_peaks(tmp_path, SMALLER, bits, lambda _, grown, size: grown < 1.3 * size)


@pytest.mark.thorough
@pytest.mark.parametrize("bits", ["", "4", "8"])
def test_commands_on_a_model_of_more_than_2_gb_peak_below_1_3_of_it(
    bits: str, tmp_path: pathlib.Path
) -> None:
    check_peaks(tmp_path, SIZES, bits, lambda peak, _, size: peak < 1.3 * size)


EXPORTS = """
import sys
import numpy as np
from ortrain.api import CheckpointState, Module, Optimizer

def resident(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))

folder, made, width = sys.argv[1:]
state = CheckpointState.load_checkpoint(f"{folder}/checkpoint")
module = Module(f"{folder}/training_model.onnx", state, f"{folder}/eval_model.onnx")
optimizer = Optimizer(f"{folder}/optimizer_model.onnx", module)
x = np.random.default_rng(0).normal(size=(1, int(width))).astype(np.float32)
module.train()(x, x)
optimizer.step()
for number, (name, parameter) in enumerate(state.parameters):
    rng = np.random.default_rng(number)
    state.parameters[name] = rng.normal(0, float(width) ** -0.5, parameter.data.shape).astype(np.float32)
CheckpointState.save_checkpoint(state, f"{folder}/last.ckpt", include_optimizer_state=True)
open("/proc/self/clear_refs", "w").write("5")  # the peak is the current size
before = resident("VmRSS")
module.export_model_for_inferencing(made, ["y"])
print(resident("VmHWM") - before)
"""


def check_export_of_all_weights(
    folder: pathlib.Path, sizes: dict[str, int], most: Callable[..., bool]
) -> None:
    """Train all weights of a model with AdamW, and export and run them from a checkpoint with the moments."""
    given, trained, expected = folder / "large.onnx", folder / "artifacts", folder / "expected.onnx"
    size = model_over_2_gb(given, sizes)
    artifacts.generate_artifacts(
        given,
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=trained,
    )
    ran = subprocess.run(
        [sys.executable, "-c", EXPORTS, str(trained), str(expected), str(sizes["width"])],
        check=True, capture_output=True, text=True, timeout=1200,
    )  # fmt: skip
    assert int(ran.stdout) < 0.1 * size
    x = np.random.default_rng(1).normal(size=(2, sizes["width"])).astype(np.float32)
    outputs = run(expected, x)
    assert np.abs(outputs).max() > 0.1  # those of the untrained weights are close to 0
    for options in ([], ["--external-data"]):
        made = folder / "made.onnx"
        assert most(*peak_of("export", trained, made, "--output", "y", *options), size), options
        np.testing.assert_array_equal(run(made, x), outputs)
    rows = folder / "rows.npz"
    np.savez(rows, x=x, target=outputs)
    assert most(*peak_of("evaluate", trained, "--data", rows), size)
    # A prediction exports the model and runs that: the pages of two files count, and the weights of a session.
    _, grown = peak_of("predict", trained, "--data", rows, "--output", "y")
    assert grown < 3.3 * size


@needs_proc
def test_an_export_of_all_weights_holds_them_once(tmp_path: pathlib.Path) -> None:
    check_export_of_all_weights(tmp_path, SMALLER, lambda _, grown, size: grown < 1.3 * size)


@pytest.mark.thorough
def test_an_export_of_all_weights_of_more_than_2_gb_peaks_below_1_3_of_them(tmp_path: pathlib.Path) -> None:
    check_export_of_all_weights(tmp_path, SIZES, lambda peak, _, size: peak < 1.3 * size)


def test_a_weight_of_any_type_survives_being_written_apart_and_back(tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=(300, 400)).astype(np.float32)
    tensors = [
        numpy_helper.from_array(numbers, "float"),
        numpy_helper.from_array(numbers.astype(np.float16), "half"),
    ]
    tensors += [helper.make_tensor("codes", TensorProto.INT4, [300, 401], rng.integers(-8, 8, 300 * 401))]
    tensors += [helper.make_tensor("brain", TensorProto.BFLOAT16, numbers.shape, numbers.ravel())]
    model = helper.make_model(
        helper.make_graph([], "g", [], [], [*tensors, numpy_helper.from_array(np.arange(3), "small")], "a graph"),
        producer_name="someone", opset_imports=[helper.make_opsetid("", 21)], ir_version=10,
    )  # fmt: skip
    helper.set_model_props(model, {"key": "value"})
    write_copy(model, tmp_path / "apart.onnx", True)
    assert {"float", "half", "codes", "brain"} == set(places_of(tmp_path / "apart.onnx"))
    write_copy(load_with_weights_apart(tmp_path / "apart.onnx"), tmp_path / "whole.onnx", False)
    found = onnx.load(tmp_path / "whole.onnx", load_external_data=False)
    for before, after in zip(model.graph.initializer, found.graph.initializer, strict=True):
        np.testing.assert_array_equal(numpy_helper.to_array(before), numpy_helper.to_array(after))
    del model.graph.initializer[:], found.graph.initializer[:]
    assert found == model
