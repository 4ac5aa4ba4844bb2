"""Sessions that share the threads of their environment use the number of threads that it specifies."""

from __future__ import annotations

from pathlib import Path

import layout
import pytest
from languages import Missing, Program, compile_c_against, skip_or_fail
from onnx import TensorProto, helper, save


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    folder = tmp_path_factory.mktemp("threads")
    (folder / "layout.h").write_text(layout.header())
    try:
        return compile_c_against([folder], [Path(__file__).parent / "threads.c"], folder / "threads")
    except Missing as why:
        skip_or_fail("c", why)


@pytest.mark.parametrize(
    ("of_environment", "of_session", "shares", "expected"),
    [(1, 2, "shares", 1), (1, 2, "does not share", 2), (2, 1, "shares", 2), (2, 1, "does not share", 1)],
)
def test_a_session_uses_the_threads_that_it_should(
    program: Program, tmp_path: Path, of_environment: int, of_session: int, shares: str, expected: int
) -> None:
    matrix = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [512, 512]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "x"], ["y"])], "g", matrix[:1], matrix[1:])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m")
    ran = program.run([tmp_path / "m", str(of_environment), str(of_session), shares])
    assert (ran.returncode, ran.stdout) == (0, f"{expected}\n"), ran.stdout + ran.stderr
