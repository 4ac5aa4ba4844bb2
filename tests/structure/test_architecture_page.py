"""The map of the sources is short, and what it names exists."""

from __future__ import annotations

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
FOLDERS = (ROOT, ROOT / "core" / "src", ROOT / "bindings" / "python" / "ortrain")
"""A path on the page starts in one of these."""


def paths_named(text: str) -> list[str]:
    """Return the paths in backquotes; ``<family>`` is any folder or file."""
    named = re.findall(r"`((?:[\w.<>-]+/)+[\w.<>-]*)`", text)
    return sorted({re.sub(r"<\w+>", "*", name) for name in named})


def exists(name: str) -> bool:
    """Whether there is such a file or folder; a module of Python may be named without its ending."""
    return any(any(folder.glob(form)) for folder in FOLDERS for form in (name, f"{name}.py"))


def test_the_map_fits_on_a_few_screens() -> None:
    assert len(PAGE.splitlines()) <= 150


def test_what_the_map_names_exists() -> None:
    named = paths_named(PAGE)
    assert "core/src/ops/*/" in named
    assert len(named) > 40
    assert not [name for name in named if not exists(name)]


def test_every_pass_is_on_the_page_of_passes_and_no_other() -> None:
    pipeline = (ROOT / "core/src/passes/pipeline.cpp").read_text()
    page = (ROOT / "docs/reference/passes.md").read_text()
    listed = re.findall(r"^\| `(\w+)` \| [a-z, ]+ \|", page, re.MULTILINE)
    assert sorted(listed) == sorted(set(re.findall(r'^    \{"(\w+)"', pipeline, re.MULTILINE)))


def test_the_page_of_passes_states_their_phases_and_former_names() -> None:
    pipeline = (ROOT / "core/src/passes/pipeline.cpp").read_text()
    page = (ROOT / "docs/reference/passes.md").read_text()
    artifact = pipeline.split("kArtifactPasses[]")[1].split("\n};")[0]
    listed = re.findall(r"^\| `(\w+)` \| artifact", page, re.MULTILINE)
    assert sorted(listed) == sorted(re.findall(r'^    \{"(\w+)"', artifact, re.MULTILINE))
    former = set(re.findall(r'PassLevel::\w+,\s+"(\w+)"', pipeline))
    assert former
    assert former == set(re.findall(r"`(\w+)`", re.split(r"former\s+names:\s", page)[1].split(".\n")[0]))
