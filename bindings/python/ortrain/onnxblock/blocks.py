"""Blocks of one or a few ONNX operators each.

Every block is called with the names of values of the registered model (see :func:`ortrain.onnxblock.base`)
and returns the name of the value that it produces. Where a class says *operator*, it means the ONNX operator with
that name.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from ortrain import _graph
from ortrain.onnxblock.model_accessor import current

_log = logging.getLogger(__name__)

#: NumPy types of the element types that constants of blocks can have.
_FLOATS: dict[int, type[np.floating[Any]]] = {
    TensorProto.FLOAT: np.float32,
    TensorProto.DOUBLE: np.float64,
    TensorProto.FLOAT16: np.float16,
}


class Block(ABC):
    """A block, which extends the registered model.

    A subclass implements :meth:`build`, changing ``self.base`` so that it stays valid ONNX.

    Parameters
    ----------
    temp_file_name : str, default: "temp.onnx"
        Accepted for programs written for onnxruntime, which writes models above 2 GB to this file in the current
        directory. Nothing is written here: weights are left out where only types and shapes matter.

    Attributes
    ----------
    base : onnx.ModelProto
        The registered model, while the block is being built.

    Raises
    ------
    RuntimeError
        When ``temp_file_name`` is an absolute path.
    """

    def __init__(self, temp_file_name: str = "temp.onnx") -> None:
        if os.path.isabs(temp_file_name):
            raise RuntimeError(
                f"temp_file_name must be a path relative to the current directory, found {temp_file_name!r}"
            )
        self.temp_onnx_file_path = os.path.join(os.getcwd(), temp_file_name)
        self._base: onnx.ModelProto | None = None

    @property
    def base(self) -> onnx.ModelProto:
        """The model that the block extends.

        Raises
        ------
        RuntimeError
            Before the block was called.
        """
        if self._base is None:
            raise RuntimeError(f"{type(self).__name__} has no base model before it is called")
        return self._base

    @base.setter
    def base(self, model: onnx.ModelProto | None) -> None:
        self._base = model

    def infer_shapes_on_base(self) -> onnx.ModelProto:
        """Infer types and shapes of the registered model.

        Returns
        -------
        onnx.ModelProto
            A copy of the model that states what ONNX infers about its values. The registered model is not changed.

        Raises
        ------
        RuntimeError
            When no model is registered.
        """
        inferred = onnx.ModelProto()
        inferred.CopyFrom(current().model)
        _graph.infer_shapes(inferred)
        return inferred

    @abstractmethod
    def build(self, *args: Any, **kwargs: Any) -> Any:
        """Extend ``self.base``.

        Returns
        -------
        str or tuple of str
            Names of the values that the block makes.
        """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Build the block on the registered model.

        Returns
        -------
        str or tuple of str
            What :meth:`build` returns.

        Raises
        ------
        RuntimeError
            When no model is registered.
        ValueError
            When the model is not valid ONNX after the block was built.
        """
        accessor = current()
        self.base = accessor.model
        _log.debug("building block %s", type(self).__name__)
        accessor.depth += 1
        try:
            output = self.build(*args, **kwargs)
        finally:
            accessor.depth -= 1
        if accessor.depth == 0:  # inner blocks may leave values that only a later block reads
            _graph.check(self.base, f"the model after block {type(self).__name__}")
        return output

    def _add(
        self,
        op_type: str,
        inputs: list[str],
        token: str | None = None,
        *,
        domain: str = "",
        **attributes: Any,
    ) -> str:
        """Append a node with one output and return the name of the output."""
        accessor = current()
        output = accessor.new_name(token or f"{op_type.lower()}_output")
        node = onnx.helper.make_node(
            op_type,
            inputs,
            [output],
            name=accessor.new_name(op_type),
            domain=domain,
            **{name: value for name, value in attributes.items() if value is not None},
        )
        self.base.graph.node.append(node)
        return output

    def _add_initializer(self, token: str, value: npt.NDArray[Any]) -> str:
        name = current().new_name(token)
        self.base.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
        return name

    def _add_number(self, token: str, value: float, like: str) -> str:
        """Append a rank-0 initializer of the element type of value ``like``."""
        kind = _graph.element_type(self.base, like)
        if kind == TensorProto.BFLOAT16:  # NumPy does not have this type
            name = current().new_name(token)
            self.base.graph.initializer.append(onnx.helper.make_tensor(name, kind, [], [value]))
            return name
        return self._add_initializer(token, np.array(value, _FLOATS.get(kind, np.float32)))


class _Binary(Block):
    op_type = ""

    def build(self, input_name1: str, input_name2: str) -> str:
        """Add the node; the two values are broadcast to one shape.

        Parameters
        ----------
        input_name1, input_name2 : str
            Names of the operands, of one element type.

        Returns
        -------
        str
            Name of the result.
        """
        return self._add(self.op_type, [input_name1, input_name2])


class Add(_Binary):
    """The sum of two values (operator Add)."""

    op_type = "Add"


class Sub(_Binary):
    """The difference of two values (operator Sub)."""

    op_type = "Sub"


class Mul(_Binary):
    """The product of two values, element by element (operator Mul)."""

    op_type = "Mul"


class Div(_Binary):
    """The quotient of two values, element by element (operator Div)."""

    op_type = "Div"


class Pow(Block):
    """A value raised to a constant power (operator Pow).

    Parameters
    ----------
    exponent : float
        The power.
    """

    def __init__(self, exponent: float) -> None:
        super().__init__()
        self._exponent = exponent

    def build(self, pow_input_name: str) -> str:
        """Add the node.

        Parameters
        ----------
        pow_input_name : str
            Name of the base.

        Returns
        -------
        str
            Name of the result, of the shape of the base.
        """
        exponent = self._add_number("pow_exponent", self._exponent, pow_input_name)
        return self._add("Pow", [pow_input_name, exponent])


class _Unary(Block):
    op_type = ""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self._attributes = attributes

    def build(self, input_name: str) -> str:
        """Add the node.

        Parameters
        ----------
        input_name : str
            Name of the operand.

        Returns
        -------
        str
            Name of the result.
        """
        return self._add(self.op_type, [input_name], **self._attributes)


class ReduceMean(_Unary):
    """The mean over all axes (operator ReduceMean).

    Parameters
    ----------
    keepdims : bool, default: True
        Whether the result has the rank of the operand, with dimensions of 1, or is a scalar.
    """

    op_type = "ReduceMean"

    def __init__(self, keepdims: bool = True) -> None:
        super().__init__(keepdims=int(keepdims))


class ReduceSum(_Unary):
    """The sum over all axes (operator ReduceSum).

    Parameters
    ----------
    keepdims : bool, default: True
        Whether the result has the rank of the operand, with dimensions of 1, or is a scalar.
    """

    op_type = "ReduceSum"

    def __init__(self, keepdims: bool = True) -> None:
        super().__init__(keepdims=int(keepdims))


class Sigmoid(_Unary):
    """The logistic function 1 / (1 + exp(-x)) (operator Sigmoid)."""

    op_type = "Sigmoid"

    def __init__(self) -> None:
        super().__init__()


class Log(_Unary):
    """The natural logarithm (operator Log)."""

    op_type = "Log"

    def __init__(self) -> None:
        super().__init__()


class Neg(_Unary):
    """The value with its sign changed (operator Neg)."""

    op_type = "Neg"

    def __init__(self) -> None:
        super().__init__()


class Abs(_Unary):
    """The absolute value (operator Abs)."""

    op_type = "Abs"

    def __init__(self) -> None:
        super().__init__()


class Constant(Block):
    """A constant float32 of shape [1].

    Parameters
    ----------
    value_float : float
        The number.
    """

    def __init__(self, value_float: float) -> None:
        super().__init__()
        self._value = value_float

    def build(self) -> str:
        """Add the constant as an initializer.

        Returns
        -------
        str
            Name of the constant.
        """
        return self._add_initializer("initializer", np.array([self._value], np.float32))


class SequenceConstruct(Block):
    """A sequence of tensors (operator SequenceConstruct)."""

    def build(self, *sequence_input_names: str) -> str:
        """Add the node.

        Parameters
        ----------
        *sequence_input_names : str
            Names of the tensors, of one element type.

        Returns
        -------
        str
            Name of the sequence.
        """
        return self._add("SequenceConstruct", list(sequence_input_names))


class ReduceAllL2(Block):
    """The L2 norm of all elements of several tensors together (operator com.microsoft.ReduceAllL2)."""

    def build(self, *reduce_node_input_names: str) -> str:
        """Add the node.

        Parameters
        ----------
        *reduce_node_input_names : str
            Names of the tensors.

        Returns
        -------
        str
            Name of the norm, a float32 scalar.
        """
        _graph.import_domain(self.base, "com.microsoft", 1)
        output = self._add("ReduceAllL2", list(reduce_node_input_names), domain="com.microsoft")
        # ONNX shape inference does not know the operator.
        self.base.graph.value_info.append(onnx.helper.make_tensor_value_info(output, TensorProto.FLOAT, []))
        return output


class Clip(Block):
    """The value limited to an interval (operator Clip).

    Parameters
    ----------
    clip_min, clip_max : float, optional
        The ends of the interval; without one, the interval is unbounded on that side.
    """

    def __init__(self, clip_min: float | None = None, clip_max: float | None = None) -> None:
        super().__init__()
        self._min = clip_min
        self._max = clip_max

    def build(self, clip_input_name: str) -> str:
        """Add the node.

        Parameters
        ----------
        clip_input_name : str
            Name of the value.

        Returns
        -------
        str
            Name of the result.
        """
        inputs = [clip_input_name, "", ""]
        if self._min is not None:
            inputs[1] = self._add_number("clip_min", self._min, clip_input_name)
        if self._max is not None:
            inputs[2] = self._add_number("clip_max", self._max, clip_input_name)
        while not inputs[-1]:
            inputs.pop()
        return self._add("Clip", inputs)


class PassThrough(Block):
    """Returns its arguments and adds nothing."""

    def build(self, *input_names: str) -> str | tuple[str, ...]:
        """Return the names; one name alone, several as a tuple."""
        return input_names[0] if len(input_names) == 1 else input_names


class InputLike(Block):
    """A new graph input of the type and shape of a value.

    Parameters
    ----------
    like : str
        Name of the value.
    """

    def __init__(self, like: str) -> None:
        super().__init__()
        self._like = like

    def build(self, input_name: str | None = None) -> str:
        """Add the input.

        Parameters
        ----------
        input_name : str, optional
            Its name; a new one by default.

        Returns
        -------
        str
            Its name.

        Raises
        ------
        LookupError
            When type and shape of the value are unknown.
        """
        return self._input_like(self._like, input_name)

    def _input_like(self, like: str, input_name: str | None) -> str:
        info = _graph.find_value_info(self.base, like)
        if info is None:
            raise LookupError(
                f"cannot create an input like {like!r}: the model does not declare the type and shape of such a value"
            )
        return str(_graph.add_input_like(self.base, info, input_name or current().new_name("input")).name)


class LabelEncoder(Block):
    """A look-up from keys to values (operator ai.onnx.ml.LabelEncoder, version 2).

    Parameters
    ----------
    default_float, default_int64, default_string
        The value of keys that are not in the list.
    keys_floats, keys_int64s, keys_strings : list, optional
        The keys, in one of the three types.
    values_floats, values_int64s, values_strings : list, optional
        The value of each key, in one of the three types.
    """

    def __init__(
        self,
        default_float: float = 0.0,
        default_int64: int = -1,
        default_string: str = "_Unused",
        keys_floats: list[float] | None = None,
        keys_int64s: list[int] | None = None,
        keys_strings: list[str] | None = None,
        values_floats: list[float] | None = None,
        values_int64s: list[int] | None = None,
        values_strings: list[str] | None = None,
    ) -> None:
        super().__init__()
        self._attributes: dict[str, Any] = {
            "default_float": default_float,
            "default_int64": default_int64,
            "default_string": default_string,
            "keys_floats": keys_floats,
            "keys_int64s": keys_int64s,
            "keys_strings": keys_strings,
            "values_floats": values_floats,
            "values_int64s": values_int64s,
            "values_strings": values_strings,
        }

    def build(self, label_encoder_input_name: str) -> str:
        """Add the node.

        Parameters
        ----------
        label_encoder_input_name : str
            Name of the keys.

        Returns
        -------
        str
            Name of the values, of the shape of the keys.
        """
        _graph.import_domain(self.base, "ai.onnx.ml", 2)
        return self._add(
            "LabelEncoder",
            [label_encoder_input_name],
            "label_encoder.output",
            domain="ai.onnx.ml",
            **self._attributes,
        )


class Cast(Block):
    """The value in another element type (operator Cast).

    Parameters
    ----------
    to : int
        The type, one of ``onnx.TensorProto.DataType``.
    """

    def __init__(self, to: int) -> None:
        super().__init__()
        self._to = to

    def build(self, cast_input_name: str) -> str:
        """Add the node.

        Parameters
        ----------
        cast_input_name : str
            Name of the value.

        Returns
        -------
        str
            Name of the result.
        """
        return self._add("Cast", [cast_input_name], "cast.output", to=self._to)


class Linear(Block):
    """A fully connected layer, ``alpha · x · weight + beta · bias`` (operator Gemm).

    The weight has shape [in_features, out_features], the bias [out_features]. Both are initialized uniformly in
    ±1/√in_features, from NumPy's global random state.

    Parameters
    ----------
    in_features, out_features : int
        Size of the last dimension of input and result.
    bias : bool, default: True
        Whether there is a bias.
    alpha, beta : float, default: 1.0
        Factors of the product and the bias.
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, alpha: float = 1.0, beta: float = 1.0
    ) -> None:
        super().__init__()
        self._in_features = in_features
        self._out_features = out_features
        self._bias = bias
        self._alpha = alpha
        self._beta = beta

    def build(self, linear_input_name: str) -> str:
        """Add weight, bias and node.

        Parameters
        ----------
        linear_input_name : str
            Name of the input, of shape [batch, in_features].

        Returns
        -------
        str
            Name of the result, of shape [batch, out_features].
        """
        bound = 1.0 / np.sqrt(self._in_features)

        def start(*shape: int) -> npt.NDArray[np.float32]:
            return np.random.uniform(-bound, bound, shape).astype(np.float32)

        inputs = [
            linear_input_name,
            self._add_initializer("linear.weight", start(self._in_features, self._out_features)),
        ]
        if self._bias:
            inputs.append(self._add_initializer("linear.bias", start(self._out_features)))
        return self._add("Gemm", inputs, "linear.output", alpha=self._alpha, beta=self._beta)
