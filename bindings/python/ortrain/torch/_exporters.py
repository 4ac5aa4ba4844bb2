"""PyTorch's two exporters, with options to write a network in training mode without changes."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import onnx
import torch

from ortrain.torch._dynamic import DynamicShapes

OPSET = 18
"""The version of ONNX's operators: the one that PyTorch's newer exporter is written for."""


def with_torch_export(
    network: Any, tensors: Sequence[Any], names: Sequence[str], dynamic: DynamicShapes
) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Export with the newer exporter, which captures the network with ``torch.export``; it has no warnings."""
    with _quietly():
        program = torch.onnx.export(
            network,
            tuple(tensors),
            dynamo=True,
            optimize=False,
            verbose=False,
            opset_version=OPSET,
            input_names=list(names),
            dynamic_shapes={"tensors": tuple(dict(shape) if shape else None for shape in dynamic)},
            custom_translation_table=_translations(),
        )
    return program.model_proto, ()


def with_torchscript(
    network: Any, tensors: Sequence[Any], names: Sequence[str], dynamic: DynamicShapes
) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Export with the older exporter, which traces the network to TorchScript.

    Its warnings are about Python code that depends on values of tensors. The model has only the path that the code took
    for these tensors.
    """
    axes = {
        name: {axis: _name_of(dim, f"{name}_{axis}") for axis, dim in shape.items()}
        for name, shape in zip(names, dynamic, strict=True)
        if shape
    }
    file = io.BytesIO()
    with _quietly() as caught, _symbolics():
        warnings.simplefilter("always", torch.jit.TracerWarning)
        torch.onnx.export(
            network,
            tuple(tensors),
            file,
            dynamo=False,
            opset_version=OPSET,
            input_names=list(names),
            dynamic_axes=axes,
            training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
            keep_initializers_as_inputs=False,
        )
    texts = [
        f"{entry.filename}:{entry.lineno}: {str(entry.message).splitlines()[0]}"
        for entry in caught
        if issubclass(entry.category, torch.jit.TracerWarning) and "Converting a tensor" in str(entry.message)
    ]
    return onnx.load_from_string(file.getvalue()), tuple(dict.fromkeys(texts))


def _name_of(dim: Any, otherwise: str) -> str:
    return dim if isinstance(dim, str) else getattr(dim, "__name__", otherwise)


@contextmanager
def _quietly() -> Iterator[list[warnings.WarningMessage]]:
    """Suppress the exporters' output about themselves, but not their errors. The list gets the warnings that are turned on."""
    disabled = logging.root.manager.disable
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield caught
        finally:
            logging.disable(disabled)


# ----------------------------------------------------------------------------------------------------------------------
# Corrections of translations that are right for inference but wrong for training: batch normalization by the statistics of the
# batch, detached values, and the padding row of an embedding, which is not trained. The exporter also adds a bias of zeros to
# each convolution without bias, in three dimensions one of a wrong shape.
#
# ONNX has no operator that stops gradients. Rounding does, because its derivative is zero. Rounding does not change a large
# number, nor a small number that is multiplied by a large power of two, because neither has a fractional part.

_SCALE = 2.0**64
_DOUBLE_SCALE = 2.0**400
_DTYPES = {
    "Double": torch.float64,
    "Float": torch.float32,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
}
# numbers above this have no fractional part; numbers up to it can be multiplied by either scale
_LARGE = 2.0**60


def _translations() -> dict[Any, Any]:
    """Return the functions with which the newer exporter translates some operators."""
    from onnxscript import opset18 as op

    double, floating = onnx.TensorProto.DOUBLE, (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE)
    narrow = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)

    def stopped(value: Any, dtype: int) -> Any:
        wide = op.Cast(value, to=onnx.TensorProto.FLOAT) if dtype in narrow else value
        scale, kind = (_DOUBLE_SCALE, double) if dtype == double else (_SCALE, onnx.TensorProto.FLOAT)

        def number(value: float) -> Any:
            return op.Constant(value=onnx.helper.make_tensor("number", kind, [], [value]))

        small = op.Mul(op.Round(op.Mul(wide, number(scale))), number(1 / scale))
        result = op.Where(op.Less(op.Abs(wide), number(_LARGE)), small, op.Round(wide))
        return op.Cast(result, to=dtype) if dtype in narrow else result

    def detach(self: Any) -> Any:
        dtype = int(self.dtype)
        return stopped(self, dtype) if dtype in (*floating, *narrow) else op.Identity(self)

    def embedding(
        weight: Any,
        indices: Any,
        padding_idx: int = -1,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Any:
        rows = op.Gather(weight, indices)
        if padding_idx < 0:
            return rows
        padding = op.Constant(value=onnx.helper.make_tensor("padding", int(indices.dtype), [], [padding_idx]))
        is_padding = op.Unsqueeze(op.Equal(indices, padding), op.Constant(value_ints=[-1]))
        return op.Where(is_padding, stopped(rows, int(weight.dtype)), rows)

    def batch_norm(
        input: Any,
        weight: Any = None,
        bias: Any = None,
        running_mean: Any = None,
        running_var: Any = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Any:
        channels = op.Shape(input, start=1, end=2)

        def filled(value: float) -> Any:
            number = op.Constant(value=onnx.helper.make_tensor("value", int(input.dtype), [1], [value]))
            return op.Expand(number, channels)

        weight = filled(1.0) if weight is None else weight
        bias = filled(0.0) if bias is None else bias
        mean, variance = (filled(0.0), filled(1.0)) if running_mean is None else (running_mean, running_var)
        # The exporter renames each result, so a result must not be an input.
        if not training:
            normalized = op.BatchNormalization(input, weight, bias, mean, variance, epsilon=eps)
            return normalized, *(op.Identity(value) for value in (mean, variance, mean, variance))
        normalized, mean, variance = op.BatchNormalization(
            input, weight, bias, mean, variance, epsilon=eps, momentum=1 - momentum, training_mode=1
        )
        return normalized, mean, variance, mean, variance

    def convolution(
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Sequence[int] = (1,),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        groups: int = 1,
    ) -> Any:
        axes = len(weight.shape) - 2

        def per_axis(values: Sequence[int]) -> list[int]:
            return [*values] * (axes if len(values) == 1 else 1)

        first = op.Constant(value_ints=[0])
        is_batch = len(input.shape) == axes + 2
        given = (input if is_batch else op.Unsqueeze(input, first), weight)
        result = op.Conv(
            *(given if bias is None else (*given, bias)),
            strides=per_axis(stride),
            pads=per_axis(padding) * 2,
            dilations=per_axis(dilation),
            group=groups,
        )
        return result if is_batch else op.Squeeze(result, first)

    aten = torch.ops.aten
    return {
        aten.conv1d.default: convolution,
        aten.conv2d.default: convolution,
        aten.conv3d.default: convolution,
        aten.detach.default: detach,
        aten.embedding.default: embedding,
        aten._native_batch_norm_legit_functional.default: batch_norm,
    }


@contextmanager
def _symbolics() -> Iterator[None]:
    """Let the older exporter translate some operators in the same way."""
    from torch.onnx import symbolic_helper as helper

    def dtype_of(value: Any) -> Any:
        return _DTYPES[value.type().scalarType()]

    def constant(g: Any, value: Any, dtype: Any) -> Any:
        return g.op("Constant", value_t=torch.tensor(value, dtype=dtype))

    def stopped(g: Any, value: Any, dtype: Any) -> Any:
        narrow = {torch.float16: onnx.TensorProto.FLOAT16, torch.bfloat16: onnx.TensorProto.BFLOAT16}.get(
            dtype
        )
        wide = g.op("Cast", value, to_i=onnx.TensorProto.FLOAT) if narrow else value
        scale = _DOUBLE_SCALE if dtype == torch.float64 else _SCALE
        kind = torch.float32 if narrow else dtype
        up = g.op("Mul", wide, constant(g, scale, kind))
        small = g.op("Mul", g.op("Round", up), constant(g, 1 / scale, kind))
        is_small = g.op("Less", g.op("Abs", wide), constant(g, _LARGE, kind))
        result = g.op("Where", is_small, small, g.op("Round", wide))
        return g.op("Cast", result, to_i=narrow) if narrow else result

    def detach(g: Any, value: Any) -> Any:
        dtype = dtype_of(value)
        return stopped(g, value, dtype) if dtype.is_floating_point else g.op("Identity", value)

    def embedding(g: Any, weight: Any, indices: Any, padding_idx: Any, *_: Any) -> Any:
        rows = g.op("Gather", weight, indices)
        padding = helper._parse_arg(padding_idx, "i")
        if padding < 0:
            return rows
        same = g.op("Equal", indices, constant(g, padding, dtype_of(indices)))
        is_padding = g.op("Unsqueeze", same, constant(g, [-1], torch.int64))
        return g.op("Where", is_padding, stopped(g, rows, dtype_of(weight)), rows)

    torch.onnx.register_custom_op_symbolic("aten::detach", detach, OPSET)
    torch.onnx.register_custom_op_symbolic("aten::embedding", embedding, OPSET)
    try:
        yield
    finally:
        torch.onnx.unregister_custom_op_symbolic("aten::detach", OPSET)
        torch.onnx.unregister_custom_op_symbolic("aten::embedding", OPSET)
