"""The time of each pass over the weights in the AdamW step of a step model: `python -m benchmarks.step_passes --help`.

Each node of the update reads and writes all elements of a weight matrix. The table shows the time of each node on stock
onnxruntime with one thread, and the bytes that the node moves. The update of the matrix takes at least the sum of these times.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper

#: The weights of the first layer of the model `mlp`.
ROWS, COLUMNS = 500, 784


@dataclass(frozen=True)
class Pass:
    """A node: its operator, its inputs, its attributes, and how often AdamW has it for any batch and for one row.

    The inputs are matrices `a` and `b`, elements in one row `f`, the numbers `s` and `n`, and the rows `d` and `x` of one sample.
    """

    op: str
    inputs: str
    in_any: int
    in_one_row: int
    attributes: tuple[tuple[str, Any], ...] = ()

    def moved(self) -> int:
        """Return the bytes that the node reads and writes, those of rows and numbers aside."""
        return 4 * ROWS * COLUMNS * (1 + len(set(self.inputs) & set("abf")))


PASSES = (
    Pass("Gemm", "dx", 1, 0, (("transA", 1),)),
    Pass("Gemm", "dxa", 0, 2, (("transA", 1), ("beta", 0.9))),
    Pass("Mul", "as", 3, 0),
    Pass("Mul", "aa", 1, 0),
    Pass("Add", "ab", 2, 0),
    Pass("Sqrt", "a", 1, 1),
    Pass("BatchNormalization", "fnnnn", 1, 1, (("epsilon", 0.0),)),
    Pass("Div", "ab", 1, 1),
    Pass("Sub", "ab", 1, 1),
)


def session_of(item: Pass) -> tuple[Any, Any]:
    """Return a session for one node and a binding of memory to it; a Gemm writes in the memory of what it adds."""
    shapes: dict[str, list[Any]] = {
        "a": [ROWS, COLUMNS],
        "b": [ROWS, COLUMNS],
        "f": [1, 1, ROWS * COLUMNS],
        "s": [],
        "n": [1],
        "d": [1, ROWS],
        "x": [1, COLUMNS],
    }
    names = list(dict.fromkeys(item.inputs))
    shape = shapes["f" if "f" in item.inputs else "a"]
    node = helper.make_node(item.op, list(item.inputs), ["y"], **dict(item.attributes))
    graph = helper.make_graph(
        [node],
        item.op,
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in names],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    binding, rng = session.io_binding(), np.random.default_rng(0)
    values = {
        name: onnxruntime.OrtValue.ortvalue_from_numpy(
            np.asarray(rng.uniform(0.5, 1, shapes[name]), np.float32)
        )
        for name in names
    }
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    result = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32))
    binding.bind_ortvalue_output("y", values["a"] if item.op == "Gemm" and "a" in item.inputs else result)
    return session, binding


def main() -> None:
    """Measure and print a row for each node, and the sums."""
    parser = argparse.ArgumentParser("python -m benchmarks.step_passes", description=__doc__)
    parser.add_argument("--turns", type=int, default=20, help="turns of each node (default: 20)")
    parser.add_argument("--runs", type=int, default=40, help="runs in a turn (default: 40)")
    arguments = parser.parse_args()
    sessions = [(item, *session_of(item)) for item in PASSES]
    shortest = dict.fromkeys(PASSES, float("inf"))
    for _ in range(arguments.turns):
        for item, session, binding in sessions:
            for _ in range(arguments.runs):
                start = perf_counter()
                session.run_with_iobinding(binding)
                shortest[item] = min(shortest[item], perf_counter() - start)
    print("| node | shortest | moved | per second | nodes for any batch | nodes for one row |")
    print("| --- | --- | --- | --- | --- | --- |")
    for item, time in shortest.items():
        print(
            f"| {item.op}({', '.join(item.inputs)}) | {time * 1e6:.0f} us | {item.moved() / 1e6:.2f} MB | "
            f"{item.moved() / time / 1e9:.0f} GB | {item.in_any} | {item.in_one_row} |"
        )
    for label, counts in (
        ("any batch", {item: item.in_any for item in PASSES}),
        ("one row", {item: item.in_one_row for item in PASSES}),
    ):
        time = sum(shortest[item] * count for item, count in counts.items())
        moved = sum(item.moved() * count for item, count in counts.items())
        print(f"{label}: {sum(counts.values())} nodes, {time * 1e6:.0f} us, {moved / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
