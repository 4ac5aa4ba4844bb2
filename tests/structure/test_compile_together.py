"""Development builds compile together only sources whose names do not clash."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UNNAMED = "namespace ortrain {{\nnamespace {{\n{}\n}}  // namespace\n{}\n}}  // namespace ortrain\n"
SOURCES = {
    "a.cpp": UNNAMED.format("int size() { return 1; }", "int of_a() { return size(); }"),
    "b.cpp": UNNAMED.format("int width() { return 2; }", "int of_b() { return width(); }"),
    "same_name.cpp": UNNAMED.format("int size() { return 3; }", "int of_c() { return size(); }"),
    "calls_another.cpp": UNNAMED.format("", "int size(); int of_d() { return size(); }"),
    "variable.cpp": UNNAMED.format("thread_local int* current = nullptr;", ""),
    "same_variable.cpp": UNNAMED.format("thread_local const char* current = nullptr;", ""),
    "macro.cpp": "#define SIZE 4\n",
    "vector.cpp": "#include <hwy/highway.h>\n",
}


def groups(folder: Path) -> dict[str, str]:
    """Return the group of each source that is compiled with others."""
    paths = [folder / name for name in SOURCES]
    for path in paths:
        path.write_text(SOURCES[path.name])
    command = [sys.executable, str(ROOT / "cmake/compile_together.py"), *map(str, paths)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = (line.split(" ", 1) for line in run.stdout.splitlines())
    return {Path(path).name: group for group, path in lines}


def test_sources_whose_names_clash_are_apart(tmp_path: Path) -> None:
    found = groups(tmp_path)
    assert found["a.cpp"] == found["b.cpp"]
    assert found["same_name.cpp"] != found["a.cpp"]
    assert found["calls_another.cpp"] not in (found["a.cpp"], found["same_name.cpp"])
    assert found["variable.cpp"] != found["same_variable.cpp"]
    assert "macro.cpp" not in found
    assert "vector.cpp" not in found
