"""Makes the batch size free in a model that was exported for one batch size.

The model is computed node by node for two batch sizes, with the same random rows in both. If a node fails for the new size, or
its rows differ from those for the old size, there are two cases: the node depends on a constant with the batch size, which is
replaced, or the node mixes rows, and the model is rejected. The result is compared with the given model row by row for several
batch sizes.
"""

from __future__ import annotations

import itertools
from collections import ChainMap
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from ortrain import _graph
from ortrain._graph.evaluation import set_evaluation_mode
from ortrain._graph.node_runs import NodeRunner, inputs_of
from ortrain._support.counts import counted
from ortrain.artifacts.choice.fates import Fate
from ortrain.artifacts.choice.rules import choose
from ortrain.artifacts.graph.batch_layout import Layout, close, layout_of, rows_of
from ortrain.artifacts.graph.batch_repairs import Nodes, Repairs, Value
from ortrain.errors import OrtrainError
from ortrain.inference_session import InferenceSession

Array = npt.NDArray[Any]
Values = MutableMapping[str, Value]

SYMBOL = "batch"
_PRIMES = (3, 5, 7, 11, 13, 17, 19, 23)
_OTHER_SYMBOLS = 6  # the size of other free dimensions in these computations
_LARGE = 1e4  # elements of masks are larger than this, elements of weights are not
_REMEDY = "export the model with a dynamic batch (dynamic_shapes or dynamic_axes of torch.onnx.export), or train with this size"


def fixed_batch(model: onnx.ModelProto) -> tuple[str, int] | None:
    """Return the first input with dimensions and its first dimension, if that is a number; None if it is free."""
    for value in _inputs(model.graph):
        shape = value.type.tensor_type.shape
        if value.type.HasField("tensor_type") and shape.dim:
            first = shape.dim[0]
            return (value.name, first.dim_value) if first.HasField("dim_value") else None
    return None


def note(fixed: tuple[str, int]) -> str:
    """Return the consequences of a fixed batch size for training, and the remedies."""
    name, rows = fixed
    return (
        f"every step takes exactly {counted(rows, 'row')}: the model was exported with this batch size "
        f'(first dimension of {name!r}); --batch dynamic (batch="dynamic" in Python) makes it free'
    )


def with_dynamic_batch(model: onnx.ModelProto, trained: Iterable[str] = ()) -> onnx.ModelProto:
    """Return a model that takes batches of any size, from one with a fixed batch size.

    Parameters
    ----------
    model : onnx.ModelProto
        The model, without functions and with its weights. It is not changed. The batch is the first dimension of the first
        input, and of the others that have as many rows.
    trained : iterable of str, optional
        Initializers that training changes, besides those that are chosen by default.

    Returns
    -------
    onnx.ModelProto
        The model with the dimension ``batch``; the given one if its batch is free already.

    Raises
    ------
    ValueError
        When a node prevents this; the message names it. Also when the result differs from the given model.
    """
    fixed = fixed_batch(model)
    if fixed is None:
        return model
    return _Rewriter(model, fixed[1], set(trained)).rewritten()


class _Stuck(Exception):
    """A node does not work for the new batch size; the message names the fault. A repair may follow."""


class _Rewriter:
    """One rewriting: the examined copy of the model, its values, and the replacements of nodes and constants so far."""

    def __init__(self, model: onnx.ModelProto, rows: int, trained: set[str]) -> None:
        self.model, self.rows = model, rows
        self.parameters = trained | {c.name for c in choose(model) if c.fate is Fate.TRAINED}
        self.examined = _for_inference(model, self.parameters)
        self.new_rows = _another_size(self.examined, rows)
        self.batched = [value.name for value in _inputs(model.graph) if _first_dim(value) == rows]
        self.data = _Data(self.examined, rows, set(self.batched))
        self.runner = NodeRunner(self.examined)
        self.nodes = list(self.examined.graph.node)
        self.maker = {name: number for number, node in enumerate(self.nodes) for name in node.output if name}
        self._names = _graph.names_in_use(model)
        self.size = self._new_name("batch_size")
        self.repairs = Repairs(rows, self.size, self._new_name)
        self.values: Values = {}
        self.replaced: dict[str, Nodes] = {}

    def _new_name(self, what: str) -> str:
        number = itertools.count()
        name = f"{what}_dynamic"
        while name in self._names:
            name = f"{what}_dynamic_{next(number)}"
        self._names.add(name)
        return name

    def rewritten(self) -> onnx.ModelProto:
        self._set_inputs()
        for number, node in enumerate(self.nodes):
            try:
                self.values.update(self._computed(node, self.values, self.replaced))
            except _Stuck as problem:
                self._repair(number, node, problem)
        result = self._assembled(self.model)
        _declare(result, self.values, self.batched)
        self._verify(result)
        return result

    # ---- values ----

    def _set_inputs(self) -> None:
        batches = -(-self.new_rows // self.rows)
        before = [self.data.batch(number * self.rows, self.rows) for number in range(batches)]
        after = self.data.batch(0, self.new_rows)
        for name in after:
            layout = Layout(0) if name in self.batched else Layout(None)
            self.values[name] = Value([batch[name] for batch in before], after[name], layout)
        self.values[self.size] = Value([np.array([self.rows])], np.array([self.new_rows]), Layout(None))
        for tensor in self.examined.graph.initializer:
            array = onnx.numpy_helper.to_array(tensor)
            self.values[tensor.name] = Value([array], array, Layout(None))

    def _computed(self, node: onnx.NodeProto, values: Values, replaced: dict[str, Nodes]) -> dict[str, Value]:
        """Return the outputs of a node for both batch sizes.

        Raises
        ------
        _Stuck
            When the node does not work for the new size, or its rows differ from those for the old size.
        """
        names = inputs_of(node)
        key = _key(node)
        known = [self.values[name].before for name in node.output if name in self.values]
        if known:
            before = [
                {name: self.values[name].before[number] for name in node.output if name}
                for number in range(len(known[0]))
            ]
        else:
            count = max((len(values[name].before) for name in names), default=1)
            try:
                before = [
                    self._run(
                        node, {name: values[name].before[number % len(values[name].before)] for name in names}
                    )
                    for number in range(count)
                ]
            except (OrtrainError, NotImplementedError) as error:
                raise ValueError(
                    f"the batch of {counted(self.rows, 'row')} cannot be made dynamic: node {node.name or key!r} "
                    f"({node.op_type}) cannot "
                    f"be examined: {_first_line(error)}. Remedy: {_REMEDY}"
                ) from error
        if key not in replaced and all(values[name].is_constant for name in names) and len(before) == 1:
            after = before[0]
        else:
            after = {name: values[name].after for name in [*names, self.size]}
            try:
                for part in replaced.get(key, [node]):
                    after |= self._run(part, after)
            except (OrtrainError, NotImplementedError) as error:
                raise _Stuck(f"fails for {counted(self.new_rows, 'row')}: {_first_line(error)}") from error
        return {name: self._value(name, [run[name] for run in before], after[name]) for name in before[0]}

    def _run(self, node: onnx.NodeProto, values: dict[str, Array]) -> dict[str, Array]:
        found = self.runner.run(node, values)
        if node.op_type.startswith("Random") and node.domain in ("", "ai.onnx"):
            return {name: np.zeros_like(value) for name, value in found.items()}
        return found

    def _value(self, name: str, before: list[Array], after: Array) -> Value:
        layout = layout_of(before, after, self.rows, self.new_rows)
        if layout is None:
            shapes = f"{list(before[0].shape)} for {counted(self.rows, 'row')} and {list(after.shape)} for {self.new_rows}"
            raise _Stuck(f"its result {name!r} is not computed row by row: it has the shape {shapes}")
        return Value(before, after, layout)

    # ---- repairs ----

    def _repair(self, number: int, node: onnx.NodeProto, problem: _Stuck) -> None:
        """Replace a node, or nodes that compute its inputs, so that it works for the new size."""
        for changes in self._attempts(number, node):
            found = self._tried(changes, number)
            if found is not None:
                self.values.update(found)
                self.replaced.update(changes)
                return
        before = {name: self.values[name].before[0].shape for name in inputs_of(node)}
        shapes = ", ".join(f"{name} {list(shape)}" for name, shape in before.items())
        raise ValueError(
            f"the batch of {counted(self.rows, 'row')} cannot be made dynamic: node {node.name or _key(node)!r} ({node.op_type}) "
            f"{problem}. {self._culprits(number)}Its inputs: {shapes}. Remedy: {_REMEDY}"
        ) from problem

    def _attempts(self, number: int, node: onnx.NodeProto) -> Iterator[dict[str, Nodes]]:
        yield from ({_key(node): local} for local in self.repairs.local(node, self.values))
        options = list(self._sources(number))
        yield from ({key: nodes} for key, nodes in options)
        for (key, nodes), (other, other_nodes) in itertools.combinations(options, 2):
            if key != other:
                yield {key: nodes, other: other_nodes}
        if self.rows == 1:  # an earlier repair may have chosen the wrong dimension
            for earlier in reversed(self.nodes[:number]):
                if _key(earlier) in self.replaced:
                    yield from (
                        {_key(earlier): other} for other in self.repairs.local(earlier, self.values)[1:]
                    )

    def _sources(self, number: int) -> Iterator[tuple[str, Nodes]]:
        """Yield possible repairs of the constants that a node's inputs depend on, the nearest constants first."""
        queue, seen = list(inputs_of(self.nodes[number])), set[str]()
        while queue:
            name = queue.pop(0)
            if name in seen or not self.values[name].is_constant:
                continue
            seen.add(name)
            node = self.nodes[self.maker[name]] if name in self.maker else None
            if node is None or node.op_type == "Constant":
                if name not in self.parameters:
                    yield from (
                        (name, nodes) for nodes in self.repairs.constants(name, self.values[name].before[0])
                    )
                continue
            yield from ((_key(node), nodes) for nodes in self.repairs.sources(node, self.values))
            queue += inputs_of(node)

    def _tried(self, changes: dict[str, Nodes], until: int) -> Values | None:
        """Return the values of all nodes up to and including one after some changes; None if the changes do not help."""
        found: dict[str, Value] = {}
        values = ChainMap(found, self.values)
        replaced = {**self.replaced, **changes}
        try:
            for name in changes:
                if name not in self.maker:
                    found[name] = self._changed_constant(name, changes[name])
            for number, node in enumerate(self.nodes[: until + 1]):
                if (
                    number < until
                    and _key(node) not in changes
                    and not any(n in found for n in inputs_of(node))
                ):
                    continue
                try:
                    found |= self._computed(node, values, replaced)
                except _Stuck:
                    local = self.repairs.local(node, values)
                    if not local or _key(node) in changes:
                        return None
                    changes[_key(node)] = replaced[_key(node)] = local[0]
                    found |= self._computed(node, values, replaced)
        except _Stuck:
            return None
        return found

    def _changed_constant(self, name: str, nodes: Nodes) -> Value:
        after = {self.size: self.values[self.size].after}
        for node in nodes:
            after |= self._run(node, after)
        return self._value(name, self.values[name].before, after[name])

    def _culprits(self, number: int) -> str:
        """Name the weights and constants among the inputs that have as many rows as the batch."""
        found = [
            f"{name!r} {list(self.values[name].before[0].shape)}"
            for name in inputs_of(self.nodes[number])
            if self.values[name].is_constant
            and self.rows > 1
            and self.rows in self.values[name].before[0].shape
        ]
        return f"Stored for {counted(self.rows, 'row')}: {', '.join(found)}. " if found else ""

    # ---- the result ----

    def _assembled(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Return a copy of a model in which nodes and constants are replaced."""
        result: onnx.ModelProto = onnx.ModelProto.FromString(model.SerializeToString())
        used = {name for nodes in self.replaced.values() for node in nodes for name in node.input}
        nodes: Nodes = []
        if self.size in used:
            first = onnx.numpy_helper.from_array(np.array([0], np.int64))
            shape, index = self._new_name("shape"), self._new_name("first")
            nodes += [
                onnx.helper.make_node("Shape", [self.batched[0]], [shape], name=shape),
                onnx.helper.make_node("Constant", [], [index], name=index, value=first),
                onnx.helper.make_node("Gather", [shape, index], [self.size], name=self.size, axis=0),
            ]
        kept = [tensor for tensor in result.graph.initializer if tensor.name not in self.replaced]
        for tensor in result.graph.initializer:
            nodes += self.replaced.get(tensor.name, [])
        for node in result.graph.node:
            nodes += self.replaced.get(_key(node), [node])
        before = _reads(result.graph)
        del result.graph.node[:]
        result.graph.node.extend(nodes)
        unused = before - _reads(result.graph)
        del result.graph.initializer[:]
        result.graph.initializer.extend(tensor for tensor in kept if tensor.name not in unused)
        return result

    def _verify(self, result: onnx.ModelProto) -> None:
        """Compare the outputs with those of the given model, row by row, for several batch sizes."""
        given = InferenceSession(self.examined.SerializeToString())
        weights = {tensor.name: tensor for tensor in self.examined.graph.initializer}
        changed = _for_inference(result, set())
        for tensor in changed.graph.initializer:
            tensor.CopyFrom(weights[tensor.name])
        session = InferenceSession(changed.SerializeToString())
        names = [value.name for value in result.graph.output]
        for rows in (self.rows, 1, self.new_rows, self.rows + 1):
            batches = -(-rows // self.rows)
            expected = [given.run(names, self.data.batch(n * self.rows, self.rows)) for n in range(batches)]
            found = session.run(names, self.data.batch(0, rows))
            for number, name in enumerate(names):
                layout = self.values[name].layout
                if layout.axis is None:
                    right = close(expected[0][number], found[number])
                else:
                    parts = [rows_of(batch[number], layout.outer, self.rows) for batch in expected]
                    wanted = np.concatenate(parts, axis=1)[:, :rows]
                    right = close(wanted, rows_of(found[number], layout.outer, rows))
                if not right:
                    raise ValueError(
                        f"the batch of {counted(self.rows, 'row')} cannot be made dynamic: with {counted(rows, 'row')}, the "
                        f"output {name!r} differs "
                        f"from that of the given model. Remedy: {_REMEDY}"
                    )


class _Data:
    """Random inputs. Every batch takes some of their rows."""

    def __init__(self, model: onnx.ModelProto, rows: int, batched: set[str]) -> None:
        self._inputs, self._rows, self._batched = _inputs(model.graph), rows, batched
        session = InferenceSession(model.SerializeToString())
        reasons = []
        # Integers may be tokens, masks or positions: a trial run shows which values are valid.
        for low, high in ((0, 2), (1, 3), (0, 10), (1, 2), (0, 1)):
            self._low, self._high = low, high
            try:
                runs = [session.run(None, self.batch(number * rows, rows)) for number in range(2)]
            except OrtrainError as error:
                reasons.append(_first_line(error))
                continue
            floats = [value for run in runs for value in run if value.dtype.kind == "f"]
            if not all(np.isfinite(value).all() for value in floats):
                reasons.append("its outputs are not finite")
            elif any(_differ(one, other) for one, other in zip(*runs, strict=True)):
                return
            else:
                reasons.append("its outputs do not depend on its inputs")
        raise ValueError(
            f"the batch cannot be made dynamic: the model does not run on random inputs: {reasons[0]}. Remedy: {_REMEDY}"
        )

    def batch(self, first: int, rows: int) -> dict[str, Array]:
        """Return the inputs of a batch that begins with the given row."""
        return {
            value.name: self._array(number, value, first, rows) for number, value in enumerate(self._inputs)
        }

    def _array(self, number: int, value: onnx.ValueInfoProto, first: int, rows: int) -> Array:
        tensor = value.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        shape = [dim.dim_value if dim.HasField("dim_value") else _OTHER_SYMBOLS for dim in tensor.shape.dim]
        if value.name not in self._batched:
            return self._random(np.random.default_rng([number]), shape, dtype)
        return np.stack(
            [
                self._random(np.random.default_rng([number, row]), shape[1:], dtype)
                for row in range(first, first + rows)
            ]
        )

    def _random(self, rng: np.random.Generator, shape: list[int], dtype: np.dtype[Any]) -> Array:
        if dtype.kind in "iub":
            return rng.integers(self._low, self._high, shape).astype(dtype)
        if dtype.kind == "O":
            raise ValueError("the batch cannot be made dynamic: an input has the type string")
        return rng.standard_normal(shape).astype(dtype)


def _inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    stored = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in stored]


def _first_dim(value: onnx.ValueInfoProto) -> int | None:
    dims = value.type.tensor_type.shape.dim
    return dims[0].dim_value if dims and dims[0].HasField("dim_value") else None


def _key(node: onnx.NodeProto) -> str:
    """Return the key of a node: the name of its first output."""
    return str(next(name for name in node.output if name))


def _reads(graph: onnx.GraphProto) -> set[str]:
    """Return the names of all values that nodes read or the graph returns."""
    return {name for node in _graph.walk(graph) for name in node.input} | {v.name for v in graph.output}


def _differ(one: Array, other: Array) -> bool:
    """Return whether outputs for different inputs differ by enough to tell rows apart."""
    if one.dtype.kind != "f":
        return not np.array_equal(one, other)
    return bool(abs(one.astype(np.float64) - other).max(initial=0.0) > 1e-3 * abs(one).max(initial=0.0))


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]


def _for_inference(model: onnx.ModelProto, parameters: set[str]) -> onnx.ModelProto:
    """Return a copy in inference mode, in which the parameters differ from zeros and ones, as they do after training."""
    copy: onnx.ModelProto = onnx.ModelProto.FromString(model.SerializeToString())
    set_evaluation_mode(copy)
    del copy.graph.value_info[:]
    for value in copy.graph.output:
        value.type.tensor_type.ClearField("shape")
    rng = np.random.default_rng(0)
    for tensor in copy.graph.initializer:
        if tensor.name in parameters:
            array = onnx.numpy_helper.to_array(tensor)
            size = abs(array.astype(np.float64))
            moved = np.where(size < _LARGE, array + rng.uniform(-0.05, 0.05, array.shape) * (1 + size), array)
            tensor.CopyFrom(onnx.numpy_helper.from_array(moved.astype(array.dtype), tensor.name))
    return copy


def _another_size(model: onnx.ModelProto, rows: int) -> int:
    """Return a batch size that differs from every dimension and number of the model, so that the two cannot be confused."""
    graph = model.graph
    taken = {rows}
    for value in graph.input:
        taken |= {dim.dim_value for dim in value.type.tensor_type.shape.dim}
    tensors = [
        *graph.initializer,
        *(a.t for node in _graph.walk(graph) for a in node.attribute if a.HasField("t")),
    ]
    for tensor in tensors:
        taken |= set(tensor.dims)
        if tensor.data_type == onnx.TensorProto.INT64 and np.prod(tensor.dims, dtype=np.int64) <= 16:
            taken |= set(onnx.numpy_helper.to_array(tensor).ravel().tolist())
    return next((prime for prime in _PRIMES if prime not in taken), next(p for p in _PRIMES if p != rows))


def _declare(model: onnx.ModelProto, values: Values, batched: list[str]) -> None:
    """Declare the dimensions of all values that contain the batch."""
    graph = model.graph
    for value in [*graph.input, *graph.output, *graph.value_info]:
        found = values.get(value.name)
        if found is None or found.layout.axis is None:
            continue
        dims = value.type.tensor_type.shape.dim
        if found.layout.axis >= len(dims):
            continue
        dims[found.layout.axis].Clear()
        if found.layout.factor == 1:
            dims[found.layout.axis].dim_param = SYMBOL
    replaced = set(values) - {name for node in graph.node for name in node.output}
    kept = [value for value in graph.value_info if value.name not in replaced]
    del graph.value_info[:]
    graph.value_info.extend(kept)
