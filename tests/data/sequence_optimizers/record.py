"""Records what onnxruntime-training 1.19.2 computes for optimizers over sequences of parameters.

Run it with an interpreter that has onnxruntime-training 1.19.2; it writes cases.json and cases.npz beside itself.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper

Array = NDArray[Any]
HERE = pathlib.Path(__file__).parent
SHAPES = [(3, 2), (5,), (2, 1, 2)]
random = np.random.default_rng(29)
cases: list[dict[str, Any]] = []
data: list[bytes] = []  # the arrays of all cases, one behind the other


def tensors(low: float = -1) -> list[Array]:
    return [random.uniform(low, 1, shape).astype(np.float32) for shape in SHAPES]


def record(op: str, inputs: list[tuple[str, Any]], outputs: list[str], **attributes: Any) -> None:
    """Run one node. Inputs are named; a list is a sequence. Outputs but for the flag are sequences."""
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    stated = []
    for name, value in inputs:
        if isinstance(value, list):
            stated.append(helper.make_value_info(name, sequence))
        else:
            kind = helper.np_dtype_to_tensor_dtype(value.dtype)
            stated.append(helper.make_tensor_value_info(name, kind, value.shape))
    given = [
        helper.make_tensor_value_info(name, TensorProto.BOOL, [1])
        if name == "flag"
        else helper.make_value_info(name, sequence)
        for name in outputs
    ]
    node = helper.make_node(op, [n for n, _ in inputs], outputs, domain="com.microsoft", **attributes)
    graph = helper.make_graph([node], "g", stated, given)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    before = [(name, keep(value)) for name, value in inputs]  # the session may change what it is given
    results = session.run(None, dict(inputs))
    after = [(name, keep(value)) for name, value in zip(outputs, results, strict=True)]
    cases.append({"op": op, "attributes": attributes, "inputs": before, "outputs": after})


def keep(value: Any) -> Any:
    """Keep the elements; return type and shape, or those of each tensor of a sequence."""
    if isinstance(value, list):
        return [keep(element) for element in value]
    data.append(value.tobytes())
    return {"dtype": str(value.dtype), "shape": value.shape}


rate = np.array([0.05], np.float32)
for mode in (0, 1):
    for correct in (0, 1) if mode else (1,):  # the other combination does not exist there
        for step in (1, 7):
            record(
                "AdamWOptimizer",
                [("rate", rate), ("step", np.array([step], np.int64)), ("weights", tensors()),
                 ("gradients", tensors()), ("first", tensors()), ("second", tensors(0))],
                ["flag", "new_weights", "new_first", "new_second"],
                adam_mode=mode, correct_bias=correct, alpha=0.8, beta=0.95, epsilon=1e-3, weight_decay=0.1,
            )  # fmt: skip
for signal in (True, False):
    record(
        "AdamWOptimizer",
        [("rate", rate), ("step", np.array([2], np.int64)), ("weights", tensors()), ("gradients", tensors()),
         ("first", tensors()), ("second", tensors(0)), ("signal", np.array([signal]))],
        ["flag", "new_weights", "new_first", "new_second"],
    )  # fmt: skip
    record(
        "SGDOptimizerV2",
        [("rate", rate), ("weights", tensors()), ("gradients", tensors()), ("signal", np.array([signal]))],
        ["flag", "new_weights"],
    )
record(
    "SGDOptimizerV2",
    [("rate", rate), ("weights", tensors()), ("gradients", tensors())],
    ["flag", "new_weights"],
)
for largest in (0.5, 1.0, 100.0):
    record("InplaceClipGradNorm", [("gradients", tensors())], ["clipped"], max_norm=largest)

(HERE / "cases.json").write_text("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
np.savez_compressed(HERE / "cases.npz", data=np.frombuffer(b"".join(data), np.uint8))
print(f"{len(cases)} cases by onnxruntime {onnxruntime.__version__}")
