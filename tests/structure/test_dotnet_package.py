"""What the project files of C# promise. No .NET is needed: they are read as XML, and their paths are looked up."""

from __future__ import annotations

import pathlib
import xml.etree.ElementTree as ElementTree

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "bindings/csharp"
PROJECT = ElementTree.parse(FOLDER / "Microsoft.ML.OnnxRuntime.csproj").getroot()
TESTS = ElementTree.parse(ROOT / "tests/csharp/Tests.csproj").getroot()
# Frameworks that their vendor supports, and netstandard2.0, which the .NET Framework and Mono implement.
FRAMEWORKS = ["netstandard2.0", "net10.0"]


def setting(project: ElementTree.Element, name: str) -> str:
    """Return a property that the project sets once."""
    values = [element.text or "" for element in project.iter(name)]
    assert len(values) == 1, name
    return values[0]


def packed(folder: str) -> set[pathlib.Path]:
    """Return the files that the package has in a folder."""
    files: set[pathlib.Path] = set()
    for element in PROJECT.iter("None"):
        if folder in (element.get("PackagePath") or "").split(";"):
            assert element.get("Pack") == "true"
            for pattern in (element.get("Include") or "").split(";"):
                found = {path.resolve() for path in FOLDER.glob(pattern)}
                assert found, f"{pattern} matches no file"
                files |= found
    return files


def test_the_package_is_for_supported_frameworks() -> None:
    assert setting(PROJECT, "TargetFrameworks").split(";") == FRAMEWORKS
    assert setting(TESTS, "TargetFramework") == FRAMEWORKS[-1]
    conditions = [
        group.get("Condition", "") for group in PROJECT if "TargetFramework" in group.get("Condition", "")
    ]
    assert conditions
    for condition in conditions:
        assert any(f"== '{framework}'" in condition for framework in FRAMEWORKS), condition


def test_the_package_has_every_licence() -> None:
    assert packed("licenses/") == {ROOT / "LICENSE", *(ROOT / "licenses").iterdir()}
    # What a native library contains, beside ortrain: see licenses/third-party.txt.
    assert setting(PROJECT, "PackageLicenseExpression") == "MIT AND Apache-2.0"
    assert packed("/") == {FOLDER / setting(PROJECT, "PackageReadmeFile")}


def test_debuggers_find_the_sources() -> None:
    """SourceLink is part of the SDK of .NET 8 and newer; these ask it to name the repository and to add generated sources."""
    for name in ("PublishRepositoryUrl", "EmbedUntrackedSources", "IncludeSymbols", "Deterministic"):
        assert setting(PROJECT, name) == "true"
    assert setting(PROJECT, "SymbolPackageFormat") == "snupkg"
