"""The cases of the ``onnx`` package: models, inputs and expected outputs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto, numpy_helper
from onnx.backend.test.loader import DATA_DIR, load_model_tests
from onnx.backend.test.runner import Runner

from tests.node_cases import node_cases

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "light", "sequence")
"""The kinds of cases in the package. Models of kind light have constant weights instead of downloaded ones; those of
kind sequence are the cases of kind node that use sequences and optional values."""

_DRAWING = {
    "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike",
}  # fmt: skip
_SEQUENCES = ("sequence_type", "optional_type")
_OTHER_TYPES = ("map_type", "sparse_tensor_type")

Array = np.ndarray[Any, Any]
Value = Array | list[Array] | None
"""A value of a case: a tensor, a sequence of tensors, or an empty optional value."""


@dataclass
class Case:
    """One case of the package."""

    kind: str
    name: str
    rtol: float
    atol: float
    loaded: ModelProto | None = None
    path: Path | None = None
    data: list[tuple[list[Any], list[Any]]] = field(default_factory=list)

    @property
    def id(self) -> str:
        """Its kind and name."""
        return f"{self.kind}/{self.name}"

    @cached_property
    def model(self) -> ModelProto:
        """The model."""
        if self.loaded is not None:
            return self.loaded
        assert self.path is not None
        return onnx.load(self.path)

    @property
    def operators(self) -> list[str]:
        """The operators of the model's graph, each once."""
        return list(dict.fromkeys(node.op_type for node in self.model.graph.node))

    @property
    def runs(self) -> Iterator[tuple[dict[str, Value], list[Value]]]:
        """The inputs by name, and the expected outputs."""
        initialized = {tensor.name for tensor in self.model.graph.initializer}
        inputs = self.model.graph.input
        if self.kind == "light":
            value = next(v for v in inputs if v.name not in initialized)
            fed = {value.name: Runner.generate_dummy_data(value)}
            assert self.path is not None
            expected = self.path.with_name(f"{self.path.stem}_output_0.pb")
            yield fed, [numpy_helper.to_array(onnx.load_tensor(expected))]
            return
        data = self.data
        if self.path is not None:
            folders = sorted(self.path.parent.glob("test_data_set_*"))
            data = [(_tensors(folder, "input"), _tensors(folder, "output")) for folder in folders]
        for given, expected in data:
            # Cases on disk have no data for inputs that are also initializers.
            named = inputs if len(given) == len(inputs) else [v for v in inputs if v.name not in initialized]
            arrays = [as_value(value) for value in given]
            yield (
                {value.name: array for value, array in zip(named, arrays, strict=True)},
                [as_value(value) for value in expected],
            )

    @cached_property
    def draws(self) -> bool:
        """Whether the model draws random numbers."""
        graphs = [*_graphs(self.model.graph), *self.model.functions]
        if any(node.op_type in _DRAWING for graph in graphs for node in graph.node):
            return True
        feeds: dict[str, Any] = next(self.runs)[0]
        return any(
            feeds[node.input[2]].item() and feeds.get(node.input[1], np.float32(0.5)).item()
            for node in self.model.graph.node
            if node.op_type == "Dropout" and len(node.input) > 2
        )


def as_value(value: Any) -> Value:
    """Return a value of a case as arrays."""
    if value is None or isinstance(value, list):
        return None if value is None else [np.asarray(element) for element in value]
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def _tensors(folder: Path, what: str) -> list[TensorProto]:
    count = len(list(folder.glob(f"{what}_*.pb")))
    return [onnx.load_tensor(folder / f"{what}_{i}.pb") for i in range(count)]


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _graphs(attribute.g)


def _is_other(kind: TypeProto) -> bool:
    for field_name in _SEQUENCES:
        if kind.HasField(field_name):
            return _is_other(getattr(kind, field_name).elem_type)
    return kind.tensor_type.elem_type == TensorProto.STRING or any(kind.HasField(f) for f in _OTHER_TYPES)


def _node_has_others(node: NodeProto) -> bool:
    return any(a.t.data_type == TensorProto.STRING for a in node.attribute)


def has_sequences(model: ModelProto) -> bool:
    """Whether a model has sequences or optional values anywhere."""
    graphs = list(_graphs(model.graph))
    values = [v for graph in graphs for v in (*graph.input, *graph.output, *graph.value_info)]
    nodes = [node for graph in (*graphs, *model.functions) for node in graph.node]
    return any(v.type.HasField(f) for v in values for f in _SEQUENCES) or any(
        node.op_type != "ReverseSequence" and ("Sequence" in node.op_type or "Optional" in node.op_type)
        for node in nodes
    )


def has_other_types(model: ModelProto) -> bool:
    """Whether a model has strings, maps or sparse tensors anywhere."""
    for graph in _graphs(model.graph):
        if any(_is_other(v.type) for v in (*graph.input, *graph.output, *graph.value_info)):
            return True
        if any(tensor.data_type == TensorProto.STRING for tensor in graph.initializer):
            return True
        if any(_node_has_others(node) for node in graph.node):
            return True
    return any(_node_has_others(node) for function in model.functions for node in function.node)


def load(kind: str) -> tuple[list[Case], int]:
    """Return the cases of a kind, by name, and the number of omitted cases, which have types other than tensors."""
    found = (
        node_cases()
        if kind in ("node", "sequence")
        else load_model_tests(kind={"light": "real"}.get(kind, kind))
    )
    cases = []
    for c in found:
        path = Path(c.model_dir) / "model.onnx" if c.model_dir else None
        if kind == "light":
            path = Path(DATA_DIR) / "light" / f"light_{c.model_name}.onnx"
        cases.append(Case(kind, c.name, c.rtol, c.atol, c.model, path, list(c.data_sets or ())))
    if kind in ("node", "sequence"):
        cases = [case for case in cases if has_sequences(case.model) == (kind == "sequence")]
    ours = [case for case in cases if not has_other_types(case.model)]
    return sorted(ours, key=lambda case: case.name), len(cases) - len(ours)
