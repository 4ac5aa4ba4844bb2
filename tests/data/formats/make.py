"""Write the samples of this folder: models in ORT format and an adapter, made by onnxruntime, with what it computes.

``python tests/data/formats/make.py`` with onnxruntime, onnx and numpy installed. The stored files were made by
onnxruntime-training 1.19.2, the adapters by onnxruntime 1.31.1, as 1.19 has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

HERE = Path(__file__).resolve().parent
FLOAT, INT64, BOOL, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING
Feed = dict[str, Any]
info = helper.make_tensor_value_info
node = helper.make_node
LEVELS = ort.GraphOptimizationLevel


def draw(*shape: int, seed: int = 0) -> Any:
    """Return small numbers."""
    return np.random.default_rng(seed).integers(-8, 8, shape).astype(np.float32) / 8


def model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    tensors: Feed | None = None,
    **more: Any,
) -> ModelProto:
    """Return a model, with the inputs whose names are those of tensors as initializers that a run may replace."""
    initializers = [
        numpy_helper.from_array(np.asarray(value), name) for name, value in (tensors or {}).items()
    ]
    graph = helper.make_graph(nodes, "sample", inputs, outputs, initializers, **more)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="ortrain tests")
    made.doc_string, made.graph.doc_string, made.model_version = "a sample", "its graph", 5
    helper.set_model_props(made, {"key": "text"})
    return made


def branches() -> tuple[ModelProto, Feed]:
    """An If whose branches read outer values, a Loop with a Scan in it, constants, and a value that runs may replace."""
    then = helper.make_graph([node("Add", ["d", "two"], ["t"])], "then", [], [info("t", FLOAT, ["n"])])
    other = helper.make_graph([node("Neg", ["d"], ["e"])], "other", [], [info("e", FLOAT, ["n"])])
    inner = helper.make_graph(
        [node("Add", ["acc", "element"], ["next"]), node("Identity", ["next"], ["each"])],
        "inner",
        [info("acc", FLOAT, []), info("element", FLOAT, [])],
        [info("next", FLOAT, []), info("each", FLOAT, [])],
    )
    body = helper.make_graph(
        [
            node("Scan", ["zero", "carried"], ["sum", "sums"], body=inner, num_scan_inputs=1),
            node("Identity", ["go"], ["still"]),
        ],
        "body",
        [info("i", INT64, []), info("go", BOOL, []), info("carried", FLOAT, ["n"])],
        [info("still", BOOL, []), info("sums", FLOAT, ["n"])],
    )
    nodes = [
        node("Constant", [], ["two"], value=numpy_helper.from_array(np.float32(2))),
        node("Constant", [], ["zero"], value_float=0.0),
        node("Constant", [], ["trips"], value_int=2),
        node("Mul", ["x", "two"], ["m"]),
        node("Concat", ["m", "x", "w"], ["d"], axis=0),
        node("If", ["c"], ["chosen"], then_branch=then, else_branch=other),
        node("Loop", ["trips", "c", "chosen"], ["y"], body=body),
        node("Clip", ["y", "", "two"], ["z"]),
    ]
    inputs = [info("x", FLOAT, ["b"]), info("c", BOOL, []), info("w", FLOAT, [2])]
    outputs = [info("y", FLOAT, None), info("z", FLOAT, None)]
    made = model(nodes, inputs, outputs, {"w": draw(2)})
    return made, {"x": draw(3, seed=1), "c": np.array(True)}


def fused() -> tuple[ModelProto, Feed]:
    """A convolution, a Gelu and a layer normalization, which onnxruntime turns into its fused nodes."""
    nodes = [
        node("Conv", ["x", "k"], ["conv"], pads=[1, 1, 1, 1]),
        node("Relu", ["conv"], ["relu"]),
        node("Flatten", ["relu"], ["flat"]),
        node("Gemm", ["flat", "w", "b"], ["gemm"]),
        node("Div", ["gemm", "root"], ["scaled"]),
        node("Erf", ["scaled"], ["erf"]),
        node("Add", ["erf", "one"], ["shifted"]),
        node("Mul", ["gemm", "shifted"], ["product"]),
        node("Mul", ["product", "half"], ["gelu"]),
        node("LayerNormalization", ["gelu", "scale", "bias"], ["y"]),
    ]
    tensors = {
        "k": draw(4, 1, 3, 3), "w": draw(64, 3, seed=2), "b": draw(3, seed=3), "root": np.float32(2**0.5),
        "one": np.float32(1), "half": np.float32(0.5), "scale": draw(3, seed=4), "bias": draw(3, seed=5),
    }  # fmt: skip
    made = model(nodes, [info("x", FLOAT, ["n", 1, 4, 4])], [info("y", FLOAT, ["n", 3])], tensors)
    return made, {"x": draw(2, 1, 4, 4, seed=6)}


def words() -> tuple[ModelProto, Feed]:
    """Strings as an initializer, in a constant and in an attribute, and as an input and an output."""
    nodes = [
        node("Constant", [], ["more"], value_strings=["one", "", "\u00e9t\u00e9"]),
        node("Concat", ["x", "known", "more"], ["all"], axis=0),
        node(
            "StringNormalizer",
            ["all"],
            ["y"],
            case_change_action="NONE",
            stopwords=["stop"],
            is_case_sensitive=1,
            locale="C",
        ),
    ]
    tensors = {"known": np.array(["stop", "go"], dtype=object)}
    made = model(nodes, [info("x", STRING, ["n"])], [info("y", STRING, ["m"])], tensors)
    return made, {"x": np.array(["a", "stop"], dtype=object)}


def sparse() -> tuple[ModelProto, Feed]:
    """A sparse initializer and a sparse constant."""

    def tensor(name: str, indices: Any) -> onnx.SparseTensorProto:
        values = numpy_helper.from_array(draw(2, seed=7) + 2, name)
        return helper.make_sparse_tensor(values, numpy_helper.from_array(np.array(indices), ""), [3, 4])

    nodes = [
        node("Constant", [], ["constant"], sparse_value=tensor("", [[0, 1], [2, 3]])),
        node("Add", ["x", "stored"], ["sum"]),
        node("Mul", ["sum", "constant"], ["y"]),
    ]
    made = model(
        nodes,
        [info("x", FLOAT, [3, 4])],
        [info("y", FLOAT, [3, 4])],
        sparse_initializer=[tensor("stored", [1, 6])],
    )
    return made, {"x": draw(3, 4, seed=8)}


def sequence() -> tuple[ModelProto, Feed]:
    """A sequence as an intermediate value and as an output."""
    nodes = [
        node("SplitToSequence", ["x"], ["parts"], axis=0, keepdims=1),
        node("SequenceInsert", ["parts", "x"], ["longer"]),
        node("ConcatFromSequence", ["parts"], ["y"], axis=1),
    ]
    outputs = [helper.make_tensor_sequence_value_info("longer", FLOAT, None), info("y", FLOAT, None)]
    return model(nodes, [info("x", FLOAT, [2, 3])], outputs), {"x": draw(2, 3, seed=9)}


def quantized() -> tuple[ModelProto, Feed]:
    """Types of eight and sixteen bits."""
    nodes = [
        node("QuantizeLinear", ["x", "step", "zero"], ["q"]),
        node("DequantizeLinear", ["q", "step", "zero"], ["d"]),
        node("MatMulInteger", ["q", "weights", "zero"], ["product"]),
        node("Cast", ["product"], ["wide"], to=FLOAT),
        node("Cast", ["halves"], ["h"], to=FLOAT),
        node("Sum", ["d", "wide", "h"], ["y"]),
    ]
    tensors = {
        "step": np.float32(0.125), "zero": np.uint8(128), "weights": np.eye(4, dtype=np.int8),
        "halves": draw(4, seed=10).astype(np.float16),
    }  # fmt: skip
    made = model(nodes, [info("x", FLOAT, [2, 4])], [info("y", FLOAT, [2, 4])], tensors)
    return made, {"x": draw(2, 4, seed=11)}


SAMPLES: dict[str, tuple[Callable[[], tuple[ModelProto, Feed]], Any]] = {
    "branches": (branches, LEVELS.ORT_DISABLE_ALL),
    "fused": (fused, LEVELS.ORT_ENABLE_EXTENDED),
    "words": (words, LEVELS.ORT_ENABLE_BASIC),
    "sparse": (sparse, LEVELS.ORT_DISABLE_ALL),
    "sequence": (sequence, LEVELS.ORT_DISABLE_ALL),
    "quantized": (quantized, LEVELS.ORT_DISABLE_ALL),
}


def write(name: str, folder: Path) -> tuple[Feed, list[Any]]:
    """Write a sample in ORT format; return its inputs, and the outputs that onnxruntime computes."""
    make, level = SAMPLES[name]
    made, feed = make()
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.optimized_model_filepath = str(folder / f"{name}.ort")
    session = ort.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return feed, session.run(None, feed)


def write_adapter(path: Path, values: Feed) -> None:
    """Write an adapter."""
    adapter = ort.AdapterFormat()
    adapter.set_adapter_version(7)
    adapter.set_model_version(2)
    adapter.set_parameters({name: ort.OrtValue.ortvalue_from_numpy(value) for name, value in values.items()})
    adapter.export_adapter(str(path))


def convert_artifacts() -> None:
    """Convert recorded artifacts as ``generate_artifacts(ort_format=True)`` of onnxruntime-training does."""
    from onnxruntime.tools.convert_onnx_models_to_ort import OptimizationStyle, convert_onnx_models_to_ort

    for kind in ("training", "eval", "optimizer"):
        convert_onnx_models_to_ort(
            HERE.parent / "fixtures/mlp_adamw" / f"{kind}_model.onnx",
            output_dir=HERE / "mlp_adamw",
            optimization_styles=[OptimizationStyle.Fixed],
        )
        (HERE / "mlp_adamw" / f"{kind}_model.required_operators.config").unlink()


def main() -> None:
    """Write all samples, and expected.npz with their inputs and outputs."""
    if ort.__version__.startswith("1.19."):
        convert_artifacts()
    arrays: Feed = {}
    for name in SAMPLES:
        feed, outputs = write(name, HERE)
        arrays |= {f"{name}/in/{key}": value for key, value in feed.items()}
        for i, output in enumerate(outputs):
            parts = (
                {f"{i}/{k}": part for k, part in enumerate(output)}
                if isinstance(output, list)
                else {str(i): output}
            )
            arrays |= {f"{name}/out/{key}": value for key, value in parts.items()}
    as_text = {key: value.astype(str) if value.dtype == object else value for key, value in arrays.items()}
    np.savez(HERE / "expected.npz", **as_text)
    if hasattr(ort, "AdapterFormat"):
        w = draw(2, seed=12)
        write_adapter(HERE / "adapter.onnx_adapter", {"w": w, "ids": np.array([[1, 2]], dtype=np.int64)})
        write_adapter(HERE / "branches.onnx_adapter", {"w": w})


if __name__ == "__main__":
    main()
