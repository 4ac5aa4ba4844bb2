"""Write the inputs that fuzzing starts from: the models and checkpoints of the tests, and the cases of the onnx package.

``python -m tests.fuzz.seeds FOLDER`` writes ``FOLDER/<target>/<name>``. Large models are left out: small ones are run
more often.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from tests.conformance import cases

TESTS = Path(__file__).resolve().parent.parent
FIXTURES = TESTS / "data" / "fixtures"
LARGEST = 6000
"""Bytes of a model or checkpoint."""

FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def message(*fields: tuple[int, bytes | str | int]) -> bytes:
    """Return a protobuf message of these fields, as number and value (see ``fuzz_case.proto``)."""

    def varint(number: int) -> bytes:
        out = bytearray()
        while number > 127:
            out.append(number & 127 | 128)
            number >>= 7
        out.append(number)
        return bytes(out)

    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            data = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(data)) + data
    return out


def conformance() -> Iterator[cases.Case]:
    """Yield the cases of the onnx package that are small."""
    for kind in ("node", "sequence", "simple", "pytorch-operator"):
        for case in cases.load(kind)[0]:
            if case.model.ByteSize() <= LARGEST:
                yield case


def stored_models() -> Iterator[tuple[str, bytes]]:
    """Yield the small models of the tests that are files, with their names."""
    for path in sorted(TESTS.rglob("*.onnx")):
        if path.stat().st_size <= 4 * LARGEST:
            yield "-".join(path.relative_to(TESTS).with_suffix("").parts), path.read_bytes()


def neighbours(graph: GraphProto, start: int, before: int, after: int) -> list[NodeProto]:
    """Return node ``start`` with the nearest nodes that it needs, and the nearest that need it, in order."""
    maker = {name: n for n, node in enumerate(graph.node) for name in node.output if name}
    found = {start}
    reached = [start]
    for n in reached:  # grows
        for name in graph.node[n].input:
            if name in maker and maker[name] not in found and len(found) <= before:
                found.add(maker[name])
                reached.append(maker[name])
    made = set(graph.node[start].output)
    for n in range(start + 1, len(graph.node)):
        if after > 0 and made.intersection(graph.node[n].input):
            found.add(n)
            made.update(graph.node[n].output)
            after -= 1
    return [graph.node[n] for n in sorted(found)]


def part(model: ModelProto, nodes: list[NodeProto]) -> ModelProto | None:
    """Return a model of these nodes, whose inputs are what they need; None if a type is not known."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    known: dict[str, ValueInfoProto] = {v.name: v for v in (*graph.input, *graph.value_info, *graph.output)}
    small = {}
    for tensor in graph.initializer:
        known[tensor.name] = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        if tensor.ByteSize() <= LARGEST // 16 and tensor.data_location != TensorProto.EXTERNAL:
            small[tensor.name] = tensor
    made = {name for node in nodes for name in node.output}
    read = list(dict.fromkeys(name for node in nodes for name in node.input if name))
    given = [name for name in read if name not in made and name not in small]
    results = [name for node in nodes for name in node.output if name and name not in read]
    if any(name not in known for name in (*given, *results)):
        return None
    body = helper.make_graph(
        nodes,
        "part",
        [known[name] for name in given],
        [known[name] for name in results],
        [small[name] for name in read if name in small],
    )
    return helper.make_model(body, opset_imports=model.opset_import, ir_version=model.ir_version)


def attention() -> Iterator[tuple[str, ModelProto]]:
    """Yield the first attention of each exported model that has one, with its name."""
    for path in sorted(
        [*(TESTS / "models" / "data").rglob("*.onnx"), *(TESTS / "data" / "exports").rglob("*.onnx")]
    ):
        model = onnx.load(path, load_external_data=False)
        if any(node.domain for node in model.graph.node) or model.functions:
            continue
        softmax = [n for n, node in enumerate(model.graph.node) if node.op_type == "Softmax"]
        if softmax:
            made = part(model, neighbours(model.graph, softmax[0], 24, 8))
            if made is not None and made.ByteSize() <= 4 * LARGEST:
                yield "-".join(path.relative_to(TESTS).with_suffix("").parts), made


def inference(case: cases.Case) -> bytes:
    """Return a case as input of the target ``inference``."""
    tensors = []
    for name, value in next(case.runs)[0].items():
        if isinstance(value, np.ndarray) and value.nbytes <= LARGEST:
            tensors.append((2, numpy_helper.from_array(value, name).SerializeToString()))
    return message((1, case.model.SerializeToString()), *tensors, (3, 0))


def gradient(model: ModelProto) -> bytes | None:
    """Return a model, with the gradients of all its floats, as input of the target ``gradient``."""
    initializers = {t.name for t in model.graph.initializer if t.data_type in FLOATS}
    inputs = [
        v.name
        for v in model.graph.input
        if v.type.tensor_type.elem_type in FLOATS and v.name not in initializers
    ]
    outputs = [v.name for v in model.graph.output if v.type.tensor_type.elem_type in FLOATS]
    if not outputs or not (inputs or initializers):
        return None
    data = model.SerializeToString()
    if initializers:  # a training model, with the gradients of the inputs too
        names = [(2, name) for name in sorted(initializers)]
        return message((1, data), *names, (3, outputs[0]), *((6, name) for name in inputs), (7, 1))
    return message((1, data), *((2, name) for name in inputs), (5, outputs[0]))


def training(folder: Path) -> bytes:
    """Return the artifacts in a folder as input of the target ``training``."""
    files = [folder / f"{kind}_model.onnx" for kind in ("training", "eval", "optimizer")]
    models = [(i, path.read_bytes()) for i, path in enumerate(files, 1)]
    return message(*models, (4, (folder / "checkpoint").read_bytes()), (5, 7), (6, 2))


def stored_formats() -> Iterator[tuple[str, bytes]]:
    """Yield the models in ORT format and the adapters of the tests, with their names."""
    for pattern in ("*.ort", "*.onnx_adapter"):
        for path in sorted((TESTS / "data" / "formats").rglob(pattern)):
            yield (
                "-".join(path.relative_to(TESTS / "data" / "formats").with_suffix("").parts),
                path.read_bytes(),
            )


def seeds() -> Iterator[tuple[str, str, bytes]]:
    """Yield target, name and bytes of each input."""
    for name, data in stored_formats():
        yield "formats", name, data
    for name, data in stored_models():
        yield "reader", name, data
        made = gradient(onnx.load_from_string(data))
        if made is not None:
            yield "gradient", name, made
        yield "inference", name, message((1, data), (3, 1))
    for name, model in attention():
        yield "inference", name, message((1, model.SerializeToString()), (3, 1))
        made = gradient(model)
        if made is not None:
            yield "gradient", name, made
    for case in conformance():
        yield "reader", case.name, case.model.SerializeToString()
        yield "inference", case.name, inference(case)
        made = gradient(case.model)
        if made is not None:
            yield "gradient", case.name, made
    for first in range(8):  # what exists before the first call
        yield "calls", "start", bytes([first])
    for folder in sorted(FIXTURES.iterdir()):
        checkpoint = folder / "checkpoint"
        if checkpoint.is_file() and checkpoint.stat().st_size <= 4 * LARGEST:
            yield "checkpoint", folder.name, checkpoint.read_bytes()
            yield "training", folder.name, training(folder)
        after = folder / "checkpoint_after"
        if after.is_file() and after.stat().st_size <= 4 * LARGEST:
            yield "checkpoint", f"{folder.name}-after", after.read_bytes()


def main() -> int:
    """Write them all."""
    folder = Path(sys.argv[1])
    written = 0
    for target, name, data in seeds():
        (folder / target).mkdir(parents=True, exist_ok=True)
        # names of cases can be longer than those of files
        (folder / target / f"{name[:60]}-{hashlib.sha1(data).hexdigest()[:8]}").write_bytes(data)
        written += 1
    print(f"{written} seeds in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
