"""A session that is not told how many threads to use takes one for each processor that the process may use."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
os.sched_setaffinity(0, map(int, sys.argv[1].split(",")))
import numpy as np
import ortrain
from onnx import TensorProto, helper

shape = [512, 512]
values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "w", "y")]
graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "graph", values[:2], values[2:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
before = len(os.listdir("/proc/self/task"))
session = ortrain.InferenceSession(model.SerializeToString())
session.run(None, {name: np.ones(shape, np.float32) for name in ("x", "w")})
print(1 + len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone lists the threads of a process in a folder")
@pytest.mark.parametrize("count", [1, 2])
def test_threads_of_a_process_that_is_bound_to_processors(count: int) -> None:
    usable = sorted(os.sched_getaffinity(0))
    if len(usable) < count:
        pytest.skip(f"this process may use {len(usable)} processors, fewer than {count}")
    bound = ",".join(map(str, usable[:count]))
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    printed = subprocess.check_output([sys.executable, "-c", PROGRAM, bound], env=environment, text=True)
    assert int(printed) == count
