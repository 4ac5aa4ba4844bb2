"""One module of the Python package writes files; what else opens one for writing appends to a log, and is named here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "bindings/python/ortrain"
WRITER = PACKAGE / "_files/writing.py"
SYSTEMS = {PACKAGE / f"_files/system_{name}.py" for name in ("posix", "windows")}
"""What the writer does differently on each system."""

APPENDING = {
    ("_files/weights.py", "Spill", "open"),  # a weight at a time, in a temporary folder
    ("dashboard/studio.py", "Studio", "open"),  # a new file, as a page sends it
    ("flower/server.py", "server_app", "open"),  # a line per round
    ("trainer/feature_store.py", "FeatureStore", "open"),  # a record per sample
    ("trainer/json_log.py", "JSONLogger", "open"),  # a line per event
    ("trainer/loggers.py", "CSVLogger", "open"),  # a row per epoch
}
"""Files that grow: file, function or class, and call."""

# Calls that write to a path, or change a name, whatever their arguments are.
WRITING = {
    "NamedTemporaryFile", "TemporaryFile", "copy", "copy2", "copyfile", "copytree", "memmap", "mkstemp", "move",
    "open_memmap", "rename", "renames", "save_file", "save_model", "sink_parquet", "symlink", "to_csv",
    "to_parquet", "tofile", "write_bytes", "write_table", "write_text",
}  # fmt: skip
# Calls that write to a path or to a file that is open: allowed for the file that `replaced_file` gives.
SAVING = {"save", "savez", "savez_compressed", "savetxt", "savefig", "dump"}
MODULES = {"np", "numpy", "onnx", "json", "pickle", "figure", "shutil", "os", "Path", "tempfile"}


def called(node: ast.Call) -> tuple[str, str]:
    """Return what a call is of, as far as that is a name, and its name."""
    if isinstance(node.func, ast.Name):
        return "", node.func.id
    if isinstance(node.func, ast.Attribute):
        value = node.func.value
        return value.id if isinstance(value, ast.Name) else "?", node.func.attr
    return "", ""


def is_writing(node: ast.Call, given: set[str]) -> bool:
    """Whether a call writes to a path; `given` are the names of files that `replaced_file` gives."""
    owner, name = called(node)
    if name == "open":
        if owner == "webbrowser":
            return False
        if owner == "os":
            flags = ast.unparse(node.args[1])
            return any(flag in flags for flag in ("WRONLY", "RDWR", "CREAT", "TRUNC", "APPEND"))
        mode = next((word.value for word in node.keywords if word.arg == "mode"), None)
        first = 1 if owner in ("", "io", "gzip", "codecs") else 0
        mode = mode or (node.args[first] if len(node.args) > first else None)
        if mode is None or not isinstance(mode, ast.Constant):
            return mode is not None and owner == ""
        return isinstance(mode.value, str) and set(mode.value) & set("wax+") != set()
    if name == "fdopen":
        return any(
            isinstance(each, ast.Constant) and set(str(each.value)) & set("wax+") for each in node.args
        )
    if name == "replace":  # of texts, dataclasses, models, variables of Flax, or names of files
        return owner == "os" or (
            len(node.args) == 1 and not node.keywords and owner not in ("accessor", "variable")
        )
    if name in SAVING and owner in MODULES:
        places = [each.id for each in node.args if isinstance(each, ast.Name)]
        return not given & set(places)
    if name in ("copy", "symlink") and owner not in ("shutil", "os"):
        return False
    if name == "rename" and ast.unparse(node.func) in (
        "rename",
        "exported_weights.rename",
        "self.runs.rename",
    ):
        return False  # of values, and of runs, whose names are the contents of files
    return name in WRITING


def found_in(path: Path) -> set[tuple[str, str, str]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    given = {
        item.optional_vars.id
        for node in ast.walk(tree)
        if isinstance(node, ast.With)
        for item in node.items
        if isinstance(item.context_expr, ast.Call)
        and called(item.context_expr)[1] == "replaced_file"
        and isinstance(item.optional_vars, ast.Name)
    }
    given |= {  # files in memory
        node.targets[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and ast.unparse(node.value) == "io.BytesIO()"
        and isinstance(node.targets[0], ast.Name)
    }
    name = path.relative_to(PACKAGE).as_posix()
    return {
        (name, getattr(outer, "name", ""), called(node)[1])
        for outer in tree.body
        for node in ast.walk(outer)
        if isinstance(node, ast.Call) and is_writing(node, given)
    }


@pytest.mark.thorough
def test_one_module_writes_files() -> None:
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        if path != WRITER and path not in SYSTEMS:
            found |= found_in(path)
            assert path.name == "system.py" or not {"create_locked", "replace"} & imported_from_system(
                path
            ), path
    assert found == APPENDING


def imported_from_system(path: Path) -> set[str]:
    """Return the names that a file imports from `system`, and the functions that it calls as ``system.NAME``."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ortrain._files.system"):
            names |= {each.name for each in node.names}
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "system":
            names.add(node.attr)
    return names


# What else differs between systems: processes and signals.
ASKING = {
    "_files/system.py",
    "_files/system_posix.py",
    "_files/system_windows.py",
    "_support/signals.py",
    "distributed/__main__.py",
}


def test_few_modules_ask_for_the_operating_system() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if any(question in path.read_text() for question in ("sys.platform", "os.name", "platform.system("))
    }
    assert found == ASKING


def test_what_writes_is_noticed(tmp_path: Path, monkeypatch) -> None:
    """Each of these ways is found, so that the other test can fail."""
    monkeypatch.setattr(f"{__name__}.PACKAGE", tmp_path)
    ways = [
        'open(p, "w")', 'open(p, mode="ab")', 'p.open("r+")', 'os.open(p, os.O_WRONLY)', 'os.fdopen(h, "wb")',
        "p.write_text(t)", "p.write_bytes(b)", "np.savez(p, a=a)", "np.save(p, a)", "onnx.save(m, p)",
        "figure.savefig(p)", "os.replace(a, b)", "p.replace(q)", "tempfile.mkstemp()", "shutil.copytree(a, b)",
        "package.save_file(a, p)", "p.rename(q)", "open(p, mode)",
    ]  # fmt: skip
    for number, way in enumerate(ways):
        path = tmp_path / f"m{number}.py"
        path.write_text(f"def f():\n    {way}\n", encoding="utf-8")
        assert found_in(path), way
    harmless = [
        "open(p)", 'p.open(newline="")', "webbrowser.open(u)", 'text.replace("a", "b")', "replace(report, a=1)",
        "os.open(p, os.O_RDONLY)", "trainer.save(p)", "f = io.BytesIO(); np.savez(f, a=a)",
    ]  # fmt: skip
    for number, way in enumerate(harmless):
        path = tmp_path / f"h{number}.py"
        path.write_text(f"def f():\n    {way}\n", encoding="utf-8")
        assert not found_in(path), way
