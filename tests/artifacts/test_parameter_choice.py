"""What generate_artifacts trains if only a loss is given, in models of every origin.

``tests/models`` has exports of whole networks; the individual cases are here.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from ortrain import artifacts
from ortrain.artifacts import LossType

Array = NDArray[Any]
Node = onnx.NodeProto


def node(op_type: str, inputs: str, output: str, **attributes: Any) -> Node:
    return helper.make_node(op_type, inputs.split(), [output], **attributes)


def number(value: float) -> Array:
    return np.array(value, np.float32)


def array(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).uniform(0.5, 1.5, shape).astype(np.float32)


def model_of(nodes: list[Node], initializers: dict[str, Array], producer: str = "") -> onnx.ModelProto:
    """From x [2, 3] to y."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in initializers.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name=producer)


def report_of(model: onnx.ModelProto, folder: Path, **settings: Any) -> artifacts.ArtifactReport:
    return artifacts.generate_artifacts(model, loss=LossType.MSELoss, artifact_directory=folder, **settings)


#: Nodes from h, one of whose operands is the constant c, and what is said about c.
CONSTANTS = {
    "exponent": ([node("Pow", "h c", "y")], number(2), "exponent"),
    "epsilon under a root": (
        [node("Add", "h c", "a"), node("Sqrt", "a", "b"), node("Div", "h b", "y")], number(1e-5), "epsilon"
    ),
    "epsilon of a power": (
        [node("Add", "c h", "a"), node("Constant", "", "p", value_float=-0.5), node("Pow", "a p", "y")],
        number(1e-5), "epsilon",
    ),
    "epsilon of a logarithm": ([node("Add", "h c", "a"), node("Log", "a", "y")], number(1e-5), "epsilon"),
    "divisor": ([node("Div", "h c", "y")], number(8), "divisor"),
    "bound": ([node("Max", "h c", "y")], number(0.1), "bound"),
    "bound of Clip": ([node("Clip", "h c", "y")], number(0.1), "setting of Clip"),
    "fill": ([node("Cast", "x", "k", to=TensorProto.BOOL), node("Where", "k c h", "y")], number(-1e4), "fill value of Where"),
    "behind Identity": ([node("Identity", "c", "d"), node("Pow", "h d", "y")], number(2), "exponent"),
    "shared by an exponent and a factor": ([node("Pow", "h c", "a"), node("Mul", "a c", "y")], number(2), "exponent"),
    "array of exponents": ([node("Pow", "h c", "y")], array(3), "exponent"),
    "mask": ([node("Add", "h c", "a"), node("Softmax", "a", "y")], np.array([0, 0, -np.inf], np.float32), "a mask"),
    "lowest numbers": (
        [node("Add", "h c", "a"), node("Softmax", "a", "y")],
        np.array([0, 0, np.finfo(np.float32).min], np.float32), "a mask",
    ),
    "frequencies": (
        [
            node("Mul", "x c", "a"), node("Cos", "a", "b"), node("Sin", "a", "d"), node("Add", "b d", "e"),
            node("Mul", "e h", "y"),
        ], array(3), "frequencies",
    ),
    "not read": ([node("Relu", "h", "y")], array(3), "unused"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONSTANTS)
def test_constants_of_the_code_are_left_out(case: str, tmp_path: Path) -> None:
    nodes, constant, reason = CONSTANTS[case]
    report = report_of(
        model_of([node("Mul", "x weight", "h"), *nodes], {"weight": array(3), "c": constant}), tmp_path
    )
    assert report.trained == ["weight"]
    assert report.left_out == ["c"]
    assert report.initializers[1].reason.startswith(reason)


#: The same with parameters.
PARAMETERS = {
    "weight and bias": [node("Mul", "h c", "y")],
    "a single number that scales": [node("Exp", "c", "s"), node("Mul", "h s", "y")],
    "a bias before a square": [node("Add", "h c", "a"), node("Mul", "a a", "y")],
    "a bias before a square that is a power": [
        node("Add", "h c", "a"), node("Constant", "", "two", value_float=2.0), node("Pow", "a two", "y"),
    ],
    "a bias that also goes elsewhere than under a root": [
        node("Add", "h c", "a"), node("Sqrt", "a", "b"), node("Add", "a b", "y"),
    ],
    "the base of a power": [node("Constant", "", "two", value_float=2.0), node("Pow", "c two", "a"), node("Mul", "h a", "y")],
    "the dividend": [node("Div", "c h", "y")],
    "a slope": [node("PRelu", "h c", "y")],
}  # fmt: skip


@pytest.mark.parametrize("case", PARAMETERS)
@pytest.mark.parametrize("constant", [number(0.7), array(1), array(3)], ids=["number", "one", "array"])
def test_parameters_of_models_made_by_hand_are_trained(case: str, constant: Array, tmp_path: Path) -> None:
    model = model_of([node("Mul", "x w", "h"), *PARAMETERS[case]], {"w": array(3), "c": constant})
    assert report_of(model, tmp_path).trained == ["w", "c"]


@pytest.mark.parametrize("waves", [["Sin"], ["Sin", "Cos"]])
def test_layers_before_sines_are_trained(waves: list[str], tmp_path: Path) -> None:
    """Sines are activations of some networks; frequencies of positions are a vector."""
    nodes = [node("MatMul", "x w", "h"), *(node(wave, "h", wave) for wave in waves)]
    nodes.append(node("Sum", " ".join(waves), "y"))
    assert report_of(model_of(nodes, {"w": array(3, 3)}), tmp_path).trained == ["w"]


@pytest.mark.parametrize(
    ("name", "nodes", "value", "trained"),
    [
        # TorchScript: parameters keep their names; transposed weights get numbers, like constants.
        ("m.logit_scale", [node("Exp", "c", "s"), node("Mul", "h s", "y")], number(2.6), True),
        ("logit_scale", [node("Mul", "h c", "y")], number(2.6), True),
        ("onnx::MatMul_123", [node("MatMul", "h c", "y")], array(3, 3), True),
        ("onnx::MatMul_123", [node("MatMul", "h c", "y")], array(3, 1), True),
        ("onnx::Mul_123", [node("Mul", "h c", "y")], number(0.35), False),
        ("/layer/Constant_3_output_0", [node("Mul", "h c", "y")], number(0.35), False),
        ("pool.p", [node("Pow", "h c", "y")], array(1), True),  # generalized mean pooling
        ("onnx::Pow_7", [node("Pow", "h c", "y")], number(2), False),
        ("head.temperature", [node("Div", "h c", "y")], number(2), True),
        ("norm.eps", [node("Add", "h c", "a"), node("Sqrt", "a", "y")], number(1e-6), False),
        ("m.rotary.inv_freq", [node("Mul", "h c", "y")], array(3), False),
        ("m.embed_tokens.embed_scale", [node("Mul", "h c", "y")], number(5.6), False),
        ("m.encoder.lifted_tensor_1", [node("Mul", "h c", "y")], array(3), False),
        ("_tensor_constant0", [node("Mul", "h c", "y")], number(3), False),
        # TensorFlow and Keras
        ("model/dense/MatMul/ReadVariableOp:0", [node("MatMul", "h c", "y")], array(3, 2), True),
        ("model/scale/ReadVariableOp:0", [node("Mul", "h c", "y")], number(2), True),
        ("const_fold_opt__31", [node("MatMul", "h c", "y")], array(3, 2), True),
        ("const_fold_opt__31", [node("Mul", "h c", "y")], number(2), False),
        ("model/normalization/sub/y:0", [node("Sub", "h c", "y")], array(3), False),
        ("model/Const_4:0", [node("Mul", "h c", "y")], number(2), False),
        ("model/Const_4:0", [node("MatMul", "h c", "y")], array(3, 3), False),
        ("ConstantFolding/norm/truediv_recip:0", [node("Mul", "h c", "y")], number(0.25), False),
        # JAX, by jax2tf
        ("jax2tf_net_/Const_4:0", [node("MatMul", "h c", "y")], array(3, 3), True),
        ("jax2tf_net_/Const_4:0", [node("Mul", "h c", "y")], array(3), False),
        # PaddlePaddle
        ("batch_norm2d_0.w_0", [node("Mul", "h c", "y")], array(3), True),
        ("block_0.w_0", [node("Mul", "h c", "y")], array(1), True),
        ("helper.constant.46", [node("Pow", "h c", "y")], number(2), False),
        ("p2o.helper.constant.3", [node("Mul", "h c", "y")], number(0.5), False),
        ("Constant@1", [node("Add", "h c", "y")], number(3), False),
        ("helper.constant.7", [node("MatMul", "h c", "y")], array(3, 3), True),
        # functions written with onnxscript
        ("int64_1_10_cast", [node("Sub", "h c", "y")], number(1), False),
        ("const_14_cast_2", [node("Add", "h c", "y")], number(1), False),
        # scikit-learn
        ("coef", [node("MatMul", "h c", "y")], array(3, 1), True),
        ("Ad_Addcst", [node("Add", "h c", "y")], array(1), True),
        ("Di_Divcst", [node("Div", "h c", "y")], array(1), False),
    ],
)  # fmt: skip
def test_names_of_exporters_are_known(
    name: str, nodes: list[Node], value: Array, trained: bool, tmp_path: Path
) -> None:
    renamed = [Node.FromString(n.SerializeToString()) for n in nodes]
    for n in renamed:
        n.input[:] = [name if read == "c" else read for read in n.input]
    pytorch = not name.startswith(("model/", "const_fold", "coef", "Ad_", "Di_", "jax2tf", "ConstantFolding"))
    model = model_of(
        [node("Mul", "x weight", "h"), *renamed],
        {"weight": array(3), name: value},
        "pytorch" if pytorch else "",
    )
    assert (name in report_of(model, tmp_path).trained) == trained


def test_a_constant_inside_a_branch_is_found(tmp_path: Path) -> None:
    """The branches of an If read values of the graph around them."""

    def branch(nodes: list[Node]) -> onnx.GraphProto:
        return helper.make_graph(nodes, "branch", [], [helper.make_tensor_value_info("out", 1, None)])

    chosen = helper.make_node(
        "If", ["some"], ["y"],
        then_branch=branch([node("Add", "h eps", "a"), node("Sqrt", "a", "b"), node("Pow", "b two", "out")]),
        else_branch=branch([node("Mul", "h gain", "out")]),
    )  # fmt: skip
    model = model_of(
        [
            node("Mul", "x weight", "h"),
            node("ReduceMean", "x", "m", keepdims=0),
            node("Cast", "m", "some", to=TensorProto.BOOL),
            chosen,
        ],
        {"weight": array(3), "eps": number(1e-5), "two": number(2), "gain": number(2)},
    )
    report = report_of(model, tmp_path)
    assert report.left_out == ["eps", "two"]
    assert report.trained == ["weight", "gain"]


def test_cosines_and_sines_of_rotations_are_left_out(tmp_path: Path) -> None:
    angles = np.arange(6).reshape(2, 3) / 3
    nodes = [
        node("Mul", "x cos", "a"), node("Mul", "x sin", "b"), node("Add", "a b", "c"),
        node("Mul", "c gain", "d"), node("Mul", "d gate", "e"), node("Add", "e bias", "y"),
    ]  # fmt: skip
    initializers = {
        "cos": np.cos(angles),
        "sin": np.sin(angles),
        "gain": np.ones((2, 3)),
        "gate": np.zeros((2, 3)),
    }
    model = model_of(nodes, {k: v.astype(np.float32) for k, v in initializers.items()} | {"bias": array(3)})
    report = report_of(model, tmp_path)
    assert report.left_out == ["cos", "sin"]
    assert report.trained == ["gain", "gate", "bias"]


def record(model: onnx.ModelProto, name: str, **entries: str) -> None:
    """Write down what a value was, as PyTorch's newer exporter does."""
    keys = {
        "kind": "pkg.torch.export.graph_signature.InputSpec.kind",
        "folded": "pkg.onnxscript.optimizer.folded_from",
    }
    value = model.graph.value_info.add(name=name)
    for key, text in entries.items():
        value.metadata_props.add(key=keys[key], value=text)


@pytest.mark.parametrize("signature", [True, False])
def test_the_record_of_the_exporter_decides(signature: bool, tmp_path: Path) -> None:
    """Contrary to name and use."""
    names = ["m.p", "m.buffer", "m.literal", "embedding_1", "unsqueeze_3", "val_7"]
    nodes = [node("Pow", "x m.p", "h0")]
    nodes += [node("Mul", f"h{i} {name}", f"h{i + 1}") for i, name in enumerate(names[1:])]
    nodes.append(node("Identity", f"h{len(names) - 1}", "y"))
    values = [number(2), array(3), array(3), array(2, 3), array(2, 3), array(3)]
    model = model_of(nodes, dict(zip(names, values, strict=True)), "pytorch")
    record(model, "m.p", kind="PARAMETER")
    record(model, "m.buffer", kind="BUFFER")
    record(model, "m.literal", kind="CONSTANT_TENSOR")
    record(model, "embedding_1", folded="['m.positions.weight', 'm.position_ids', 'val_2']")
    record(model, "unsqueeze_3", folded="['m.rotary.inv_freq', 'val_3']")
    if signature:
        model.graph.metadata_props.add(
            key="pkg.torch.export.ExportedProgram.graph_signature",
            value="\n# inputs\np_m_p: PARAMETER target='m.p'\n"
            "p_m_positions_weight: PARAMETER target='m.positions.weight'\n"
            "b_m_position_ids: BUFFER target='m.position_ids' persistent=False\n"
            "b_m_rotary_inv_freq: BUFFER target='m.rotary.inv_freq' persistent=False\n",
        )
    report = report_of(model, tmp_path)
    assert report.trained == ["m.p", "embedding_1"]
    assert [choice.reason for choice in report.initializers[:2]] == [
        "recorded as parameter",
        "recorded as buffer",
    ]
    assert "m.positions.weight" in report.initializers[3].reason


def test_a_record_that_leads_to_itself_ends(tmp_path: Path) -> None:
    model = model_of(
        [node("Mul", "x a", "h"), node("Mul", "h w", "y")], {"a": array(3), "w": array(3)}, "pytorch"
    )
    record(model, "a", folded="['b']")
    record(model, "b", folded="['a', 'b']")
    record(model, "w", kind="PARAMETER")
    assert report_of(model, tmp_path).trained == ["w"]


@pytest.mark.parametrize("text", ["", "[", "5", "[1, 2]", "__import__('os')"])
def test_a_record_of_another_form_counts_for_nothing(text: str, tmp_path: Path) -> None:
    model = model_of([node("Mul", "x a", "h"), node("Mul", "h w", "y")], {"a": array(3), "w": array(3)})
    record(model, "a", folded=text)
    assert report_of(model, tmp_path).trained == ["a", "w"]


#: Nodes from the table c to b, which stop gradients.
STOPS = {
    "comparison": [node("Less", "x c", "t"), node("Cast", "t", "b", to=TensorProto.FLOAT)],
    "rounding": [node("Add", "x c", "t"), node("Ceil", "t", "b")],
    "integers": [
        node("Add", "x c", "t"), node("Cast", "t", "i", to=TensorProto.INT64), node("Cast", "i", "b", to=TensorProto.FLOAT),
    ],
    "places": [
        node("Add", "x c", "t"), node("ArgMin", "t", "i", axis=1, keepdims=1), node("Cast", "i", "b", to=TensorProto.FLOAT),
    ],
}  # fmt: skip


@pytest.mark.parametrize("case", STOPS)
def test_what_no_gradient_reaches_is_left_out_unless_it_is_named(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = [*STOPS[case], node("Mul", "b w", "y")]
    model = model_of(nodes, {"c": array(2, 3), "w": array(3)})
    with caplog.at_level(logging.INFO):
        report = report_of(model, tmp_path)
    assert report.trained == ["w"]
    choice = report.initializers[0]
    if case != "comparison":  # a threshold, judged by its use
        assert choice.reason == "no gradient of the loss reaches it"
        assert "no gradient of the loss reaches it" in caplog.text
    with pytest.raises(ValueError, match=r'parameter "c".*no gradient'):
        report_of(model, tmp_path, requires_grad=["c", "w"])


def test_what_nothing_but_another_output_needs_is_left_out(tmp_path: Path) -> None:
    model = model_of([node("Mul", "x w", "y"), node("Mul", "x c", "z")], {"w": array(3), "c": array(3)})
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    report = report_of(model, tmp_path, loss_input_names=["y"], additional_output_names=["z"])
    assert report.trained == ["w"]


def test_an_explicit_list_always_wins(tmp_path: Path) -> None:
    model = model_of([node("Pow", "x c", "h"), node("Mul", "h w", "y")], {"c": number(2), "w": array(3)})
    report = report_of(model, tmp_path, requires_grad=["c"])
    assert report.trained == ["c"]
    assert report.left_out == ["w"]
    report = report_of(model, tmp_path, frozen_params=["c"])
    assert report.frozen == ["c"]
    assert report.trained == ["w"]


def test_every_choice_is_logged_and_what_is_left_out_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = model_of([node("Pow", "x c", "h"), node("Mul", "h w", "y")], {"c": number(2), "w": array(3)})
    with caplog.at_level(logging.INFO):
        report_of(model, tmp_path)
    texts = [(entry.levelname, entry.getMessage()) for entry in caplog.records]
    assert ("INFO", "c [], left out: exponent") in texts
    assert ("INFO", "w [3], trained: used as a weight by Mul") in texts
    fixed_batch, warning = [text for level, text in texts if level == "WARNING"]
    assert "every step takes exactly 2 rows" in fixed_batch
    assert "1 of 2 floating-point initializers" in warning
    assert ": c;" in warning
    caplog.clear()
    report_of(model, tmp_path, requires_grad=["w"])
    warnings = [entry.getMessage() for entry in caplog.records if entry.levelname == "WARNING"]
    assert warnings == [fixed_batch]


def test_a_model_with_nothing_but_constants_gets_a_warning_with_the_reasons(tmp_path: Path) -> None:
    model = model_of([node("Pow", "x c", "y")], {"c": number(2)})
    with pytest.warns(artifacts.NothingToTrainWarning, match=r"requires_grad.*c \(exponent\)"):
        assert report_of(model, tmp_path).trained == []


def test_the_report_prints_as_a_table_and_names_the_files(tmp_path: Path) -> None:
    nodes = [
        node("Pow", "x c", "h"), node("BatchNormalization", "h scale shift mean var", "n"), node("Mul", "n w", "y")
    ]  # fmt: skip
    initializers = {"c": number(2), "w": array(3)} | {
        name: array(3) for name in ("scale", "shift", "mean", "var")
    }
    model = model_of(nodes, initializers)
    report = report_of(
        model, tmp_path, frozen_params=["shift"], optimizer=artifacts.OptimType.SGD, nominal_checkpoint=True, prefix="a_"
    )  # fmt: skip
    lines = str(report).splitlines()
    assert lines[0].split() == ["initializer", "dtype", "shape", "fate", "reason"]
    assert lines[2].split() == ["c", "float32", "[]", "left", "out", "exponent"]
    assert lines[3].split()[:4] == ["w", "float32", "[3]", "trained"]
    assert [choice.fate for choice in report.initializers[3:]] == [
        artifacts.Fate.FROZEN, artifacts.Fate.LEFT_OUT, artifacts.Fate.LEFT_OUT
    ]  # fmt: skip
    assert sorted(report.files) == sorted(tmp_path.iterdir())
    assert len(repr(report)) < 58 + len(repr(str(tmp_path)))
    assert "2 trained, 1 frozen, 3 left out" in repr(report)
