"""The training step as one model: gradients, accumulation, clipping and optimizer, with only standard operators of ONNX."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from ortrain import _graph, _ortrain
from ortrain.errors import OrtrainError
from ortrain.step._average import AVERAGE, COUNT, take_average
from ortrain.step._clipping import take_clipping
from ortrain.step._dropout import constants_of, seeded
from ortrain.step._formula_group import Update
from ortrain.step._memory import in_place
from ortrain.step._names import (
    FINITE,
    GRADIENT,
    METADATA,
    MOMENT,
    MOST_STATES,
    NEXT,
    ONLY_GROUP,
    RATE,
    SCALE,
    SEED,
    SEEDS,
    STEP,
    VERSION,
)
from ortrain.step._nodes import Nodes, Value
from ortrain.step._optimizers import Group, clipped, multiplied, read_optimizer
from ortrain.step._rows import fix_rows, use_products
from ortrain.step._wide_sums import widen_sums

Kind = Literal["step", "gradients", "evaluation"]
_ACCUMULATED = "_grad.accumulation.out"
#: The difference between the seeds of two consecutive batches of a step.
_SEED_STRIDE = 1_000_003


@dataclass(frozen=True)
class Source:
    """The artifacts from which a step model is made.

    Attributes
    ----------
    model : onnx.ModelProto
        The training model, or the eval model for an evaluation.
    optimizer : onnx.ModelProto or None
        The optimizer model.
    parameters : mapping of str to array
        All parameters, by name.
    """

    model: onnx.ModelProto
    optimizer: onnx.ModelProto | None
    parameters: Mapping[str, npt.NDArray[Any]]


def assemble(
    source: Source,
    kind: Kind,
    *,
    accumulate: int,
    rows: int | None,
    initializers: bool,
    loss_scaling: bool,
) -> onnx.ModelProto:
    """Return the step model.

    Parameters
    ----------
    source : Source
        The artifacts.
    kind : {"step", "gradients", "evaluation"}
        What the model computes.
    accumulate : int
        The number of batches whose gradients are averaged.
    rows : int or None
        The number of rows of each batch, if it is known.
    initializers : bool
        Whether the model has the parameters as initializers too, as defaults of its inputs.
    loss_scaling : bool
        Whether the loss is multiplied by an input before its gradient is computed.

    Raises
    ------
    ValueError
        When a node has no form with standard operators; the message names every such node.
    """
    step = _Step(source, kind, rows, loss_scaling)
    if accumulate > 1:
        step.repeat(accumulate)
    step.update()
    return step.finish(initializers)


class _Step:
    def __init__(self, source: Source, kind: Kind, rows: int | None, loss_scaling: bool) -> None:
        self._source, self._kind, self._loss_scaling = source, kind, loss_scaling
        model = onnx.ModelProto()
        model.CopyFrom(source.model)
        self._gradients = {} if kind == "evaluation" else _take_accumulation(model)
        self._statistics = {} if kind == "evaluation" else _expose_statistics(model)
        self._drop_unread_inputs(model)
        self._batch = [v.name for v in model.graph.input if v.name not in source.parameters]
        if rows is not None:
            fix_rows(model, self._batch, rows)
        self._frozen = [
            v.name for v in model.graph.input if v.name in source.parameters and v.name not in self._gradients
        ]
        self._outputs = [
            v.name for v in model.graph.output
            if v.name not in self._gradients.values() and v.name not in self._statistics.values()
        ]  # fmt: skip
        self._states: list[str] = []
        # by which gradients are multiplied before the optimizer gets them
        self._factors: dict[str, float] = {}
        if loss_scaling:
            self._scale_name = _seed_of_gradient(model, self._outputs[0])
        if kind == "step":
            self._read_optimizer()
        self._model = _with_standard_operators(model)
        self._graph = self._model.graph
        # Passes that move nodes leave declared shapes that are no longer true. A runtime infers the shapes itself.
        del self._graph.value_info[:]
        taken = {*_graph.names_in_use(self._model), *self._reserved()}
        self._nodes = Nodes(self._graph, taken, _graph.opset_of(self._model) or 0)
        widen_sums(self._nodes, _element_types(self._model))
        if loss_scaling:
            self._scale_gradient()
        self._seeded = self._use_seed()
        self._moments: dict[str, list[str]] = {}
        self._scalars: dict[str, dict[str, Any]] = {}
        self._state: dict[str, str] = dict(self._statistics)
        self._groups: dict[str, list[str]] = {}

    def _reserved(self) -> set[str]:
        """Return the names of the inputs and outputs that a step adds."""
        names = {SEED, RATE, STEP, SCALE, FINITE, STEP + NEXT}
        for name in self._gradients:
            names |= {name + NEXT, name + GRADIENT}
            names |= {f"{name}{MOMENT}{i}{end}" for i in range(MOST_STATES) for end in ("", NEXT)}
        taken = names & _graph.names_in_use(self._model)
        if taken:
            raise ValueError(
                f"the model has a value named {sorted(taken)[0]!r}, which a step needs for itself; rename it"
            )
        return names

    def _drop_unread_inputs(self, model: onnx.ModelProto) -> None:
        """Remove parameters that no node reads; a session only keeps them in its state."""
        read = {name for node in _graph.walk(model.graph) for name in node.input}
        read |= {output.name for output in model.graph.output}
        kept = [v for v in model.graph.input if v.name in read or v.name not in self._source.parameters]
        del model.graph.input[:]
        model.graph.input.extend(kept)

    def _input(self, name: str, type: int, shape: Sequence[int]) -> None:
        self._graph.input.append(helper.make_tensor_value_info(name, type, shape))

    def _output(self, name: str, type: int, shape: Sequence[Any] | None) -> None:
        self._graph.output.append(helper.make_tensor_value_info(name, type, shape))

    def _type_of(self, name: str) -> int:
        return int(helper.np_dtype_to_tensor_dtype(self._source.parameters[name].dtype))

    def _read_optimizer(self) -> None:
        """Read from the optimizer model what happens to the gradients."""
        assert self._source.optimizer is not None
        optimizer = onnx.ModelProto()
        optimizer.CopyFrom(self._source.optimizer)
        self._clipping, self._average = take_clipping(optimizer), take_average(optimizer)
        self._optimizers, self._states, self._limit = read_optimizer(optimizer, self._gradients)
        # Clipping other than by the norm of all gradients needs gradients without a factor.
        if self._clipping.changes_nothing:
            self._factors = {name: group.factor for group in self._optimizers for name in group.parameters}

    # ---- the gradient ----

    def _use_seed(self) -> bool:
        """Make the masks of Dropout depend on a seed; return whether there are such masks."""
        constant, types = constants_of(self._graph), _element_types(self._model)
        given = list(self._graph.node)
        dropouts = [node for node in given if node.op_type == "Dropout" and not node.domain]
        if not dropouts:
            return False
        del self._graph.node[:]
        seed = self._nodes.value(SEED, TensorProto.INT64)
        for node in given:
            if node.op_type == "Dropout" and not node.domain:
                kind = types.get(node.input[0], TensorProto.FLOAT)
                seeded(node, dropouts.index(node), self._nodes, seed, kind, constant)
            else:
                self._graph.node.append(node)
        if not any(SEED in node.input for node in self._graph.node):
            return False  # no Dropout is in training mode
        self._input(SEED, TensorProto.INT64, [])
        return True

    def _scale_gradient(self) -> None:
        """Replace the constant 1, the gradient of the loss, by an input."""
        for tensor in self._graph.initializer:
            if tensor.name == self._scale_name:
                break
        one = numpy_helper.to_array(tensor)
        self._graph.initializer.remove(tensor)
        scale = Value(self._nodes, SCALE, TensorProto.FLOAT).as_type(tensor.data_type)
        shape = self._nodes.constant(np.array(one.shape, np.int64))
        self._nodes.add("Expand", [scale, shape], output=self._scale_name)
        made = 1 + (scale.name != SCALE)
        nodes = list(self._graph.node)
        del self._graph.node[:]
        self._graph.node.extend(nodes[-made:] + nodes[:-made])  # before all nodes that read the scale
        self._input(SCALE, TensorProto.FLOAT, [])

    # ---- several batches ----

    def repeat(self, count: int) -> None:
        """Run the gradient for `count` batches and average the gradients. Each input gets a new first axis for the batches."""
        graph, nodes = self._graph, self._nodes
        inner = {
            name: nodes.name(f"{name}.batch") for name in (*self._batch, *self._outputs, *self._statistics)
        }
        # names of a value: before the loop, in its body before and after a batch, after the loop
        states: list[tuple[str, str, str, str]] = []
        totals: dict[str, str] = {}
        body = onnx.GraphProto(name="batch")
        body.node.extend(graph.node)
        del graph.node[:]
        infos = {value.name: value for value in (*graph.input, *graph.output)}
        _rename(body, inner)
        within = Nodes(body, (), nodes.opset)
        within._taken = nodes._taken  # one set of names for both graphs
        if self._seeded:
            index, later = nodes.name("batch.seed"), nodes.name("batch.seed.after")
            _rename(body, {SEED: index})
            start = nodes.add("Identity", [SEED])
            within.add(
                "Add",
                [index, within.constant(np.array(_SEED_STRIDE, np.int64))],
                output=nodes.name("batch.seed.sum"),
            )
            prime = within.constant(np.array(SEEDS, np.int64))
            within.add("Mod", [body.node[-1].output[0], prime], output=later)
            states.append((start, index, later, nodes.name("batch.seed.last")))
            infos[index] = helper.make_tensor_value_info(index, TensorProto.INT64, [])
        for name, gradient in self._gradients.items():
            value = self._source.parameters[name]
            zeros = nodes.add("ConstantOfShape", [nodes.constant(np.array(value.shape, np.int64))],
                              value=numpy_helper.from_array(np.zeros(1, value.dtype)))  # fmt: skip
            before, after = nodes.name(f"{name}.sum"), nodes.name(f"{name}.sum.after")
            within.add("Add", [before, gradient], output=after)
            total = nodes.name(f"{name}.sum.last")
            states.append((zeros, before, after, total))
            infos[before] = helper.make_tensor_value_info(before, self._type_of(name), value.shape)
            totals[name] = total
        for name, moved in list(self._statistics.items()):
            last = nodes.name(f"{name}.last")
            states.append((name, inner[name], moved, last))
            infos[inner[name]] = _renamed(infos[name], inner[name])
            self._statistics[name] = self._state[name] = last
        for _, before, after, _ in states:
            body.input.append(infos[before])
            body.output.append(_renamed(infos[before], after))
        for name in self._batch:
            body.input.append(_renamed(infos[name], inner[name]))
        stacked = {name: nodes.name(f"{name}.batches") for name in self._outputs}
        for name in self._outputs:
            body.output.append(_renamed(infos[name], inner[name]))
        graph.node.append(
            helper.make_node(
                "Scan",
                [outer for outer, *_ in states] + self._batch,
                [last for *_, last in states] + list(stacked.values()),
                name=nodes.name("step/batches"),
                body=body,
                num_scan_inputs=len(self._batch),
            )
        )
        for name, total in totals.items():
            batches = nodes.constant(np.array(count, self._source.parameters[name].dtype))
            self._gradients[name] = nodes.add("Div", [total, batches])
        del graph.output[:]
        for name in self._batch:
            _add_axis(infos[name], count)
        for at, name in enumerate(self._outputs):
            if at == 0:  # the loss
                nodes.add("ReduceMean", [stacked[name]], output=name, keepdims=0)
                self._output(name, infos[name].type.tensor_type.elem_type, [])
            else:
                nodes.add("Identity", [stacked[name]], output=name)
                _add_axis(infos[name], count)
                graph.output.append(infos[name])

    # ---- the optimizer ----

    def update(self) -> None:
        """Write the nodes of the optimizer, and make their results outputs of the model."""
        graph = self._graph
        kept = [value for value in graph.output if value.name in self._outputs]
        del graph.output[:]
        graph.output.extend(kept)
        gradients = {
            name: self._nodes.value(gradient, self._type_of(name))
            for name, gradient in self._gradients.items()
        }
        finite = None
        if self._loss_scaling:
            gradients, finite = self._unscaled(gradients)
        if self._kind == "gradients":
            for name, gradient in gradients.items():
                self._give(gradient, name + GRADIENT, self._source.parameters[name].shape)
        if self._kind == "step":
            self._optimize(gradients, finite)
        for name, moved in self._statistics.items():
            value = self._nodes.value(moved, self._type_of(name))
            if finite is not None:
                value = _chosen(finite, value, self._nodes.value(name, value.type))
            self._give(value, name + NEXT, self._source.parameters[name].shape)
            self._state[name] = name + NEXT

    def _give(self, value: Value, name: str, shape: Sequence[int]) -> None:
        self._nodes.add("Identity", [value], output=name)
        self._output(name, value.type, shape)

    def _unscaled(self, gradients: dict[str, Value]) -> tuple[dict[str, Value], Value]:
        """Divide by the scale of the loss, in float, and write whether all elements are finite."""
        inverse = 1.0 / Value(self._nodes, SCALE, TensorProto.FLOAT)
        wide = {name: g.as_type(_wide(g.type)) for name, g in gradients.items()}
        wide = multiplied(wide, inverse, self._factors if self._limit is None else {})
        # The sum of 0 x is 0 if all x are finite, otherwise not a number.
        sums = [
            Value(self._nodes, self._nodes.add("ReduceSum", [g * 0.0], keepdims=0), g.type).as_type(
                TensorProto.FLOAT
            )
            for g in wide.values()
        ]
        total = self._nodes.value(self._nodes.add("Sum", sums))
        finite = self._nodes.value(self._nodes.add("Equal", [total, total.number(0.0)]), TensorProto.BOOL)
        self._give(finite, FINITE, [])
        return wide, finite

    def _optimize(self, gradients: dict[str, Value], finite: Value | None) -> None:
        clipping = self._clipping
        weights = {name: self._nodes.value(name, self._type_of(name)) for name in gradients}
        gradients = clipping.each(gradients, weights)
        if self._limit is not None:
            gradients = clipped(self._nodes, gradients, self._limit, self._factors)
        elif finite is None:
            self._multiply_products(gradients)
        self._input(RATE, TensorProto.FLOAT, [])
        self._input(STEP, TensorProto.INT64, [])
        steps = self._nodes.value(STEP, TensorProto.INT64)
        after = steps + 1
        taken = after if finite is None else _chosen(finite, after, steps)
        count = after.as_type(TensorProto.FLOAT)
        kept = None
        if self._average is not None:
            self._states.append(AVERAGE)
            averaged = self._scalar(COUNT, AVERAGE, COUNT, 0.0)
            kept = self._average.kept(averaged)
            self._keep(averaged, averaged + 1.0, [], finite)
        for group in self._optimizers:
            before = {
                scalar: self._scalar(
                    scalar if group.name == ONLY_GROUP else f"{group.name}.{scalar}",
                    group.name,
                    scalar,
                    initial,
                )
                for scalar, initial in group.scalars.items()
            }
            moved = dict(before)
            update = group.prepare(self._nodes.value(RATE), count, moved)
            self._groups[group.name] = group.parameters
            own = clipping.of_group(self._nodes, {name: gradients[name] for name in group.parameters})
            for name, gradient in own.items():
                self._update_parameter(group, _averaging(update, kept), name, gradient, finite)
            for scalar, value in moved.items():
                self._keep(before[scalar], value, [], finite)
        self._give(taken, STEP + NEXT, [])
        self._state[STEP] = STEP + NEXT

    def _multiply_products(self, gradients: Mapping[str, Value]) -> None:
        """Let matrix products whose results are gradients multiply by the factor. Other gradients get no factor.

        A factor at an earlier node would change the rounding of all gradients. That matters for gradients that consist of
        rounding errors, such as the gradient of a bias before batch normalization: Adam makes them as large as other gradients.
        """
        made = {node.output[0]: node for node in self._graph.node if node.op_type == "Gemm"}
        read = {name for node in _graph.walk(self._graph) for name in node.input}
        for name, gradient in gradients.items():
            node = made.get(gradient.name)
            is_free = node is not None and len(node.input) == 2 and gradient.name not in read
            if node is None or not is_free or gradient.type != TensorProto.FLOAT:
                self._factors[name] = 1.0
                continue
            alpha = next((entry for entry in node.attribute if entry.name == "alpha"), None)
            if alpha is None:
                alpha = node.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, f=1.0)
            alpha.f *= self._factors.get(name, 1.0)

    def _scalar(self, name: str, group: str, scalar: str, initial: float) -> Value:
        """Add the input for a number that a group keeps from step to step."""
        if name in _graph.names_in_use(self._model):
            raise ValueError(
                f"the model has a value named {name!r}, which a step needs for itself; rename it"
            )
        self._input(name, TensorProto.FLOAT, [])
        self._scalars.setdefault(group, {})[scalar] = {"input": name, "initial": initial}
        return self._nodes.value(name)

    def _update_parameter(
        self, group: Group, update: Update, name: str, gradient: Value, finite: Value | None
    ) -> None:
        shape, own = self._source.parameters[name].shape, self._type_of(name)
        wide = _wide(own)
        weight = self._nodes.value(name, own)
        moments: dict[str, Value] = {}
        shapes: dict[str, Sequence[int]] = {}
        for i, state in enumerate(self._states):
            if (form := group.form(state, wide, shape)) is not None:
                type, shapes[state] = form
                moments[state] = self._nodes.value(f"{name}{MOMENT}{i}", type)
                self._input(moments[state].name, type, shapes[state])
        self._moments[name] = [moment.name for moment in moments.values()]
        parameter = {"w": weight.as_type(wide), "g": gradient.as_type(wide), **moments}
        update(parameter, self._factors.get(name, 1.0), shape)
        self._keep(weight, parameter["w"].as_type(own), shape, finite)
        for state, moment in moments.items():
            self._keep(moment, parameter[state], shapes[state], finite)

    def _keep(self, before: Value, after: Value, shape: Sequence[int], finite: Value | None) -> None:
        """Add an output for a value that the step changes, and pair it with the input."""
        if finite is not None:
            after = _chosen(finite, after, before)
        self._give(after, before.name + NEXT, shape)
        self._state[before.name] = before.name + NEXT

    # ---- the model ----

    def finish(self, initializers: bool) -> onnx.ModelProto:
        """Return the model, checked."""
        model, parameters = self._model, self._source.parameters
        _drop_copies(model.graph)
        use_products(model, self._batch, self._nodes)
        if initializers:
            present = {value.name for value in model.graph.input}
            model.graph.initializer.extend(
                numpy_helper.from_array(np.asarray(value), name)
                for name, value in parameters.items() if name in present
            )  # fmt: skip
        about = {
            "version": VERSION,
            "kind": self._kind,
            "batch": self._batch,
            "outputs": self._outputs,
            "trained": list(self._gradients),
            "frozen": self._frozen,
            "gradients": {n: n + GRADIENT for n in self._gradients} if self._kind == "gradients" else {},
            "moments": self._moments,
            "states": self._states,
            "scalars": self._scalars,
            "groups": self._groups,
            "state": self._state,
            "seed": SEED if self._seeded else None,
            "loss_scale": SCALE if self._loss_scaling else None,
            "in_place": in_place(model.graph, self._state),
        }
        model.producer_name = "ortrain"
        entry = model.metadata_props.add()
        entry.key, entry.value = METADATA, json.dumps(about)
        model.graph.name = f"ortrain {self._kind}"
        try:
            onnx.checker.check_model(model, full_check=True)
        except onnx.checker.ValidationError as error:
            raise ValueError(
                f"the step model is not valid in opset {_graph.opset_of(model)}; it may be valid in a later opset: {error}"
            ) from error
        return model


def _wide(type: int) -> int:
    """Return float for the types of 16 bits, other types unchanged."""
    return TensorProto.FLOAT if type in (TensorProto.FLOAT16, TensorProto.BFLOAT16) else type


def _averaging(update: Update, kept: Value | None) -> Update:
    """Return an update that also updates the average of the weight."""
    if kept is None:
        return update

    def both(parameter: dict[str, Value], factor: float, shape: tuple[int, ...]) -> None:
        update(parameter, factor, shape)
        weight, share = parameter["w"], kept.as_type(parameter["w"].type)
        parameter[AVERAGE] = parameter[AVERAGE] * share + weight * (1.0 - share)

    return both


def _chosen(condition: Value, yes: Value, no: Value) -> Value:
    nodes = condition._nodes
    return Value(nodes, nodes.add("Where", [condition, yes, no]), yes.type)


def _with_standard_operators(model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        made: onnx.ModelProto = onnx.ModelProto.FromString(
            _ortrain.use_standard_operators(model.SerializeToString())
        )
    except OrtrainError as error:
        raise ValueError(str(error)) from error
    return made


def _take_accumulation(model: onnx.ModelProto) -> dict[str, str]:
    """Make the parameters' gradients outputs instead of adding them to buffers; return their names."""
    graph = model.graph
    gradients = {}
    buffers = set()
    for node in list(graph.node):
        if node.op_type == "InPlaceAccumulatorV2" and node.domain == "com.microsoft":
            gradients[node.output[0].removesuffix(_ACCUMULATED)] = node.input[1]
            buffers |= {node.input[0], node.input[2]}
            graph.node.remove(node)
    for values, gone in ((graph.input, buffers), (graph.output, {n + _ACCUMULATED for n in gradients})):
        kept = [value for value in values if value.name not in gone]
        del values[:]
        values.extend(kept)
    present = {value.name for value in graph.output}
    graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in dict.fromkeys(gradients.values()) if name not in present
    )
    return gradients


def _expose_statistics(model: onnx.ModelProto) -> dict[str, str]:
    """Make the updated running statistics outputs; return the outputs by the names of the inputs."""
    statistics: dict[str, str] = {}
    for node in model.graph.node:
        if node.op_type != "BatchNormInternal":
            continue
        for before, after in zip(node.input[3:5], node.output[1:3], strict=True):
            if before in statistics:
                raise ValueError(
                    f"two nodes update the running statistic {before!r}, the second is {node.name!r}; "
                    "a step has one new value for each"
                )
            statistics[before] = after
            model.graph.output.append(onnx.ValueInfoProto(name=after))
    return statistics


def _drop_copies(graph: onnx.GraphProto) -> None:
    """Remove Identity nodes that copy a result to an output of the graph, because runtimes run such copies."""
    made = {name for node in graph.node for name in node.output}
    outputs = {value.name for value in graph.output}
    renamed: dict[str, str] = {}
    for node in list(graph.node):
        if node.op_type != "Identity" or node.domain or node.output[0] not in outputs:
            continue
        [source], [target] = node.input, node.output
        if source in made and source not in outputs and source not in renamed:
            renamed[source] = target
            graph.node.remove(node)
    _rename(graph, renamed)


def _seed_of_gradient(model: onnx.ModelProto, loss: str) -> str:
    """Return the name of the constant 1 from which the gradients start."""
    for tensor in model.graph.initializer:
        if tensor.name.startswith(f"{loss}_grad") and np.all(numpy_helper.to_array(tensor) == 1):
            return str(tensor.name)
    raise ValueError(f"the gradients do not start from the loss {loss!r}, so that it cannot be scaled")


def _element_types(model: onnx.ModelProto) -> dict[str, int]:
    inferred = onnx.shape_inference.infer_shapes(model)
    values = (*inferred.graph.input, *inferred.graph.output, *inferred.graph.value_info)
    return {v.name: v.type.tensor_type.elem_type for v in values} | {
        tensor.name: tensor.data_type for tensor in inferred.graph.initializer
    }


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Rename values in the nodes of a graph and of the graphs inside it."""
    for node in _graph.walk(graph):
        for values in (node.input, node.output):
            values[:] = [names.get(value, value) for value in values]
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.HasField("g") else []:
                for value in inner.output:
                    value.name = names.get(value.name, value.name)


def _renamed(value: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(value)
    copy.name = name
    return copy


def _add_axis(value: onnx.ValueInfoProto, size: int) -> None:
    """Declare a new first axis."""
    shape = value.type.tensor_type.shape
    dims = list(shape.dim)
    del shape.dim[:]
    shape.dim.add().dim_value = size
    shape.dim.extend(dims)
