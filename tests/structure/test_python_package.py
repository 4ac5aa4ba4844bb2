"""What package indexes and installers read about the Python package."""

from __future__ import annotations

import importlib.util
import pathlib
import subprocess
import sys
import tarfile
from email.message import Message
from email.parser import HeaderParser

import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[2]
# Creates a source distribution without CMake, and prints the folders that were searched.
SEARCHED = """
import os, sys
from scikit_build_core.build import build_sdist
walk = os.walk
def visible(*args, **kwargs):
    for found in walk(*args, **kwargs):
        print("searched", found[0])
        yield found
os.walk = visible
os.chdir(sys.argv[1])
build_sdist(sys.argv[2], {"sdist.cmake": "false"})
"""
METADATA = """
import os, sys
from scikit_build_core.build import prepare_metadata_for_build_wheel
os.chdir(sys.argv[1])
prepare_metadata_for_build_wheel(sys.argv[2])
"""


@pytest.fixture(scope="module")
def dist_info(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Return the folder that a wheel of the sources has, which takes no compiler."""
    if not importlib.util.find_spec("scikit_build_core"):
        pytest.skip("there is no scikit-build-core")
    folder = tmp_path_factory.mktemp("metadata")
    subprocess.run([sys.executable, "-c", METADATA, ROOT, folder], check=True, capture_output=True)
    (found,) = folder.glob("*.dist-info")
    return found


@pytest.fixture(scope="module")
def metadata(dist_info: pathlib.Path) -> Message:
    return HeaderParser().parsestr((dist_info / "METADATA").read_text())


def test_a_wheel_has_every_licence(dist_info: pathlib.Path, metadata: Message) -> None:
    expected = {"LICENSE", *(f"licenses/{path.name}" for path in (ROOT / "licenses").iterdir())}
    assert set(metadata.get_all("License-File", [])) == expected
    for name in expected:
        assert (dist_info / "licenses" / name).read_text() == (ROOT / name).read_text()


def test_the_licence_expression_covers_what_the_libraries_contain(metadata: Message) -> None:
    assert metadata["License-Expression"] == "MIT AND Apache-2.0 AND BSD-3-Clause"


def test_the_readme_names_the_packages_that_training_needs(metadata: Message) -> None:
    needed = {
        requirement.partition(">")[0]
        for requirement in metadata.get_all("Requires-Dist", [])
        if "extra ==" not in requirement
    }
    assert needed == {"numpy", "click"}
    for page in ("README.md", "docs/getting-started.md"):
        assert "needs numpy and click" in (ROOT / page).read_text(), page


def test_the_package_says_that_it_is_typed(metadata: Message) -> None:
    assert "Typing :: Typed" in metadata.get_all("Classifier", [])
    assert (ROOT / "bindings/python/ortrain/py.typed").is_file()


def test_a_source_distribution_is_created_without_searching_where_links_in_build_folders_lead(
    tmp_path: pathlib.Path,
) -> None:
    """Wine's folder in ``build`` has a link to ``/``, which takes hours to search."""
    if not importlib.util.find_spec("scikit_build_core"):
        pytest.skip("there is no scikit-build-core")
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    for folder in ("build/wine", "carried/hwy", "core/src"):
        (project / folder).mkdir(parents=True)
    (elsewhere / "home").mkdir(parents=True)
    (project / "build/wine/z:").symlink_to(elsewhere)
    for name in ("pyproject.toml", ".gitignore", "README.md", "LICENSE"):
        (project / name).write_bytes((ROOT / name).read_bytes())
    for name in ("licenses/third-party.txt", "carried/hwy/highway.h", "core/src/a.cpp", "build/b.cpp"):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).touch()
    command = [sys.executable, "-c", SEARCHED, project, tmp_path]
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    searched = {line.partition(" ")[2] for line in shown.splitlines() if line.startswith("searched ")}
    assert "./core/src" in searched
    assert not [folder for folder in searched if "z:" in folder]
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    assert {"carried/hwy/highway.h", "core/src/a.cpp"} <= names
    assert not [name for name in names if name.startswith("build")]


def with_urls(folder: pathlib.Path, address: str) -> subprocess.CompletedProcess[str]:
    script = ROOT / "scripts/project_urls.py"
    return subprocess.run([sys.executable, script, address], cwd=folder, capture_output=True, text=True)


def test_a_release_has_the_addresses_of_its_repository(tmp_path: pathlib.Path) -> None:
    project = (ROOT / "pyproject.toml").read_text()
    (tmp_path / "pyproject.toml").write_text(project)
    with_urls(tmp_path, "https://example.org/us/ortrain").check_returncode()
    written = (tmp_path / "pyproject.toml").read_text()
    removed = written.replace(
        written[written.index("[project.urls]") : written.index("[project.scripts]")], ""
    )
    assert removed == project
    assert 'Homepage = "https://example.org/us/ortrain"\n' in written
    assert 'Issues = "https://example.org/us/ortrain/issues"\n' in written
    again = with_urls(tmp_path, "https://example.org/us/ortrain")
    assert "without addresses, found [project.urls]" in again.stderr
    assert "found 'example.org'" in with_urls(tmp_path, "example.org").stderr


def test_the_tests_of_built_wheels_need_no_package_without_wheels_for_musl() -> None:
    """pip would compile onnx in the container of a musl wheel."""
    tomllib = pytest.importorskip("tomllib")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    for table in (settings, *(settings[system] for system in ("linux", "macos", "windows"))):
        assert not {"test-extras", "test-requires", "test-groups"} & table.keys()
    assert "ortrain demo" in settings["test-command"]


def test_the_release_is_published_by_a_trusted_publisher() -> None:
    """No password is stored; the package index knows the workflow, and attestations say what built each file."""
    text = (ROOT / ".github/workflows/release.yml").read_text()
    jobs = yaml.safe_load(text)["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    (step,) = (step for step in jobs["publish"]["steps"] if "pypi-publish" in step.get("uses", ""))
    assert not {"password", "user", "attestations"} & step.get("with", {}).keys()
    assert "secrets." not in text
    built = [step.get("run", "") for job in ("source", "archives") for step in jobs[job]["steps"]]
    assert any(command.startswith("python scripts/project_urls.py") for command in built)
    assert "make archive" in built
    for job in jobs.values():  # what a job needs exists
        needs = job.get("needs", [])
        assert ({needs} if isinstance(needs, str) else set(needs)) <= jobs.keys()
