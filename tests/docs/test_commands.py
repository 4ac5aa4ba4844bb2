"""The commands in the README and the pages work.

A fenced block that begins with ``bash test`` is run line by line in a folder that has ``model.onnx`` (from 64 values to 10
classes), ``train.npz``, ``test.csv`` and ``new.npz``, and ``train.py`` if the page has a block ``python before``; a dashboard is
asked for its runs and ended. A block that begins with ``bash clone`` works in a clone and builds or tests the project, which
takes minutes and is what the tests are part of; its make targets, modules and files are looked up. There is no other ``bash``
block, and no command outside of one, but for ``bash roles`` in docs/roles.md, see test_roles.py. ``console`` blocks are those of
docs/first-session.md, which are run again.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import newcomer
import numpy as np
import pytest
from languages import ROOT

PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md", "tests/scenarios/README.md")
    ),
    *(page for folder in ("examples", "bindings") for page in sorted((ROOT / folder).rglob("*.md"))),
    *sorted((ROOT / "docs").glob("*.md")),
]
BLOCK = re.compile(r"^```(bash|console|sh|shell)\b *(\S*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = [
    (page, match[1], match[2], match[3])
    for page in PAGES
    for match in BLOCK.finditer(page.read_text("utf-8"))
]


def commands(kind: str) -> dict[Path, list[str]]:
    """The lines of the blocks of a kind, by page, without comments."""
    found: dict[Path, list[str]] = {}
    for page, _, mark, text in BLOCKS:
        if mark == kind:
            lines = (re.sub(r"\s+#.*", "", line).strip() for line in text.splitlines())
            found.setdefault(page, []).extend(line for line in lines if line)
    return found


def test_every_block_says_whether_it_is_run():
    assert {(kind, mark) for _, kind, mark, _ in BLOCKS} == {
        ("bash", "test"),
        ("bash", "clone"),
        ("bash", "roles"),
        ("console", ""),
    }
    assert [page.name for page, kind, _, _ in BLOCKS if kind == "console"] == ["first-session.md"] * len(
        newcomer.STEPS
    )


# What a line begins with that is to be typed.
TYPED = re.compile(
    r"\s*(\$ \w|(\S*/)?(ortrain|make|pip|python3?|pytest|mpiexec|cmake|apt-get) (-|\.|\w+( |$)))"
)


def commands_elsewhere(text: str) -> list[str]:
    """Lines that are commands, in blocks that are not marked as such: without a language, or indented."""
    found, kind = [], None
    for line in text.splitlines():
        if line.startswith("```"):
            kind = line[3:].strip() if kind is None else None
        elif (
            kind in ("", "text", "zsh", "bat") or (kind is None and line.startswith("    "))
        ) and TYPED.match(line):
            found.append(line)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_is_in_a_block_of_commands(page):
    assert commands_elsewhere(page.read_text("utf-8")) == []


def test_a_command_elsewhere_would_be_seen():
    page = "```\nortrain train a --data b\n```\n\n    make demo\n    makes no sense = 1\n\n```python\nmake = 1\n```\n"
    assert commands_elsewhere(page) == ["ortrain train a --data b", "    make demo"]


@pytest.mark.parametrize("page", commands("test"), ids=lambda page: page.name)
def test_commands_run(page, tmp_path):
    shutil.copy(ROOT / "tests/data/fixtures/mlp_adamw/model.onnx", tmp_path / "model.onnx")
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 80)
    images = rng.normal(size=(80, 64)).astype(np.float32)
    np.savez(tmp_path / "train.npz", input=images, labels=labels)
    np.savez(tmp_path / "new.npz", input=images[:5])
    heading = ",".join([*(f"p{i}" for i in range(64)), "label"])
    np.savetxt(
        tmp_path / "test.csv",
        np.column_stack([images, labels]),
        delimiter=",",
        header=heading,
        comments="",
        fmt="%g",
    )
    for script in re.findall(
        r"^```python before\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL
    ):
        (tmp_path / "train.py").write_text(script, "utf-8")
    for command in commands("test")[page]:
        if command.startswith("ortrain dashboard"):
            newcomer.look_at(command, tmp_path)
        else:
            newcomer.run(command, tmp_path)


TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


@pytest.mark.parametrize("page", commands("clone"), ids=lambda page: page.name)
def test_commands_of_a_clone_exist(page):
    for command in commands("clone")[page]:
        for target in re.findall(r"\bmake ([a-z][\w-]*)", command):
            assert target in TARGETS, command
        for path in re.findall(r"(?<![\w/])(?:tests|codegen|docs|examples|bindings|spec)/[\w./-]+", command):
            written = "--plot" in command and path.startswith("docs/images")
            assert written or "<" in path or (ROOT / path).exists(), f"{command}: {path}"
        for module in re.findall(r"python -m ([\w.]+)", command):
            place = module.replace(".", "/")
            found = any(
                (folder / f"{place}.py").exists() or (folder / place / "__main__.py").exists()
                for folder in (ROOT, ROOT / "bindings/python")
            )
            assert module == "pytest" or found, command


def test_the_first_session_is_as_shown(tmp_path):
    newcomer.make_pictures(tmp_path / "pictures")
    shown = re.findall(
        r"^```console\n\$ (.*?)\n(.*?)^```", newcomer.PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    assert [command for command, _ in shown] == [command for _, command in newcomer.STEPS]
    accuracies = []
    for command, output in shown:
        printed = newcomer.run(command, tmp_path)
        assert newcomer.shape_of(printed) == newcomer.shape_of(output), command
        accuracies += re.findall(r"val_accuracy ([\d.]+)", printed)
    assert float(accuracies[-1]) > 0.8
