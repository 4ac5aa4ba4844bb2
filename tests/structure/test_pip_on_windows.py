"""On Windows, pip compiles with the compiler of PyPI's package ziglang, with the options of `make wheel-windows`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLCHAIN = "cmake/toolchains/windows-pip.cmake"

read_settings = pytest.importorskip("scikit_build_core.settings.skbuild_read_settings")
tomllib = pytest.importorskip("tomllib")


def settings_on(system: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setattr("platform.system", lambda: "Windows" if system == "win32" else "Linux")
    return read_settings.SettingsReader.from_file(str(ROOT / "pyproject.toml"), {}).settings.cmake


def test_the_toolchain_is_selected_on_windows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = settings_on("win32", monkeypatch)
    assert windows.args == ["-G", "Ninja"]  # by default, CMake uses Visual Studio there
    assert windows.define["CMAKE_TOOLCHAIN_FILE"] == TOOLCHAIN
    others = settings_on("linux", monkeypatch)
    assert not others.args
    assert not others.define


def test_the_compiler_and_its_options_are_those_of_the_cross_compiler() -> None:
    installed = re.search(r"^version=(.+)$", (ROOT / "scripts/install_zig.sh").read_text(), re.M)
    assert installed
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert f"ziglang=={installed[1]}; sys_platform == 'win32'" in requires
    cross = re.search(r'c\+\+ -target "\$target" (.+)$', (ROOT / "scripts/zig_compiler.sh").read_text(), re.M)
    assert cross
    options = cross[1].replace(" -Xclang -fno-pch-timestamp", "")  # for ccache
    target = (ROOT / TOOLCHAIN).read_text()
    assert f'"-target x86_64-windows-gnu {options}"' in target
