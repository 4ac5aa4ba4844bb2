"""The classes that the spec describes, as Python users see them, on a recorded model."""

from __future__ import annotations

import gc
import json
import pathlib
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from spec_copy import ROOT

ortrain = pytest.importorskip("ortrain", reason="the package is not installed; make install")

from ortrain import OrtValue  # noqa: E402
from ortrain.api import CheckpointState, LinearLRScheduler, Module, Optimizer  # noqa: E402

FIXTURE = ROOT / "tests/data/fixtures/mlp_adamw"
WEIGHT = "fc1.weight"


class Run:
    """A module over a fresh state, and one batch."""

    def __init__(self, **options: Any):
        self.state = CheckpointState.load_checkpoint(FIXTURE / "checkpoint")
        paths = (FIXTURE / "training_model.onnx", self.state, FIXTURE / "eval_model.onnx")
        self.module = Module(*paths, **options)
        with np.load(FIXTURE / "batches.npz") as batches:
            self.x, self.y = batches["x0"], batches["y0"]

    def optimizer(self) -> Optimizer:
        return Optimizer(FIXTURE / "optimizer_model.onnx", self.module)


@pytest.fixture
def run() -> Run:
    return Run()


LOSS = json.loads((FIXTURE / "expected.json").read_text())["train_losses"][0]


def test_every_member_of_the_inventory_is_there() -> None:
    import ortrain.api

    members = {
        "Parameter": ["name", "data", "grad", "requires_grad", "__repr__"],
        "Parameters": ["__getitem__", "__setitem__", "__contains__", "__iter__", "__repr__", "__len__"],
        "Properties": ["__getitem__", "__setitem__", "__contains__", "__iter__", "__repr__", "__len__"],
        "CheckpointState": ["load_checkpoint", "save_checkpoint", "parameters", "properties"],
        "Module": [
            *(
                "__call__",
                "train",
                "eval",
                "lazy_reset_grad",
                "get_contiguous_parameters",
                "get_parameters_size",
            ),
            *("copy_buffer_to_parameters", "export_model_for_inferencing", "input_names", "output_names"),
        ],
        "Optimizer": ["step", "set_learning_rate", "get_learning_rate"],
        "LinearLRScheduler": ["step"],
    }
    for name, expected in members.items():
        cls = getattr(ortrain.api, name)
        for member in expected:
            own = vars(cls).get(member)
            assert own is not None, f"{name}.{member}"
            assert getattr(own, "__doc__", None), f"{name}.{member} has no documentation"


def test_import_is_quick_and_leaves_onnx_alone() -> None:
    code = (
        "import time, numpy, sys; t = time.perf_counter(); import ortrain, ortrain.api;"
        "print(time.perf_counter() - t); assert not {'onnx', 'torch', 'google.protobuf'} & set(sys.modules)"
    )
    times = [float(subprocess.check_output([sys.executable, "-c", code])) for _ in range(3)]
    assert min(times) < 1.0  # generous: test machines are busy


class HasNumpy:
    """A tensor of another library, known only by its numpy()."""

    def __init__(self, array: np.ndarray[Any, Any]):
        self.array = array

    def numpy(self) -> np.ndarray[Any, Any]:
        return self.array


class HasDlpack(HasNumpy):
    """A tensor of another library, known only by DLPack."""

    numpy = None  # type: ignore[assignment]

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize(
    ("wrap", "kind"),
    [
        (lambda a: a, np.ndarray),
        (OrtValue.ortvalue_from_numpy, OrtValue),
        (HasNumpy, OrtValue),
        (HasDlpack, OrtValue),
        (lambda a: a.tolist(), np.ndarray),
        (np.asfortranarray, np.ndarray),
        (lambda a: a.astype(a.dtype.newbyteorder()), np.ndarray),
        (lambda a: np.repeat(a, 2, axis=0)[::2], np.ndarray),
    ],
    ids=["numpy", "OrtValue", "numpy()", "dlpack", "lists", "fortran", "swapped bytes", "strided"],
)
def test_a_step_takes_all_kinds_of_tensors_and_gives_back_the_kind(run: Run, wrap: Any, kind: type) -> None:
    loss = run.module(wrap(run.x), wrap(run.y))
    assert isinstance(loss, kind)
    value = loss.numpy() if isinstance(loss, OrtValue) else loss
    assert value.shape == ()
    assert float(value) == pytest.approx(LOSS, rel=1e-4)


def test_outputs_outlive_what_made_them() -> None:
    run = Run()
    loss = run.module(OrtValue.ortvalue_from_numpy(run.x), OrtValue.ortvalue_from_numpy(run.y)).numpy()
    expected = float(loss)
    del run
    gc.collect()
    assert float(loss) == expected


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x, y: (x.astype(np.float64), y), "input 'input' (number 0): expected float32, found float64"),
        (lambda x, y: (x, y.astype(np.int32)), "input 'labels' (number 1): expected int64, found int32"),
        (lambda x, y: (x.astype(np.complex64), y), "expected float32, found complex64"),
        (lambda x, y: (x, (y + 0.5).tolist()), "input 'labels' (number 1): expected int64, found float64"),
        (lambda x, y: (x,), "expected 2 inputs (input, labels), found 1"),
        (lambda x, y: (x, y, y), "expected 2 inputs (input, labels), found 3"),
        (lambda x, y: (x[:, :3], y), "expected float32[batch, 64], found float32[16, 3]"),
        (lambda x, y: (x[0], y), "expected float32[batch, 64], found float32[64]"),
    ],
)
def test_inputs_that_do_not_fit_are_rejected_by_name(run: Run, change: Any, said: str) -> None:
    with pytest.raises(ortrain.InvalidArgumentError) as caught:
        run.module(*change(run.x, run.y))
    assert said in str(caught.value)
    assert caught.value.code == ortrain.OrtErrorCode.ORT_INVALID_ARGUMENT
    assert float(run.module(run.x, run.y)) == pytest.approx(LOSS, rel=1e-4)


def test_something_that_is_no_tensor(run: Run) -> None:
    with pytest.raises(TypeError, match="expected a NumPy array, an OrtValue, or something with __dlpack__"):
        run.module(object(), run.y)


def test_an_unavailable_device_names_those_that_there_are(run: Run) -> None:
    with pytest.raises(ValueError, match="there is no device 'cuda', available: cpu"):
        Module(FIXTURE / "training_model.onnx", run.state, device="cuda")
    with pytest.raises(ValueError, match="there is no device 'cuda' with id 0, available: cpu"):
        OrtValue.ortvalue_from_numpy(run.x, "cuda")


def test_files_that_do_not_exist(run: Run, tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        CheckpointState.load_checkpoint(tmp_path / "missing")
    with pytest.raises(FileNotFoundError, match="missing"):
        Module(str(tmp_path / "missing"), run.state)
    with pytest.raises(FileNotFoundError, match="missing"):
        Optimizer(tmp_path / "missing", run.module)


def test_parameters_are_a_mapping_that_goes_over_pairs(run: Run) -> None:
    parameters = run.state.parameters
    assert len(parameters) == 4
    assert [name for name, _ in parameters] == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    assert all(name == parameter.name for name, parameter in parameters)
    assert WEIGHT in parameters
    assert "other" not in parameters
    assert 3 not in parameters
    for access in (lambda: parameters["other"], lambda: parameters.__setitem__("other", run.x)):
        with pytest.raises(KeyError, match="other"):
            access()
    weight = parameters[WEIGHT]
    assert repr(weight) == "Parameter('fc1.weight', float32, shape=[32, 64], requires_grad=True)"
    assert repr(weight) in repr(parameters)
    assert weight.requires_grad


def test_values_of_a_parameter_are_copies_until_they_are_assigned(run: Run) -> None:
    weight = run.state.parameters[WEIGHT]
    values = weight.data
    values[:] = 0
    assert weight.data.any()
    run.state.parameters[WEIGHT] = values
    assert not weight.data.any()
    for wrong, said in [(values[:2], r"float32\[2, 64\]"), (values.astype(np.float64), r"float64\[32, 64\]")]:
        with pytest.raises(ValueError, match=said):
            run.state.parameters[WEIGHT] = wrong


def test_gradients_are_zeros_before_the_first_train_step(run: Run) -> None:
    weight = run.state.parameters[WEIGHT]
    assert not weight.grad.any()
    run.module(run.x, run.y)
    once = weight.grad
    assert once.shape == weight.data.shape
    assert once.any()
    run.module(run.x, run.y)
    np.testing.assert_allclose(weight.grad, 2 * once, rtol=1e-5, atol=1e-7)
    run.module.lazy_reset_grad()
    run.module(run.x, run.y)
    np.testing.assert_allclose(weight.grad, once, rtol=1e-5, atol=1e-7)


def test_properties(run: Run, tmp_path: pathlib.Path) -> None:
    properties = run.state.properties
    assert len(properties) == 0
    properties["epoch"] = 3
    properties["best"] = np.float32(0.5)
    properties["who"] = "Zoë"
    properties["epoch"] = -(2**63)
    properties["done"] = True  # stored as 1, as onnxruntime-training does
    with pytest.raises(KeyError, match="other"):
        properties["other"]
    for wrong in (None, [1]):
        with pytest.raises(TypeError, match="a property is an int, a float or a str"):
            properties["bad"] = wrong  # type: ignore[assignment]
    with pytest.raises(ValueError, match="64 bits"):
        properties["bad"] = 2**70
    CheckpointState.save_checkpoint(run.state, tmp_path / "checkpoint")
    again = CheckpointState.load_checkpoint(str(tmp_path / "checkpoint")).properties
    assert dict(iter(again)) == {"best": 0.5, "done": 1, "epoch": -(2**63), "who": "Zoë"}
    assert [type(value) for _, value in again] == [float, int, int, str]
    assert "who" in again
    assert repr(again) == f"Properties({{'best': 0.5, 'done': 1, 'epoch': {-(2**63)}, 'who': 'Zoë'}})"


def test_a_checkpoint_from_memory_is_that_from_its_file() -> None:
    path = FIXTURE / "checkpoint"
    there = CheckpointState.load_checkpoint(path).parameters
    here = CheckpointState.load_checkpoint_from_buffer(path.read_bytes()).parameters
    for name, parameter in there:
        np.testing.assert_array_equal(here[name].data, parameter.data)
    with pytest.raises(ortrain.OrtrainError):
        CheckpointState.load_checkpoint_from_buffer(b"")


def test_all_parameters_as_one_buffer(run: Run) -> None:
    module = run.module
    size = module.get_parameters_size()
    assert size == sum(parameter.data.size for _, parameter in run.state.parameters)
    buffer = module.get_contiguous_parameters()
    np.testing.assert_array_equal(
        buffer.numpy(), np.concatenate([parameter.data.ravel() for _, parameter in run.state.parameters])
    )
    module.copy_buffer_to_parameters(np.zeros(size, np.float32))
    assert not run.state.parameters[WEIGHT].data.any()
    module.copy_buffer_to_parameters(buffer)
    np.testing.assert_array_equal(module.get_contiguous_parameters(True).numpy(), buffer.numpy())
    for wrong in (np.zeros(size - 1, np.float32), np.zeros(size, np.float64)):
        with pytest.raises(ValueError, match=f"should hold {size} elements of type float32"):
            module.copy_buffer_to_parameters(wrong)


def test_modes(run: Run) -> None:
    assert run.module.training
    assert run.module.eval() is run.module
    assert not run.module.training
    before = run.state.parameters[WEIGHT].data
    assert float(run.module(run.x, run.y)) == pytest.approx(LOSS, rel=1e-4)
    np.testing.assert_array_equal(run.state.parameters[WEIGHT].data, before)
    assert run.module.train().training
    assert not run.module.train(False).training
    assert run.module.input_names() == ["input", "labels"]
    assert len(run.module.output_names()) == 1


def test_a_module_without_an_eval_model_says_so(run: Run) -> None:
    module = Module(FIXTURE / "training_model.onnx", CheckpointState.load_checkpoint(FIXTURE / "checkpoint"))
    module.eval()
    with pytest.raises(ortrain.OrtrainError, match="without an eval model"):
        module(run.x, run.y)


def test_optimizer_and_schedule(run: Run) -> None:
    with pytest.raises(ortrain.OrtrainError):
        run.module._handle and ortrain._ortrain.scheduler_step(run.module._handle)
    optimizer = run.optimizer()
    with pytest.raises(ortrain.OrtrainError) as caught:
        run.optimizer()
    assert caught.value.code == ortrain.OrtErrorCode.ORT_MODEL_LOADED
    with pytest.raises(ortrain.OrtrainError):
        optimizer.step()
    optimizer.set_learning_rate(0.25)
    assert optimizer.get_learning_rate() == 0.25
    for wrong in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite"):
            optimizer.set_learning_rate(wrong)
    for arguments in ((-1, 5, 0.1), (1, -5, 0.1), (1, 5, float("nan"))):
        with pytest.raises(ortrain.InvalidArgumentError):
            LinearLRScheduler(optimizer, *arguments)
    scheduler = LinearLRScheduler(optimizer, warmup_step_count=2, total_step_count=6, initial_lr=0.1)
    rates = []
    for _ in range(7):
        run.module(run.x, run.y)
        optimizer.step()
        run.module.lazy_reset_grad()
        scheduler.step()
        rates.append(optimizer.get_learning_rate())
    np.testing.assert_allclose(rates, [0.05, 0.1, 0.075, 0.05, 0.025, 0, 0], atol=1e-7)


def test_session_options() -> None:
    options = ortrain.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ortrain.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("a.key", "a value")
    assert options.intra_op_num_threads == 1
    assert options.graph_optimization_level == 0
    assert options.get_session_config_entry("a.key") == "a value"
    assert options.has_session_config_entry("a.key")
    assert not options.has_session_config_entry("other")
    with pytest.raises(ValueError, match="'other' is not set"):
        options.get_session_config_entry("other")
    with pytest.raises(ValueError, match="found -1"):
        options.intra_op_num_threads = -1
    with pytest.raises(ValueError, match="graph optimization level is 7"):
        options.graph_optimization_level = 7
    assert options.intra_op_num_threads == 1
    run = Run(session_options=options)
    assert float(run.module(run.x, run.y)) == pytest.approx(LOSS, rel=1e-4)


def test_an_ortvalue_shares_memory_with_numpy_and_dlpack() -> None:
    array = np.arange(6, dtype=np.int64).reshape(2, 3)
    value = OrtValue.ortvalue_from_numpy(array)
    assert value.shape() == [2, 3]
    assert (value.element_type(), value.data_type(), value.dtype) == (7, "tensor(int64)", np.int64)
    assert value.data_ptr() == array.ctypes.data
    assert value.numpy().ctypes.data == array.ctypes.data
    assert value.__dlpack_device__() == (1, 0)
    shared = np.from_dlpack(value)
    array[0, 0] = 42
    assert shared[0, 0] == 42
    capsule = value.__dlpack__()
    del capsule, value, array
    gc.collect()
    assert shared[0, 0] == 42
    empty = OrtValue.ortvalue_from_shape_and_type([0, 3], np.float64)
    assert empty.numpy().shape == (0, 3)
    assert repr(empty) == "OrtValue(float64, shape=[0, 3])"
    with pytest.raises(TypeError, match="datetime64"):
        OrtValue.ortvalue_from_numpy(np.zeros(2, "datetime64[s]"))


def test_lists_that_belong_together_have_one_length() -> None:
    value = OrtValue.ortvalue_from_numpy(np.zeros(2, np.float32))
    with pytest.raises(ValueError, match="values has 1 entries, expected 2, as many as names"):
        ortrain._ortrain.create_checkpoint(["a", "b"], [value], [True, False], False)


def test_other_threads_run_while_a_step_does(run: Run) -> None:
    stop = threading.Event()
    ticks = 0

    def count() -> None:
        nonlocal ticks
        while not stop.is_set():
            ticks += 1
            time.sleep(0)

    x = np.repeat(run.x, 4000, axis=0)
    y = np.repeat(run.y, 4000, axis=0)
    run.module(x, y)
    thread = threading.Thread(target=count)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)  # a thread yields only when it waits or releases the lock
    try:
        thread.start()
        before = ticks
        run.module(x, y)
        during = ticks - before
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        thread.join()
    assert during > 0


def test_two_modules_train_in_two_threads() -> None:
    losses: dict[int, float] = {}

    def train(which: int) -> None:
        run = Run()
        optimizer = run.optimizer()
        for _ in range(20):
            losses[which] = float(run.module(run.x, run.y))
            optimizer.step()
            run.module.lazy_reset_grad()

    threads = [threading.Thread(target=train, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert losses[0] < LOSS
