"""Models in ORT format: onnxruntime's run here, and those written here run in onnxruntime, with the same results."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from ortrain import (
    InferenceSession,
    InvalidModelError,
    NotImplementedInOrtrainError,
    OrtrainError,
    SessionOptions,
    artifacts,
)
from ortrain._files.models import in_ort_format, is_ort_format, load_model
from ortrain.api import CheckpointState, Module, Optimizer
from recorded import Fixture

from tests.conformance import cases

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/data/formats"
NAMES = ["branches", "fused", "words", "sparse", "sequence", "quantized"]
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def expected() -> dict[str, Array]:
    with np.load(DATA / "expected.npz") as file:
        return dict(file)


def feed_of(name: str, expected: dict[str, Array]) -> dict[str, Array]:
    feed = {key.rpartition("/")[2]: value for key, value in expected.items() if key.startswith(f"{name}/in/")}
    return {key: value.astype(object) if value.dtype.kind == "U" else value for key, value in feed.items()}


def outputs_of(name: str, expected: dict[str, Array]) -> Iterator[tuple[str, Array]]:
    for key, value in expected.items():
        if key.startswith(f"{name}/out/"):
            yield key.removeprefix(f"{name}/out/"), value


def check(outputs: list[Any], name: str, expected: dict[str, Array]) -> None:
    for key, value in outputs_of(name, expected):
        index, _, part = key.partition("/")
        found = outputs[int(index)][int(part)] if part else outputs[int(index)]
        if value.dtype.kind == "U":
            assert found.tolist() == value.tolist()
        else:
            assert found.dtype == value.dtype
            np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-5)


# Models of onnxruntime.


@pytest.mark.parametrize("name", NAMES)
def test_a_model_of_onnxruntime_gives_its_results(name: str, expected: dict[str, Array]) -> None:
    path = DATA / f"{name}.ort"
    for model in (path, path.read_bytes()):
        session = InferenceSession(model)
        check(session.run(None, feed_of(name, expected)), name, expected)
    metadata = session.get_modelmeta()
    assert (metadata.description, metadata.graph_description, metadata.version) == (
        "a sample",
        "its graph",
        5,
    )
    assert metadata.custom_metadata_map == {"key": "text"}


def test_the_samples_have_what_they_are_to_show() -> None:
    operators = {name: {n.op_type for n in load_model(DATA / f"{name}.ort").graph.node} for name in NAMES}
    assert {"If", "Loop", "Clip"} <= operators["branches"]
    assert "Constant" not in operators["branches"]
    assert {"FusedConv", "Gelu"} <= operators["fused"]


def test_a_run_may_replace_an_initializer_that_is_an_input(expected: dict[str, Array]) -> None:
    session = InferenceSession(DATA / "branches.ort")
    assert [value.name for value in session.get_inputs()] == ["x", "c"]
    assert [value.name for value in session.get_overridable_initializers()] == ["w"]
    feed = feed_of("branches", expected)
    plain = session.run(None, feed)[0]
    assert not np.array_equal(session.run(None, feed | {"w": np.float32([4, 5])})[0], plain)


def test_models_convert_to_onnx(tmp_path: Path, expected: dict[str, Array]) -> None:
    for name in NAMES:
        model = load_model(DATA / f"{name}.ort")
        if name in ("fused", "sparse", "quantized"):  # the checker refuses values of unknown rank
            onnx.checker.check_model(model)
        check(InferenceSession(model.SerializeToString()).run(None, feed_of(name, expected)), name, expected)


# Models for onnxruntime.


def their_session(model: bytes | Path) -> Any:
    onnxruntime = pytest.importorskip("onnxruntime", reason="it is the oracle")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if isinstance(model, Path):
        return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    options.add_session_config_entry("session.load_model_format", "ORT")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", NAMES)
def test_onnxruntime_runs_what_is_written_here(name: str, tmp_path: Path, expected: dict[str, Array]) -> None:
    """The model is read from ORT format and written again, as the optimized model of a session without passes."""
    options = SessionOptions()
    options.graph_optimization_level = 0
    options.optimized_model_filepath = str(tmp_path / "again.ort")
    InferenceSession(DATA / f"{name}.ort", options)
    assert is_ort_format(tmp_path / "again.ort")
    check(their_session(tmp_path / "again.ort").run(None, feed_of(name, expected)), name, expected)


def small_cases() -> list[cases.Case]:
    """Cases of the onnx package: every operator in several forms, with subgraphs, functions and narrow types."""
    found = [case for kind in ("node", "simple", "sequence") for case in cases.load(kind)[0]]
    return [case for case in found if case.model.ByteSize() < 20_000 and not case.draws]


@pytest.mark.thorough
def test_onnxruntime_runs_the_cases_of_onnx_in_our_format() -> None:
    """Wherever it runs the ONNX file, it runs the same model in ORT format, with the same results."""
    onnxruntime = pytest.importorskip("onnxruntime", reason="it is the oracle")
    onnxruntime.set_default_logger_severity(4)
    compared, without_kernel, refused = 0, [], []
    for case in small_cases():
        data = case.model.SerializeToString()
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            theirs = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
            feed = next(case.runs)[0]
            results = theirs.run(None, feed)
        except Exception:  # onnxruntime has other exceptions, and does not know every case
            continue
        try:
            written = in_ort_format(data)
        except NotImplementedInOrtrainError:
            refused.append(case.id)
            continue
        try:
            again = their_session(written).run(None, feed)
        except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented as error:
            # In ONNX files alone, it replaces operators that are functions of others, and adds casts to operators
            # that it does not have for a type.
            without_kernel.append(f"{case.id}: {error}")
            continue
        for a, b in zip(results, again, strict=True):
            np.testing.assert_equal(a, b, err_msg=case.id)
        compared += 1
    assert compared > 1000
    assert all("Could not find an implementation for " in line for line in without_kernel), without_kernel
    assert len(without_kernel) < compared / 4, without_kernel
    # Optional values, which the format does not have.
    assert set(refused) <= {f"sequence/test_{name}" for name in ("identity_opt", "if_opt", "loop16_seq_none")}


def test_a_model_with_operators_of_microsoft_is_read_by_onnxruntime(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Gelu", ["x"], ["g"], domain="com.microsoft"),
        helper.make_node("FusedMatMul", ["g", "w"], ["y"], domain="com.microsoft", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(np.ones((2, 3), np.float32), "w")],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    data = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    feed = {"x": np.float32([[1, -2, 3]])}
    here = InferenceSession(in_ort_format(data)).run(None, feed)[0]
    np.testing.assert_allclose(their_session(in_ort_format(data)).run(None, feed)[0], here, rtol=1e-5)


# Formats that are stated.


def test_the_format_to_read_can_be_stated(tmp_path: Path) -> None:
    data = onnx.load(ROOT / "tests/data/fixtures/mlp_adamw/model.onnx").SerializeToString()
    for model, stated, other in ((data, "ONNX", "ORT"), (in_ort_format(data), "ORT", "ONNX")):
        options = SessionOptions()
        options.add_session_config_entry("session.load_model_format", stated)
        InferenceSession(model, options)
        options.add_session_config_entry("session.load_model_format", other)
        with pytest.raises(OrtrainError, match="expected a"):
            InferenceSession(model, options)
    options.add_session_config_entry("session.load_model_format", "TFLITE")
    with pytest.raises(OrtrainError, match="expected one of 'ONNX', 'ORT', found 'TFLITE'"):
        InferenceSession(data, options)


@pytest.mark.parametrize(
    ("name", "stated", "ort"), [("m.ort", None, True), ("m.onnx", "ORT", True), ("m.ort", "ONNX", False)]
)
def test_the_format_to_write_is_stated_or_that_of_the_name(
    name: str, stated: str | None, ort: bool, tmp_path: Path
) -> None:
    options = SessionOptions()
    options.optimized_model_filepath = str(tmp_path / name)
    if stated is not None:
        options.add_session_config_entry("session.save_model_format", stated)
    InferenceSession(DATA / "fused.ort", options)
    assert is_ort_format(tmp_path / name) == ort


# Artifacts.


def generate(fixture: Fixture, folder: Path, **changes: Any) -> artifacts.ArtifactReport:
    return artifacts.generate_artifacts(
        changes.pop("model", fixture.folder / "model.onnx"),
        requires_grad=fixture.expected["requires_grad"],
        frozen_params=fixture.expected["frozen_params"],
        loss=artifacts.LossType[fixture.expected["loss"]],
        optimizer=artifacts.OptimType[fixture.expected["optimizer"]],
        artifact_directory=folder,
        **changes,
    )


def train(folder: Path, suffix: str, fixture: Fixture) -> tuple[list[float], CheckpointState]:
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / f"training_model{suffix}", state, folder / f"eval_model{suffix}")
    optimizer = Optimizer(folder / f"optimizer_model{suffix}", module)
    losses = []
    for x, y in fixture.batches[:3]:
        module.train()
        outputs = module(x, y)
        losses.append(float(np.asarray(outputs[0] if isinstance(outputs, (tuple, list)) else outputs)))
        optimizer.step()
        module.lazy_reset_grad()
    return losses, state


def test_artifacts_in_ort_format_train_like_those_in_onnx(recorded: Fixture, tmp_path: Path) -> None:
    report = generate(recorded, tmp_path, ort_format=True)
    assert [path.name for path in report.ort_models] == [
        "training_model.ort",
        "eval_model.ort",
        "optimizer_model.ort",
    ]
    assert all(is_ort_format(path) and path in report.files for path in report.ort_models)
    in_ort, in_onnx = (train(tmp_path, suffix, recorded) for suffix in (".ort", ".onnx"))
    assert in_ort[0] == in_onnx[0]
    for name, parameter in in_ort[1].parameters:
        np.testing.assert_array_equal(parameter.data, in_onnx[1].parameters[name].data)


def test_a_forward_model_in_ort_format_has_the_same_artifacts(mlp: Fixture, tmp_path: Path) -> None:
    (tmp_path / "model.ort").write_bytes(in_ort_format((mlp.folder / "model.onnx").read_bytes()))
    for name, model in (("a", mlp.folder / "model.onnx"), ("b", tmp_path / "model.ort")):
        generate(mlp, tmp_path / name, model=model)
    assert train(tmp_path / "a", ".onnx", mlp)[0] == train(tmp_path / "b", ".onnx", mlp)[0]


def test_a_model_trained_from_ort_format_is_exported(mlp: Fixture, tmp_path: Path) -> None:
    generate(mlp, tmp_path, ort_format=True)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.ort", state, tmp_path / "eval_model.ort")
    outputs = [value.name for value in onnx.load(mlp.folder / "model.onnx").graph.output]
    module.export_model_for_inferencing(str(tmp_path / "trained.onnx"), outputs)
    x = mlp.batches[0][0]
    name = onnx.load(mlp.folder / "model.onnx").graph.input[0].name
    before = InferenceSession(mlp.folder / "model.onnx").run(None, {name: x})
    np.testing.assert_allclose(
        InferenceSession(tmp_path / "trained.onnx").run(None, {name: x})[0], before[0], rtol=1e-6
    )


def test_nothing_is_written_if_a_model_cannot_be_in_ort_format(
    mlp: Fixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(model: bytes) -> bytes:
        raise NotImplementedError("no such format")

    monkeypatch.setattr("ortrain.artifacts.generation.in_ort_format", refuse)
    with pytest.raises(NotImplementedError, match="no such format"):
        generate(mlp, tmp_path / "made", ort_format=True)
    assert not (tmp_path / "made").exists()


# Commands and faults.


def test_commands_describe_models_in_ort_format(mlp: Fixture, tmp_path: Path) -> None:
    model = tmp_path / "model.ort"
    model.write_bytes(in_ort_format((mlp.folder / "model.onnx").read_bytes()))
    for name, said in (("inspect", "operators Gemm"), ("compat", "the model trains")):
        ran = subprocess.run(
            [sys.executable, "-m", "ortrain", name, str(model)], capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
        assert said in ran.stdout


def test_a_damaged_file_is_an_error() -> None:
    data = (DATA / "fused.ort").read_bytes()
    with pytest.raises(OrtrainError, match="truncated or damaged"):
        InferenceSession(data[:-100])
    with pytest.raises((InvalidModelError, OrtrainError)):
        InferenceSession(data[:4] + b"XXXX" + data[8:])


def test_the_script_makes_the_samples_of_this_onnxruntime(tmp_path: Path) -> None:
    """A newer onnxruntime than that which made the stored samples writes files that run here too."""
    pytest.importorskip("onnxruntime", reason="it is the oracle")
    spec = importlib.util.spec_from_file_location("make_formats", DATA / "make.py")
    assert spec is not None
    assert spec.loader is not None
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    for name in NAMES:
        feed, outputs = make.write(name, tmp_path)
        ours = InferenceSession(tmp_path / f"{name}.ort").run(None, feed)
        for a, b in zip(ours, outputs, strict=True):
            if isinstance(b, np.ndarray) and b.dtype == object:
                assert a.tolist() == b.tolist()
            else:
                for part, wanted in zip(*([a, b] if isinstance(b, list) else [[a], [b]]), strict=True):
                    np.testing.assert_allclose(part, wanted, rtol=1e-5, atol=1e-5)


def test_artifacts_that_1_19_2_wrote_in_ort_format_train_as_recorded(mlp: Fixture) -> None:
    folder = DATA / "mlp_adamw"
    state = CheckpointState.load_checkpoint(mlp.path("checkpoint"))
    module = Module(folder / "training_model.ort", state, folder / "eval_model.ort")
    optimizer = Optimizer(folder / "optimizer_model.ort", module)
    losses = []
    module.train()
    for x, y in mlp.batches:
        losses.append(float(module(x, y)))
        optimizer.step()
        module.lazy_reset_grad()
    np.testing.assert_allclose(losses, mlp.expected["train_losses"], rtol=1e-4)
    module.eval()
    evals = [float(module(x, y)) for x, y in mlp.batches[: len(mlp.expected.get("eval_losses_after", []))]]
    np.testing.assert_allclose(evals, mlp.expected.get("eval_losses_after", []), rtol=1e-4)


def test_a_model_whose_nodes_lack_what_their_operators_need_is_not_converted() -> None:
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [], "body", [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, [])], []
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["m", "c", "x"], ["y"], body=body)],
        "graph",
        [
            info("m", TensorProto.INT64, []),
            info("c", TensorProto.BOOL, []),
            info("x", TensorProto.FLOAT, [2]),
        ],
        [info("y", TensorProto.FLOAT, [2])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(InvalidModelError, match="Loop"):
        in_ort_format(model.SerializeToString())
