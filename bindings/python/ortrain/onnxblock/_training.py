"""Blocks that build whole models: forward models, and training and eval models."""

from __future__ import annotations

import copy
import logging
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import onnx

from ortrain import _graph
from ortrain._files.weights import put_back, taken_out
from ortrain._graph.evaluation import set_evaluation_mode
from ortrain._support.suggestions import did_you_mean
from ortrain.onnxblock import _core_tools, _unknown_operators
from ortrain.onnxblock._training_graph_utils import build_gradient_accumulation_graph
from ortrain.onnxblock.blocks import Block
from ortrain.onnxblock.model_accessor import ModelAccessor, current

_log = logging.getLogger(__name__)


def _build(
    block: Block, accessor: ModelAccessor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, list[str]]:
    """Build a block, make the values it returns the outputs of the model, and infer types and shapes."""
    block.base = accessor.model
    _log.debug("building block %s", type(block).__name__)
    accessor.depth += 1
    # blocks add operators of ONNX, also to models that use none
    _graph.import_domain(accessor.model, "", _graph.ADDED_OPSET)
    if accessor.depth == 1:
        _graph.infer_shapes(
            accessor.model
        )  # a loss creates its target from the declared shape of an output, which must be right
    try:
        output = block.build(*args, **kwargs)
    finally:
        accessor.depth -= 1
    names = [output] if isinstance(output, str) else list(output or ())
    if not names or not all(isinstance(name, str) for name in names):
        raise TypeError(
            f"{type(block).__name__}.build must return the name of an output, or a tuple of names; "
            f"it returned {output!r}"
        )
    _graph.register_outputs(accessor.model, names)
    _graph.infer_shapes(accessor.model)
    return output, names


def _not_built(block: Block, what: str) -> RuntimeError:
    """Return the error for a request of a result before the block was called."""
    return RuntimeError(f"Please build the {what}. {type(block).__name__} was not called on a base model yet")


class ForwardBlock(Block):
    """A block whose result is a whole model: the values that ``build`` returns become the outputs of the graph.

    Examples
    --------
    ::

        class Doubled(onnxblock.ForwardBlock):
            def __init__(self):
                super().__init__()
                self.add = onnxblock.blocks.Add()

            def build(self, name):
                return self.add(name, name)

        block = Doubled()
        with onnxblock.base(model):
            block("output")
        doubled = block.to_model_proto()
    """

    def __init__(self) -> None:
        super().__init__()
        self._model: onnx.ModelProto | None = None

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Extend ``self.base``; return the name of the graph's output, or a tuple of names."""

    def to_model_proto(self) -> onnx.ModelProto:
        """Return the model.

        Raises
        ------
        RuntimeError
            Before the block was called.
        """
        if self._model is None:
            raise _not_built(self, "forward models first before trying to retrieve it")
        return self._model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build the model on the registered one.

        Returns
        -------
        str or tuple of str
            What :meth:`build` returns.

        Raises
        ------
        RuntimeError
            When no model is registered.
        TypeError
            When ``build`` does not return names.
        ValueError
            When the model is not valid ONNX.
        """
        accessor = current()
        output, _ = _build(self, accessor, args, kwargs)
        _graph.check(accessor.model, f"the model after block {type(self).__name__}")
        self._model = copy.deepcopy(accessor.model)
        return output


class TrainingBlock(Block):
    """A block whose first output is the loss; it builds the training and the eval model.

    Declare with :meth:`requires_grad` which parameters are trained. After the call, :meth:`to_model_proto` returns
    the models and :meth:`parameters` the parameters, which the models take as inputs. With nothing to train,
    the training model only computes the loss.

    Attributes
    ----------
    disabled_passes : sequence of str
        Passes that do not rewrite the model before its gradient is built, such as ``"fuse_gelu"``.
    leave_out_unreached : bool
        Whether parameters that no gradient reaches stay in the models as constants instead of being
        rejected; False by default.
    unreached : list of str
        After the call, the parameters that were left out for this reason.

    Examples
    --------
    ::

        class Regression(onnxblock.TrainingBlock):
            def __init__(self):
                super().__init__()
                self.loss = onnxblock.loss.MSELoss()

            def build(self, prediction):
                return self.loss(prediction)

        block = Regression()
        block.requires_grad("fc.weight")
        with onnxblock.base(model):
            block("output")
        training_model, eval_model = block.to_model_proto()
    """

    # Whether gradients of inputs are accumulated like those of parameters, as in onnxruntime-training, rather
    # than returned.
    _accumulates_input_gradients = True

    def __init__(self) -> None:
        super().__init__()
        self.disabled_passes: Sequence[str] = ()
        self.leave_out_unreached = False
        self.unreached: list[str] = []
        self._requires_grad: dict[str, None] = {}  # the keys are a set with an order
        self._frozen: dict[str, None] = {}
        self._parameters: tuple[list[onnx.TensorProto], list[onnx.TensorProto]] | None = None
        self._training_model: onnx.ModelProto | None = None
        self._eval_model: onnx.ModelProto | None = None

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Extend ``self.base``; return the name of the loss, or a tuple of names that begins with it."""

    def requires_grad(self, argument_name: str, value: bool = True) -> None:
        """Declare whether a parameter is trained, or request the gradient of an input.

        A parameter that is not declared stays in the models as a constant. Running statistics that batch
        normalization updates are always parameters, and never trained.

        Parameters
        ----------
        argument_name : str
            Name of an initializer of the base model, or the output of one of its Constant nodes, which becomes
            an initializer. An initializer of a subgraph (of If, Loop or Scan) moves to the main graph. It keeps its name unless
            another value has that name; if several subgraphs have initializers of one name, all but one get a number. Or name
            of an input of the base model, whose gradient the training model adds to its input
            ``<name>_grad.accumulation.buffer``, as it does for parameters; its output ``<name>_grad.accumulation.out`` says
            that it did. Training sessions take such a model only if the checkpoint has a parameter of that name. Models of
            :func:`ortrain.artifacts.generate_artifacts` return the gradients of inputs instead.
        value : bool, default: True
            True to train it, False to make it a parameter that training does not change. In the second case,
            a name that is not an initializer of the model is ignored with a warning.
        """
        wanted, other = (self._requires_grad, self._frozen) if value else (self._frozen, self._requires_grad)
        wanted[argument_name] = None
        other.pop(argument_name, None)

    def parameters(self) -> tuple[list[onnx.TensorProto], list[onnx.TensorProto]]:
        """Return the trainable and the frozen parameters, each in the order of the model.

        Raises
        ------
        RuntimeError
            Before the block was called.
        """
        if self._parameters is None:
            # Programs for onnxruntime search for the first sentence.
            raise _not_built(self, "training model first before trying to retrieve the parameters")
        return self._parameters

    def to_model_proto(self) -> tuple[onnx.ModelProto, onnx.ModelProto]:
        """Return the training model and the eval model.

        Raises
        ------
        RuntimeError
            Before the block was called.
        """
        if self._training_model is None or self._eval_model is None:
            raise _not_built(self, "training and eval models first before trying to retrieve them")
        return self._training_model, self._eval_model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build loss and gradients on the registered model, which becomes the training model.

        Returns
        -------
        str or tuple of str
            What :meth:`build` returns.

        Raises
        ------
        RuntimeError
            When no model is registered.
        TypeError
            When ``build`` does not return names.
        ValueError
            When the model is not valid ONNX, a parameter to train is not in it, or it cannot be trained; the
            message names every reason.
        """
        accessor = current()
        output, names = _build(self, accessor, args, kwargs)
        model = accessor.model
        trainable, frozen, inputs = self._choose(model)
        _log.debug("building the gradients of %d parameters from loss %s", len(trainable), names[0])

        forward, ordered = _with_parameters_as_inputs(model, trainable, frozen)
        # Constants that are in files, or too large for a protobuf message, become inputs: the core only needs their types.
        constants = taken_out(forward)
        data = forward.SerializeToString()
        # The core reports all obstacles at once. ONNX reports mismatched types.
        report = _core_tools.find_untrainable(data, ordered, inputs, names[0], names[1:])
        if report and self.leave_out_unreached:
            self.unreached = _core_tools.find_unreached(data, ordered, names[0], names[1:])
            if self.unreached:
                trainable -= set(self.unreached)
                forward, ordered = _with_parameters_as_inputs(model, trainable, frozen)
                constants = taken_out(forward)
                data = forward.SerializeToString()
                report = _core_tools.find_untrainable(data, ordered, inputs, names[0], names[1:])
        try:
            _graph.check_types(forward, f"the model after block {type(self).__name__}")
        except ValueError as error:
            report = "\n".join(filter(None, [report, str(error)]))
        if report:
            raise ValueError(f"the model cannot be trained:\n{_unknown_operators.explain(model, report)}")
        self._parameters = (
            [copy.deepcopy(tensor) for tensor in model.graph.initializer if tensor.name in trainable],
            [copy.deepcopy(tensor) for tensor in model.graph.initializer if tensor.name in frozen],
        )
        self._training_model = onnx.ModelProto.FromString(
            _core_tools.build_training_model(
                data,
                ordered,
                [tensor.name for tensor in self._parameters[1]],
                inputs,
                names[0],
                names[1:],
                self.disabled_passes,
            )
        )
        put_back(self._training_model, constants)
        put_back(forward, constants)
        if inputs and self._accumulates_input_gradients:
            build_gradient_accumulation_graph(self._training_model, inputs)
        set_evaluation_mode(forward)
        self._eval_model = forward
        accessor.replace(self._training_model)
        return output

    def _choose(self, model: onnx.ModelProto) -> tuple[set[str], set[str], list[str]]:
        """Return what is trained, what is frozen, and the inputs whose gradients were requested."""
        _graph.constants_to_initializers(
            model, {*self._requires_grad, *self._frozen, *_graph.running_statistics(model, updated_only=True)}
        )
        for names in (self._requires_grad, self._frozen):
            for name, lifted in _graph.lift_initializers(model, names).items():
                names.pop(name)
                names.update(dict.fromkeys(lifted))
                _log.info("initializer %s of a subgraph is a parameter: %s", name, ", ".join(lifted))
        initializers = [tensor.name for tensor in model.graph.initializer]
        inputs = [
            value.name
            for value in model.graph.input
            if value.name in self._requires_grad and value.name not in initializers
        ]
        trainable = set(self._requires_grad) - set(inputs)
        # Programs that freeze all buffers of a network also name buffers that its export does not contain.
        absent = [name for name in self._frozen if name not in initializers]
        if absent:
            _log.warning(
                "ignored parameters to freeze that are not initializers of the model: %s",
                ", ".join(f"{name}{did_you_mean(name, initializers)}" for name in absent),
            )
        missing = [name for name in self._requires_grad if name in trainable and name not in initializers]
        if missing:
            hints = [f"{name!r}{did_you_mean(name, initializers)}" for name in missing]
            raise ValueError(
                f"the model has no initializer named {', '.join(hints)}, nor an input; it has {len(initializers)}: "
                f"{', '.join(initializers[:20])}{', ...' if len(initializers) > 20 else ''}"
            )
        statistics = _graph.running_statistics(model)
        wrong = [name for name in statistics if name in trainable]
        if wrong:
            raise ValueError(
                f"running statistics of batch normalization cannot be trained: {', '.join(wrong)}; "
                "the training step updates them"
            )
        updated = _graph.running_statistics(model, updated_only=True)
        frozen = {name for name in (*self._frozen, *updated) if name in initializers}
        return trainable, frozen, inputs


def _with_parameters_as_inputs(
    model: onnx.ModelProto, trainable: set[str], frozen: set[str]
) -> tuple[onnx.ModelProto, list[str]]:
    """Return a copy whose parameters are inputs, after the other inputs, and the names of the trainable ones."""
    forward = _graph.without_initializers(model)
    initializers = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in initializers]
    del forward.graph.input[:]
    forward.graph.input.extend(inputs)
    for tensor in model.graph.initializer:
        if tensor.name in trainable or tensor.name in frozen:
            forward.graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
        else:
            forward.graph.initializer.append(tensor)
    return forward, [tensor.name for tensor in model.graph.initializer if tensor.name in trainable]
