"""What a build can leave out is described once, and CMake, `make small`, `ortrain reduce` and the sources agree with that."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from ortrain.cli import reduce_command
from ortrain.cli.model_contents import PARTS_FOR_MODELS, PARTS_FOR_TYPES

ROOT = Path(__file__).resolve().parents[2]
CMAKE = (ROOT / "CMakeLists.txt").read_text()
PARTS = dict(re.findall(r'^part\((\w+) "([^"]*)"', CMAKE, re.MULTILINE))
WITHOUT_CALLS = {"writers", "ml", "strings", *PARTS_FOR_MODELS}


def calls() -> list[dict[str, str]]:
    """Return the calls of the spec."""
    found = []
    for path in sorted((ROOT / "spec").glob("*.yaml")):
        found += yaml.safe_load(path.read_text()).get("calls") or []
    return found


def test_cmake_has_an_option_for_each_part_of_the_spec() -> None:
    spec = yaml.safe_load((ROOT / "spec" / "library.yaml").read_text())
    assert {part["name"] for part in spec["parts"]} == {name.lower() for name in PARTS}


def test_small_builds_leave_out_every_part_that_has_calls() -> None:
    with_calls = {call["part"] for call in calls() if "part" in call}
    assert with_calls == {name.lower() for name in PARTS} - WITHOUT_CALLS
    small = re.search(r"^SMALL_PARTS = (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert small is not None
    assert {name.lower() for name in small[1].split()} == with_calls == set(reduce_command.PARTS)


def test_the_core_has_the_same_types_in_each_part() -> None:
    source = (ROOT / "core" / "src" / "runtime" / "dtype.h").read_text()
    numbers = {name: int(number) for name, number in re.findall(r"(k\w+) = (\d+),", source)}
    cases = source[source.index("part_of(DType") : source.index("default:")]
    found: dict[str, set[int]] = {}
    waiting: set[int] = set()
    for case, part in re.findall(r"case DType::(\w+)|return k(\w+)Part", cases):
        if case:
            waiting.add(numbers[case])
        else:
            found[re.sub(r"(?<!^)(?=[A-Z])", "_", part).lower()] = waiting
            waiting = set()
    assert found == PARTS_FOR_TYPES


@pytest.mark.skipif(not shutil.which("g++"), reason="needs gcc")
@pytest.mark.parametrize("sanitizers", ["", "-fsanitize=address,undefined"])
@pytest.mark.parametrize("without", [True, False])
def test_builds_and_their_sanitizers_know_at_compile_time_which_types_have_kernels(
    tmp_path: Path, sanitizers: str, without: bool
) -> None:
    lines = ['#include "runtime/dtype.h"', "using ortrain::kHasKernels;"]
    lines += [f"static_assert({'!' if without else ''}kHasKernels<{name}>);" for name in ("double", "int8_t")]
    lines += [
        f"static_assert({'!' if without else ''}kHasKernels<ortrain::{name}>);"
        for name in ("Float16", "BFloat16")
    ]
    lines += [f"static_assert(kHasKernels<{name}>);" for name in ("float", "int32_t", "int64_t", "bool")]
    source = tmp_path / "test.cpp"
    source.write_text("\n".join(lines) + "\n")
    left_out = [f"-DORTRAIN_WITHOUT_{name.upper()}" for name in PARTS_FOR_TYPES] if without else []
    options = ["-std=c++20", f"-I{ROOT / 'core' / 'src'}", "-fsyntax-only", *sanitizers.split(), *left_out]
    subprocess.run(["g++", *options, source], check=True)


def test_the_spec_marks_the_calls_whose_sources_a_build_leaves_out() -> None:
    marked = {
        call["name"].replace("_", ""): call["part"]
        for call in calls()
        if call["core"] == "body" and "part" in call
    }
    every = {call["name"].replace("_", "") for call in calls() if call["core"] == "body"}
    defined = {}
    for path in sorted((ROOT / "core" / "src" / "capi").glob("*.cpp")):
        part = next(
            (name for name, sources in PARTS.items() if sources and re.search(sources, f"capi/{path.name}")),
            None,
        )
        for function in re.findall(r"^[A-Za-z][\w:*& ]*?\b([A-Z]\w+)\(", path.read_text(), re.MULTILINE):
            name = function.replace("_", "").lower()
            if part and name in every:
                defined[name] = part.lower()
    assert marked == defined
