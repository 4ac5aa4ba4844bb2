"""The node test cases that come with the `onnx` package, for the operators listed here."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests
from runner import run_model

OPERATORS = {
    "Abs",
    "Acos",
    "Acosh",
    "Adagrad",
    "Adam",
    "Add",
    "AffineGrid",
    "And",
    "ArgMax",
    "ArgMin",
    "ArrayFeatureExtractor",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "Attention",
    "AveragePool",
    "BatchNormalization",
    "Binarizer",
    "BitShift",
    "BitwiseAnd",
    "BitwiseNot",
    "BitwiseOr",
    "BitwiseXor",
    "Cast",
    "CastLike",
    "CausalConvWithState",
    "Ceil",
    "Celu",
    "CenterCropPad",
    "Clip",
    "Col2Im",
    "Conv",
    "ConvInteger",
    "ConvTranspose",
    "Cos",
    "Cosh",
    "CumProd",
    "DFT",
    "DeformConv",
    "DepthToSpace",
    "DequantizeLinear",
    "Det",
    "Div",
    "Dropout",
    "DynamicQuantizeLinear",
    "Einsum",
    "Elu",
    "Equal",
    "Erf",
    "Exp",
    "FlexAttention",
    "Floor",
    "GRU",
    "Gelu",
    "Gemm",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "Greater",
    "GreaterOrEqual",
    "GridSample",
    "GroupNormalization",
    "HardSigmoid",
    "HardSwish",
    "Hardmax",
    "InstanceNormalization",
    "IsInf",
    "IsNaN",
    "LRN",
    "LSTM",
    "LayerNormalization",
    "LeakyRelu",
    "Less",
    "LessOrEqual",
    "LinearAttention",
    "Log",
    "LogSoftmax",
    "LpNormalization",
    "LpPool",
    "MatMul",
    "MatMulInteger",
    "Max",
    "MaxPool",
    "MaxUnpool",
    "Mean",
    "MeanVarianceNormalization",
    "MelWeightMatrix",
    "Min",
    "Mish",
    "Mod",
    "Momentum",
    "Mul",
    "Neg",
    "NegativeLogLikelihoodLoss",
    "Not",
    "OptionalGetElement",
    "OptionalHasElement",
    "Or",
    "PRelu",
    "Pow",
    "QLinearConv",
    "QLinearMatMul",
    "QuantizeLinear",
    "RMSNormalization",
    "RNN",
    "Reciprocal",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
    "Relu",
    "Resize",
    "ReverseSequence",
    "RoiAlign",
    "RotaryEmbedding",
    "Round",
    "STFT",
    "Scatter",
    "ScatterElements",
    "ScatterND",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softmax",
    "SoftmaxCrossEntropyLoss",
    "Softplus",
    "Softsign",
    "SpaceToDepth",
    "Sqrt",
    "Sub",
    "Sum",
    "Swish",
    "Tan",
    "Tanh",
    "TensorScatter",
    "TfIdfVectorizer",
    "ThresholdedRelu",
    "TreeEnsemble",
    "Upsample",
    "Where",
    "Xor",
}
# Types that the core does not carry at all, and those that it only converts. NumPy has no
# bfloat16: test_cast.py casts to it and back inside a model.
UNKNOWN_TYPES = {TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.COMPLEX128, *range(17, 40)}
HALF_TYPES = {TensorProto.FLOAT16, TensorProto.BFLOAT16}
CONVERTING = {"Cast", "CastLike"}
# They draw random numbers, and every implementation draws its own: tests/ops/test_dropout.py looks at ours.
RANDOM = {f"test_training_dropout{suffix}" for suffix in ("", "_mask", "_default", "_default_mask")}
# Inputs that decide the shape of the result are constants of the model.
DECIDE_SHAPES = {
    "axes", "axis", "block_shape", "dft_length", "frame_length", "frame_step", "image_shape", "length", "lower_edge_hertz",
    "num_mel_bins", "output_shape", "roi", "sample_rate", "scales", "shape", "size", "sizes", "step", "upper_edge_hertz",
}  # fmt: skip
# The expected numbers of these cases are written down with four decimals, computed from rounded inputs.
ROUNDED = {
    "test_averagepool_2d_ceil_last_window_starts_on_pad",
    "test_gridsample_bicubic",
    "test_roialign_aligned_false",
    "test_roialign_aligned_true",
}


def _types(model: onnx.ModelProto) -> set[int]:
    values = [*model.graph.input, *model.graph.output]
    return {value.type.tensor_type.elem_type for value in values}


def _is_ours(case: Any) -> bool:
    operators = {node.op_type for node in case.model.graph.node}
    types = _types(case.model)
    return (
        operators <= OPERATORS
        and not types & UNKNOWN_TYPES
        and (operators <= CONVERTING or not types & HALF_TYPES)
        and not any(v.type.tensor_type.elem_type == TensorProto.BFLOAT16 for v in case.model.graph.input)
        and all(value.type.HasField("tensor_type") for value in case.model.graph.input)
        and case.name not in RANDOM
    )


def _load_cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases are computed with NumPy, overflow is part of them
        return [case for case in load_model_tests(kind="node") if _is_ours(case)]


def _array(value: Any) -> np.ndarray:
    array = numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)
    return array


CASES = _load_cases()


def test_every_listed_operator_has_a_case() -> None:
    found = {node.op_type for case in CASES for node in case.model.graph.node}
    assert found == OPERATORS


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_node_case(case: Any) -> None:
    for inputs, outputs in case.data_sets:
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        feeds = {}
        for value, given in zip(case.model.graph.input, inputs, strict=True):
            if value.name in DECIDE_SHAPES:
                model.graph.input.remove(value)
                model.graph.initializer.append(numpy_helper.from_array(_array(given), value.name))
            else:
                feeds[value.name] = _array(given)
        results = run_model(model.SerializeToString(), feeds)
        for value, wanted in zip(case.model.graph.output, outputs, strict=True):
            expected, found = _array(wanted), np.asarray(results[value.name])
            assert found.dtype == expected.dtype
            assert found.shape == expected.shape
            if helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).kind in "fV":
                atol = 1e-4 if case.name in ROUNDED else 1e-6
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=atol)
            else:
                np.testing.assert_array_equal(found, expected)
