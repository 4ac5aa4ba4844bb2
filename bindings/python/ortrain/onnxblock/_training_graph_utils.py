"""The steps of a training block, under the names by which programs for onnxruntime import them from its inner module.

:class:`ortrain.onnxblock.TrainingBlock` builds the training model in one step, with more checks. From this module it only uses
the accumulation of gradients of inputs.
"""

from __future__ import annotations

import copy
from collections.abc import Collection

import onnx

from ortrain import _graph
from ortrain._graph.evaluation import set_evaluation_mode
from ortrain.api.generated.gradient_graph_builder import GradientGraphBuilder
from ortrain.onnxblock._graph_utils import get_output_from_output_name
from ortrain.onnxblock.model_accessor import load_custom_op_library

_DOMAIN = "com.microsoft"


def build_gradient_graph(
    model: onnx.ModelProto,
    requires_grad: Collection[str],
    frozen_params: Collection[str],
    output_names: list[str] | str,
    custom_op_library: str | None = None,
) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Make inputs of the parameters, and add the gradients of a loss.

    Parameters
    ----------
    model : onnx.ModelProto
        The forward model. Its parameters become inputs, after its other inputs, in the order of its initializers.
    requires_grad : collection of str
        Names of the initializers and inputs whose gradients the model gets.
    frozen_params : collection of str
        Names of the initializers that become inputs without a gradient.
    output_names : list of str or str
        The outputs; the first is the loss.
    custom_op_library : str, optional
        A library of the custom operators of the model, whose gradients are those that were given to
        :func:`ortrain.register_gradient`.

    Returns
    -------
    tuple of onnx.ModelProto
        The model with gradients, whose outputs are the given ones and ``<name>_grad`` for each name of
        ``requires_grad`` in the order of the inputs, and the eval model.

    Raises
    ------
    LookupError
        When an output is not one of the model's.
    OrtrainError
        When the gradient cannot be built.
    """
    load_custom_op_library(custom_op_library)
    names = [output_names] if isinstance(output_names, str) else list(output_names)
    parameters = {*requires_grad, *frozen_params}
    given = {value.name for value in model.graph.input}
    kept = []
    for tensor in model.graph.initializer:
        if tensor.name not in parameters:
            kept.append(copy.deepcopy(tensor))
        elif tensor.name not in given:
            model.graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    eval_model = copy.deepcopy(model)
    set_evaluation_mode(eval_model)

    builder = GradientGraphBuilder(model.SerializeToString(), {names[0]}, set(requires_grad), names[0])
    builder.build()
    gradient_model = onnx.load_from_string(builder.get_model())
    gradients = [f"{value.name}_grad" for value in gradient_model.graph.input if value.name in requires_grad]
    outputs = [get_output_from_output_name(gradient_model, name) for name in (*names, *gradients)]
    outputs = [copy.deepcopy(output) for output in outputs]
    del gradient_model.graph.output[:]
    gradient_model.graph.output.extend(outputs)
    return gradient_model, eval_model


def build_gradient_accumulation_graph(grad_model: onnx.ModelProto, requires_grad: Collection[str]) -> None:
    """Add a node for each gradient of a model, which adds the gradient to a buffer, in place.

    Parameters
    ----------
    grad_model : onnx.ModelProto
        The model from :func:`build_gradient_graph`. For each name, it gets the input
        ``<name>_grad.accumulation.buffer``, and the output ``<name>_grad.accumulation.out`` in place of
        ``<name>_grad``; its last input is ``lazy_reset_grad``.
    requires_grad : collection of str
        The names whose gradients are accumulated.
    """
    gradients = {f"{name}_grad" for name in requires_grad}
    graph = grad_model.graph
    outputs = []
    for i, output in enumerate(graph.output):
        if output.name not in gradients:
            outputs.append(copy.deepcopy(output))
            continue
        buffer, updated = f"{output.name}.accumulation.buffer", f"{output.name}.accumulation.out"
        graph.node.append(
            onnx.helper.make_node(
                "InPlaceAccumulatorV2",
                [buffer, output.name, "lazy_reset_grad"],
                [updated],
                name=f"GradientAccumulator{i}",
                domain=_DOMAIN,
            )
        )
        added = graph.input.add()
        added.CopyFrom(output)
        added.name = buffer
        outputs.append(onnx.helper.make_tensor_value_info(updated, onnx.TensorProto.BOOL, [1]))
    # lazy_reset_grad stays the last input if the model accumulates other gradients already.
    for i, value in enumerate(graph.input):
        if value.name == "lazy_reset_grad":
            del graph.input[i]
            break
    graph.input.append(onnx.helper.make_tensor_value_info("lazy_reset_grad", onnx.TensorProto.BOOL, [1]))
    del graph.output[:]
    graph.output.extend(outputs)
    _graph.import_domain(grad_model, _DOMAIN, 1)


def get_model_parameters(
    model: onnx.ModelProto, requires_grad: Collection[str], frozen_params: Collection[str]
) -> tuple[list[onnx.TensorProto], list[onnx.TensorProto]]:
    """Return the initializers to train and those that are frozen, each in the order of the model."""
    initializers = model.graph.initializer
    return (
        [tensor for tensor in initializers if tensor.name in requires_grad],
        [
            tensor
            for tensor in initializers
            if tensor.name in frozen_params and tensor.name not in requires_grad
        ],
    )
