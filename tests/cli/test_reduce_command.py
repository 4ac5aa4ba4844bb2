"""`ortrain reduce` writes what a small native library needs to train artifacts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

import onnx
import pytest
from recorded import Fixture
from system import needs_scripts

LENET = Fixture("lenet_adamw").folder


@pytest.fixture
def folder(tmp_path):
    copied = tmp_path / "artifacts"
    shutil.copytree(LENET, copied)
    return copied


def settings_of(path):
    return dict(re.findall(r'^set\((\w+) "(.*)" CACHE STRING "" FORCE\)$', path.read_text(), re.MULTILINE))


def test_the_settings_list_the_operators_of_all_models_and_leave_out_every_part(run, folder):
    ran = run("reduce", folder)
    settings = settings_of(folder / "reduced" / "reduced.cmake")
    expected = set()
    for name in ("training", "eval", "optimizer"):
        for node in onnx.load(folder / f"{name}_model.onnx").graph.node:
            expected.add(f"{node.domain}.{node.op_type}" if node.domain else node.op_type)
    assert set(settings["ORTRAIN_OPERATORS"].split(";")) == expected
    assert "com.microsoft.AdamWOptimizer" in expected
    assert {settings[f"ORTRAIN_{part}"] for part in ("ARTIFACTS", "GRAPHS", "LEGACY", "METRICS")} == {"OFF"}
    assert "cmake -C" in ran.out


def test_kernels_for_types_that_no_model_names_are_left_out(run, folder):
    run("reduce", folder)
    types = ("DOUBLES", "HALVES", "SMALL_INTEGERS")
    settings = settings_of(folder / "reduced" / "reduced.cmake")
    assert {settings[f"ORTRAIN_{part}"] for part in types} == {"OFF"}
    model = onnx.load(folder / "eval_model.onnx")
    model.graph.node.append(onnx.helper.make_node("Cast", [model.graph.input[0].name], ["cast"], to=11))
    onnx.save(model, folder / "eval_model.onnx")
    run("reduce", folder)
    settings = settings_of(folder / "reduced" / "reduced.cmake")
    assert [settings[f"ORTRAIN_{part}"] for part in types] == ["ON", "OFF", "OFF"]


@pytest.mark.parametrize(("group", "option"), [(1, "OFF"), (4, "ON")])
def test_kernels_of_depthwise_convolutions_are_kept_for_convolutions_with_groups(run, folder, group, option):
    model = onnx.load(folder / "eval_model.onnx")
    model.graph.node.append(onnx.helper.make_node("Conv", ["image", "weights"], ["out"], group=group))
    onnx.save(model, folder / "eval_model.onnx")
    run("reduce", folder)
    assert settings_of(folder / "reduced" / "reduced.cmake")["ORTRAIN_DEPTHWISE"] == option


def test_the_optimizer_of_the_model_is_built_alone(run, folder):
    model = onnx.load(folder / "optimizer_model.onnx")
    node = onnx.helper.make_node("Optimizer", ["learning_rate"], ["out"], domain="ortrain", type="lion")
    model.graph.node.append(node)
    onnx.save(model, folder / "optimizer_model.onnx")
    run("reduce", folder)
    operators = settings_of(folder / "reduced" / "reduced.cmake")["ORTRAIN_OPERATORS"].split(";")
    assert {"ortrain.Optimizer", "ortrain.Optimizer.lion"} <= set(operators)


def test_parts_and_operators_can_be_kept(run, folder, tmp_path):
    ran = run("reduce", folder, "--with", "metrics", "--operator", "Selu", "--out", tmp_path / "x", "--json")
    settings = settings_of(tmp_path / "x" / "reduced.cmake")
    assert (settings["ORTRAIN_METRICS"], settings["ORTRAIN_ADAPTERS"]) == ("ON", "OFF")
    assert "Selu" in settings["ORTRAIN_OPERATORS"].split(";")
    assert ran.json["operators"] == settings["ORTRAIN_OPERATORS"].split(";")
    assert ran.json["library"] is None


@pytest.mark.skipif(not shutil.which("cmake"), reason="needs cmake")
def test_cmake_takes_the_settings(run, folder, tmp_path):
    run("reduce", folder)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.22)\nproject(test NONE)\nforeach(name ${ORTRAIN_OPERATORS})\n"
        "  message(STATUS operator:${name})\nendforeach()\nmessage(STATUS legacy:${ORTRAIN_LEGACY})\n"
    )
    settings = folder / "reduced" / "reduced.cmake"
    done = subprocess.run(
        ["cmake", "-C", settings, "-S", tmp_path, "-B", tmp_path / "build"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "operator:Conv\n" in done.stdout
    assert "legacy:OFF" in done.stdout


CMAKE = """\
#!/bin/sh
# In the place of CMake: makes the folder of the build, and a library.
case "$1" in
  -C) mkdir -p "$6" && echo x >> "$6/configured" ;;
  --build) ;;
  --install) mkdir -p "$4/lib" && cp "$2/configured" "$4/lib/libortrain.so" ;;
esac
"""


@needs_scripts
def test_a_second_build_of_a_checkout_continues_the_first(run, folder, tmp_path, monkeypatch):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("cmake", "ninja"):
        (tools / name).write_text(CMAKE)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
    checkouts = [tmp_path / "first", tmp_path / "second"]
    for checkout in checkouts:
        (checkout / "core" / "src").mkdir(parents=True)
        (checkout / "CMakeLists.txt").touch()
    configured = folder / "reduced" / "build" / "configured"
    run("reduce", folder, "--source", checkouts[0])
    run("reduce", folder, "--source", checkouts[0], "--operator", "Selu")
    assert configured.read_text() == "x\nx\n"
    run("reduce", folder, "--source", checkouts[1])
    assert configured.read_text() == "x\n"
    monkeypatch.setenv("CXX", "another-compiler")
    run("reduce", folder, "--source", checkouts[1])
    assert configured.read_text() == "x\n"


def test_a_folder_without_artifacts_is_refused(run, tmp_path):
    assert "no training_model.onnx" in run("reduce", tmp_path, status=1).err
    assert not (tmp_path / "reduced").exists()


def test_a_folder_that_is_no_checkout_is_refused(run, folder, tmp_path):
    ran = run("reduce", folder, "--source", tmp_path, status=1)
    assert f"found no core/src in {tmp_path}" in ran.err
    assert not (folder / "reduced").exists()
