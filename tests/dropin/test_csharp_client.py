"""A C# program that was compiled against onnxruntime's public members, and nothing of ours, runs on our assembly."""

from __future__ import annotations

import os
from pathlib import Path

import both
import numpy as np
import onnx
import pytest
import reference_assembly
from languages import Missing, Program, built, call_compiler, library_folder, skip_or_fail, tool
from onnx import TensorProto, helper, numpy_helper
from ortrain import artifacts

HERE = Path(__file__).parent
WEIGHT = np.ones((3, 2), np.float32)
BIAS = np.array([10, 20], np.float32)
# Members of the reference hide members of their bases, and nothing there is used or assigned.
REFERENCE_OPTIONS = ["-target:library", "-langversion:7.2", "-nowarn:108,114,169,649,660,661", "-delaysign+"]


def save(folder: Path, name: str, nodes: list[onnx.NodeProto], x: onnx.TypeProto, y: onnx.TypeProto) -> None:
    inputs, outputs = [helper.make_value_info("x", x)], [helper.make_value_info("y", y)]
    weights = [numpy_helper.from_array(WEIGHT, "w"), numpy_helper.from_array(BIAS, "b")]
    graph = helper.make_graph(nodes, name, inputs, outputs, weights if name == "affine" else [])
    opsets = [helper.make_opsetid(d, v) for d, v in (("", 17), ("ai.onnx.ml", 1), ("test.custom", 1))]
    model = helper.make_model(
        graph, opset_imports=opsets, ir_version=8, producer_name="tests", model_version=7
    )
    helper.set_model_props(model, {"key": "ä"})
    onnx.save(model, folder / f"{name}.onnx")


def map_of(key: int, value: int) -> onnx.TypeProto:
    return helper.make_map_type_proto(key, helper.make_tensor_type_proto(value, []))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models and training artifacts that the client opens."""
    folder = tmp_path_factory.mktemp("models")
    rows = helper.make_tensor_type_proto(TensorProto.FLOAT, ["batch", 3])
    results = helper.make_tensor_type_proto(TensorProto.FLOAT, ["batch", 2])
    numbers = helper.make_tensor_type_proto(TensorProto.FLOAT, [None])
    save(folder, "affine", [helper.make_node("Gemm", ["x", "w", "b"], ["y"])], rows, results)
    words = helper.make_node(
        "DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml", string_vocabulary=["fig", "kiwi", "pear"]
    )
    save(folder, "vectorize", [words], map_of(TensorProto.STRING, TensorProto.FLOAT), rows)
    zipped = helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_strings=["no", "yes"])
    labelled = helper.make_sequence_type_proto(map_of(TensorProto.STRING, TensorProto.FLOAT))
    save(folder, "zip", [zipped], results, labelled)
    scaled = helper.make_node("Scaled", ["x"], ["y"], domain="test.custom", scale=3.0)
    save(folder, "scaled", [scaled], numbers, numbers)
    (folder / "artifacts").mkdir()
    artifacts.generate_artifacts(
        onnx.load(folder / "affine.onnx"),
        requires_grad=["w", "b"],
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=folder / "artifacts",
    )
    return folder


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """The client, compiled against the recorded members, beside our assembly."""
    folder = tmp_path_factory.mktemp("client")
    try:
        compiler, runtime = tool("mcs", "mono-mcs"), tool("mono", "mono-runtime")
        ours = built("build/csharp/Microsoft.ML.OnnxRuntime.dll", "csharp")
    except Missing as why:
        skip_or_fail("csharp", why)
    source, reference = folder / "reference.cs", folder / "Microsoft.ML.OnnxRuntime.dll"
    source.write_text(reference_assembly.source())
    # The client refers to a strong name, with a key that is not ours.
    (folder / "other.snk").write_bytes(reference_assembly.public_key())
    call_compiler([compiler, *REFERENCE_OPTIONS, f"-keyfile:{folder}/other.snk", f"-out:{reference}", source])
    program = folder / "client.exe"
    call_compiler([compiler, "-langversion:7.2", f"-r:{reference}", f"-out:{program}", HERE / "Client.cs"])
    reference.unlink()
    (folder / reference.name).symlink_to(ours)
    return Program([runtime, str(program)], {"LD_LIBRARY_PATH": str(library_folder())})


def losses(steps: int) -> list[float]:
    """What a linear layer loses in steps of gradient descent."""
    w, b, x = WEIGHT.astype(np.float64), BIAS.astype(np.float64), np.array([[1.0, 2.0, 3.0]])
    found = []
    for _ in range(steps):
        y = x @ w + b
        found.append(float((y**2).mean()))
        dy = 2 * y / y.size
        w, b = w - 0.01 * x.T @ dy, b - 0.01 * dy[0]
    return found


def test_a_client_of_onnxruntime_runs(client: Program, folder: Path, tmp_path: Path) -> None:
    library = both.compile_program(tmp_path, "custom_library.c", "libcustom.so", ["-shared", "-fPIC"])
    ran = client.run([folder, library])
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    unavailable = "{} execution provider is not enabled in this build; available: CPUExecutionProvider"
    printed = [line for line in ran.stdout.splitlines() if not line.startswith("loss: ")]
    expected = [
        "created: True ORT_LOGGING_LEVEL_ERROR",
        "providers: CPUExecutionProvider",
        "model: tests 7 ä",
        "input: Single -1,3 batch, True Float",
        "y: 16 26",
        "shape: 1,2 Float 2",
        "y: 25 35",
        "later: 25 35",
        "wrong input: ",
        "half: 15872 -1.5 True True",
        "map: String Float ONNX_TYPE_TENSOR",
        "vectorized: 2 0 3",
        "sequence of maps: String Float",
        "row: no=0.5 yes=0.25",
        "type: Int64 ONNX_TYPE_TENSOR",
        "visited 7: 1.5",
        "strings: a bé",
        "registered: 3 6",
        "handle: True",
        "registered again: 3 6",
        "no library: ",
        "extensions: [ErrorCode:NoSuchFile] RegisterOrtExtensions: the native library 'ortextensions' was not found",
        "allocation: 8 Cpu True",
        "bound y: 13 23",
        "device: CPUExecutionProvider CPU 0",
        f"CUDA: [ErrorCode:Fail] CreateCUDAProviderOptions: {unavailable.format('CUDA')}",
        "CUDA: ",
        f"Tensorrt: [ErrorCode:Fail] CreateTensorRTProviderOptions: {unavailable.format('TensorRT')}",
        f"ROCm: [ErrorCode:Fail] CreateROCMProviderOptions: {unavailable.format('ROCM')}",
        "XNNPACK: ",
        "inputs: x target",
        "property: 3",
    ]
    assert [line[: len(wanted)] for line, wanted in zip(printed, expected, strict=True)] == expected
    assert "CPUExecutionProvider" in printed[expected.index("CUDA: ")]
    assert "CPUExecutionProvider" in printed[expected.index("XNNPACK: ")]
    found = [float(line[6:]) for line in ran.stdout.splitlines() if line.startswith("loss: ")]
    np.testing.assert_allclose(found, losses(3), rtol=1e-5)
    onnxruntime = pytest.importorskip("onnxruntime", reason="it opens what was exported")
    trained = onnxruntime.InferenceSession(folder / "exported.onnx", providers=["CPUExecutionProvider"])
    y = trained.run(None, {"x": np.array([[1, 2, 3]], np.float32)})[0]
    np.testing.assert_allclose((y**2).mean(), losses(4)[-1], rtol=1e-5)


def test_extensions_are_registered_where_they_are(client: Program, folder: Path, tmp_path: Path) -> None:
    library = both.compile_program(tmp_path, "custom_library.c", "libortextensions.so", ["-shared", "-fPIC"])
    path = os.pathsep.join([client.environment["LD_LIBRARY_PATH"], str(tmp_path)])
    with_extensions = Program(client.command, {"LD_LIBRARY_PATH": path, "HAS_EXTENSIONS": "1"})
    ran = with_extensions.run([folder, library])
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
    assert "extensions: no error\nby extensions: 3 6\n" in ran.stdout
