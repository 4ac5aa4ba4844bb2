"""Sessions use the threads that they should, and a program may close the library that has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import layout
import pytest
from languages import Missing, Program, compile_c_against, library_folder, skip_or_fail
from onnx import TensorProto, helper, save


def compiled(name: str, folder: Path, link: Sequence[str] | None = None) -> Program:
    (folder / "layout.h").write_text(layout.header())
    try:
        return compile_c_against(
            [folder, Path(__file__).parent], [Path(__file__).parent / f"{name}.c"], folder / name, link
        )
    except Missing as why:
        skip_or_fail("c", why)


def product_of_matrices(path: Path) -> Path:
    matrix = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [512, 512]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "x"], ["y"])], "g", matrix[:1], matrix[1:])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return compiled("threads", tmp_path_factory.mktemp("threads"))


@pytest.mark.parametrize(
    ("of_environment", "of_session", "shares", "expected"),
    [(1, 2, "shares", 1), (1, 2, "does not share", 2), (2, 1, "shares", 2), (2, 1, "does not share", 1)],
)
def test_a_session_uses_the_threads_that_it_should(
    program: Program, tmp_path: Path, of_environment: int, of_session: int, shares: str, expected: int
) -> None:
    model = product_of_matrices(tmp_path / "m")
    ran = program.run([model, str(of_environment), str(of_session), shares])
    assert (ran.returncode, ran.stdout) == (0, f"{expected}\n"), ran.stdout + ran.stderr


def test_the_library_can_be_closed_and_opened_again(tmp_path: Path) -> None:
    program = compiled("reload", tmp_path, link=["-D_GNU_SOURCE", "-ldl"])
    ran = program.run([library_folder() / "libortrain.so", product_of_matrices(tmp_path / "m")])
    assert (ran.returncode, ran.stdout) == (0, "512\n" * 3), ran.stdout + ran.stderr
