"""Operators that ONNX does not have state their inputs and outputs where they are registered, as onnxruntime does."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator

import onnx
import ortrain
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as onnxruntime

SOURCES = pathlib.Path(__file__).parents[2] / "core" / "src"
FOLDERS = ("ops", "legacy/ops")
BY_ONNX = {"kMl", '"ai.onnx.preview"', "kPreviewTraining"}  # domains whose operators ONNX describes
UNLIMITED = 2147483647


def registrations(text: str) -> Iterator[str]:
    """Yield the text in the parentheses of each registration of an operator."""
    for start in re.finditer(r"(?:ORTRAIN|Register)_?O(?:PERATOR|perator)\(\{", text):
        depth, end = 1, start.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        yield text[start.end() : end - 1]


def test_operators_of_other_domains_state_their_signature() -> None:
    missing, seen = [], 0
    for path in sorted(path for folder in FOLDERS for path in (SOURCES / folder).rglob("*.cpp")):
        for entry in registrations(path.read_text()):
            domain = re.search(r"\.domain = ([^,]+),", entry)
            if domain is None or domain[1] in BY_ONNX:
                continue
            seen += 1
            if ".signature = " not in entry:
                missing.append((path.name, entry.split(",")[1].strip()))
    assert missing == []
    assert seen > 60


def refusal(domain: str, kind: str, inputs: int, outputs: int) -> str:
    """Return what is said of a node with so many inputs and outputs."""
    node = helper.make_node(kind, ["x"] * inputs, [f"y{i}" for i in range(outputs)], "n", domain=domain)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    y = helper.make_value_info("z", onnx.TypeProto())
    keep = helper.make_node("Identity", ["x"], ["z"])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(
        helper.make_graph([node, keep], "g", [x], [y]), opset_imports=opsets, ir_version=9
    )
    try:
        ortrain.InferenceSession(model.SerializeToString())
    except ortrain.OrtrainError as error:
        return str(error)
    return ""


SCHEMAS = {s.name: s for s in onnxruntime.get_all_operator_schema() if s.domain == "com.microsoft"}


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_as_many_inputs_and_outputs_are_taken_as_by_onnxruntime(name: str) -> None:
    schema = SCHEMAS[name]
    if "does not have the form" not in refusal("com.microsoft", name, 999, 999):
        if schema.max_input != UNLIMITED:
            assert "no kernel" in refusal("com.microsoft", name, schema.min_input, 1)
        return
    for inputs, fits in ((schema.min_input - 1, False), (schema.min_input, True), (schema.max_input, True),
                         (schema.max_input + 1, False)):  # fmt: skip
        if inputs < 0 or inputs >= UNLIMITED:
            continue
        rejected = f"found {inputs} input" in refusal(
            "com.microsoft", name, inputs, max(schema.min_output, 1)
        )
        assert rejected != fits, (name, inputs)
    for outputs, fits in ((schema.max_output, True), (schema.max_output + 1, False)):
        if outputs < UNLIMITED:
            rejected = f"found {outputs} output" in refusal(
                "com.microsoft", name, min(schema.max_input, max(schema.min_input, 1)), outputs
            )
            assert rejected != fits, (name, outputs)
