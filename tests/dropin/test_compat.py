"""Programs that import onnxruntime find ortrain: run in separate processes, with and without onnxruntime."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: A program that knows only onnxruntime: it creates artifacts, trains, exports and runs the result.
PROGRAM = """
import sys
import numpy as np
import onnx
from onnx import helper, numpy_helper, TensorProto
import onnxruntime
from onnxruntime import InferenceSession, OrtValue, SessionOptions
from onnxruntime.capi import _pybind_state as C
from onnxruntime.capi.onnxruntime_inference_collection import OrtValue as InnerOrtValue
from onnxruntime.training import artifacts, onnxblock, optim
from onnxruntime.training.api import CheckpointState, Module, Optimizer, LinearLRScheduler
from onnxruntime.training.api.checkpoint_state import Parameter
import onnxruntime.training.onnxblock as block_package
import onnxruntime.training.onnxblock.model_accessor as accessor
from onnxruntime.training.utils.data import sampler
from onnxruntime.training.experimental.gradient_graph import export_gradient_graph

value = helper.make_tensor_value_info
graph = helper.make_graph(
    [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
    [value("x", TensorProto.FLOAT, ["batch", 3])], [value("y", TensorProto.FLOAT, ["batch", 2])],
    [numpy_helper.from_array(np.ones((3, 2), np.float32), "w")])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
folder = sys.argv[1]
artifacts.generate_artifacts(model, requires_grad=["w"], loss=artifacts.LossType.MSELoss,
                             optimizer=artifacts.OptimType.AdamW, artifact_directory=folder)
state = CheckpointState.load_checkpoint(f"{folder}/checkpoint")
module = Module(f"{folder}/training_model.onnx", state, f"{folder}/eval_model.onnx")
optimizer = Optimizer(f"{folder}/optimizer_model.onnx", module)
x, target = np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32)
losses = []
for _ in range(3):
    losses.append(float(module(x, target)))
    optimizer.step()
    module.lazy_reset_grad()
assert losses == sorted(losses, reverse=True), losses
module.export_model_for_inferencing(f"{folder}/out.onnx", ["y"])
session = InferenceSession(f"{folder}/out.onnx", providers=C.get_available_providers())
(y,) = session.run(None, {"x": x})
np.testing.assert_allclose(y, x @ state.parameters["w"].data, rtol=1e-6)
values = module(OrtValue.ortvalue_from_numpy(x), OrtValue.ortvalue_from_numpy(target))
assert isinstance(values, OrtValue) and block_package is onnxblock
print(onnxruntime.__name__, onnxruntime.training.__name__, Module.__module__, __name__, sys.argv[2:])
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture
def without_onnxruntime(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which onnxruntime cannot be found, as where it is not installed."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import importlib.machinery as m\n"
        "found = m.PathFinder.find_spec\n"
        "m.PathFinder.find_spec = lambda name, *a: None if name.split('.')[0] == 'onnxruntime' else found(name, *a)\n"
    )
    return {**os.environ, "PYTHONPATH": str(folder)}


def run(*arguments: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)


def test_a_program_for_onnxruntime_runs_unchanged(
    program: Path, tmp_path: Path, without_onnxruntime: dict[str, str]
) -> None:
    done = run("-m", "ortrain.compat", program, tmp_path, "--epochs", 3, env=without_onnxruntime)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0].startswith("ortrain ortrain.training ortrain.api")
    assert done.stdout.rstrip().endswith("__main__ ['--epochs', '3']")
    assert not done.stderr


def test_importing_the_module_first_does_the_same(
    program: Path, tmp_path: Path, without_onnxruntime: dict[str, str]
) -> None:
    program.write_text("import ortrain.compat\n" + PROGRAM)
    done = run(program, tmp_path, env=without_onnxruntime)
    assert done.returncode == 0, done.stderr


def test_modules_are_one_under_both_names(tmp_path: Path, without_onnxruntime: dict[str, str]) -> None:
    code = """
import ortrain.compat, ortrain
import onnxruntime, onnxruntime.training, onnxruntime.training.onnxblock.blocks as blocks
assert onnxruntime is ortrain and onnxruntime.OrtValue is ortrain.OrtValue
assert ortrain.__name__ == "ortrain" and ortrain.__spec__.name == "ortrain"
import ortrain.onnxblock.blocks
assert blocks is ortrain.onnxblock.blocks and blocks.__spec__.name == "ortrain.onnxblock.blocks"
for absent in ("onnxruntime.training.ortmodule", "onnxruntime.quantization.shape_inference", "onnxruntimes"):
    try:
        __import__(absent)
    except ModuleNotFoundError as error:
        assert error.name == absent or absent.startswith(error.name), error
    else:
        raise AssertionError(absent)
"""
    done = run("-c", code, env=without_onnxruntime)
    assert done.returncode == 0, done.stderr


def test_an_installed_onnxruntime_is_not_hidden_and_a_warning_says_so(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    code = """
import ortrain.compat
import onnxruntime
assert onnxruntime.__name__ == "onnxruntime" and onnxruntime is not ortrain
import onnxruntime.training
print(onnxruntime.training.__name__)
"""
    done = run("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "ortrain.training"
    assert "only onnxruntime.training is ortrain" in done.stderr


def test_a_program_can_mix_both(program: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    done = run("-m", "ortrain.compat", program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("onnxruntime ortrain.training ortrain.api")


def test_replacing_an_installed_onnxruntime_is_one_switch(program: Path, tmp_path: Path) -> None:
    done = run("-m", "ortrain.compat", "--replace", program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ortrain ortrain.training ortrain.api")
    assert not done.stderr


def test_replacing_comes_before_the_first_import() -> None:
    pytest.importorskip("onnxruntime")
    done = run("-c", "import onnxruntime, ortrain.compat; ortrain.compat.install(replace=True)")
    assert done.returncode == 1
    assert "RuntimeError: onnxruntime was imported from" in done.stderr


def test_a_module_runs_as_a_program(
    program: Path, tmp_path: Path, without_onnxruntime: dict[str, str]
) -> None:
    without_onnxruntime["PYTHONPATH"] += os.pathsep + str(tmp_path)
    done = run("-m", "ortrain.compat", "-m", "program", tmp_path, env=without_onnxruntime)
    assert done.returncode == 0, done.stderr


#: A program whose children import it again, as a data loader's do.
PARENT = """
import multiprocessing
import sys
import onnxruntime
import onnxruntime.training

def work(number):
    return onnxruntime.__name__, onnxruntime.training.__name__, number

if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        print(*pool.apply_async(work, (3,)).get(60))
"""


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("replace", [[], ["--replace"]])
def test_processes_of_a_program_find_what_it_finds(
    method: str, replace: list[str], tmp_path: Path, without_onnxruntime: dict[str, str]
) -> None:
    program = tmp_path / "parent.py"
    program.write_text(PARENT)
    done = run(
        "-m", "ortrain.compat", *replace, program, method, env=None if replace else without_onnxruntime
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ortrain ortrain.training 3\n"


def test_a_program_that_is_not_there_is_named() -> None:
    done = run("-m", "ortrain.compat", "nowhere.py")
    assert done.returncode == 2
    assert "there is no file nowhere.py" in done.stderr
    assert "Traceback" not in done.stderr


def test_modules_of_losses_and_optimizers_are_found(without_onnxruntime: dict[str, str]) -> None:
    code = """
import ortrain.compat
from onnxruntime.training import set_seed
from onnxruntime.training.onnxblock.loss.loss import MSELoss
from onnxruntime.training.onnxblock.optim.optim import AdamW
from onnxruntime.training.optim.fused_adam import AdamWMode
from onnxruntime.training.optim.fp16_optimizer import FP16_Optimizer
import ortrain
assert MSELoss is ortrain.onnxblock.loss.MSELoss and AdamW is ortrain.onnxblock.optim.AdamW
assert set_seed is ortrain.set_seed and AdamWMode.ADAMW_TORCH == 2
"""
    done = run("-c", code, env=without_onnxruntime)
    assert done.returncode == 0, done.stderr
