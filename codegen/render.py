"""Rendering: the spec through the templates, to the text of every generated file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2

from codegen.c_language import CLanguage, snake
from codegen.cpp_language import CppLanguage
from codegen.csharp_language import CsharpLanguage
from codegen.model import Spec
from codegen.objc_language import OBJC_FILES, ObjcLanguage
from codegen.python_language import TABLES, PythonLanguage

CSHARP_SOURCES = "bindings/csharp/src/generated"
OBJC_CLASSES = "bindings/objc"
PYTHON_CLASSES = "bindings/python/ortrain/api/generated"
PATCHES = 10
"""How many releases of a version of onnxruntime are reckoned with, 1.30.0 to 1.30.9."""
TEMPLATES = Path(__file__).resolve().parent / "templates"


def _environment(spec: Spec) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["spec"] = spec
    environment.globals["c"] = CLanguage(spec)
    environment.globals["cpp"] = CppLanguage(spec)
    environment.globals["csharp"] = CsharpLanguage(spec)
    environment.globals["objc"] = ObjcLanguage(spec)
    environment.globals["python"] = PythonLanguage(spec)
    environment.globals["tables"] = TABLES
    environment.globals["c_string"] = json.dumps
    environment.filters["snake"] = snake
    return environment


def tidy(text: str) -> str:
    """Return a text without blanks at line ends and with no more than two empty lines together."""
    lines: list[str] = []
    for line in (line.rstrip() for line in text.splitlines()):
        if line or lines[-2:] != ["", ""]:
            lines.append(line)
    return "\n".join(lines).strip("\n") + "\n"


def render(spec: Spec) -> dict[str, str]:
    """Every generated file.

    Returns
    -------
    dict of str to str
        The text of each file by its path from the root of the checkout.
    """
    environment = _environment(spec)
    rendered: dict[str, str] = {}

    def add(template: str, path: str, **context: Any) -> None:
        text = environment.get_template(template).render(**context)
        rendered[path] = tidy(text)

    for header in dict.fromkeys(table["header"] for table in spec.tables):
        add(f"c/{header}.j2", f"core/include/{header}")
    for table in spec.tables:
        add("c/table.cpp.j2", f"core/src/capi/generated/{snake(table['name'])}.cpp", table=table)
    add("c/bodies.h.j2", "core/src/capi/generated/bodies.h")
    add("c/session_config.h.j2", "core/src/session/generated/session_config.h")
    for of in ("session", "run"):
        add("c/config_keys.h.j2", f"core/include/onnxruntime_{of}_options_config_keys.h", of=of)
    add("c/cpu_provider_factory.h.j2", "core/include/cpu_provider_factory.h")
    minors = range(spec.library["first_api_version"], spec.library["api_version"] + 1)
    for name in ("versions.cpp", "versions.map"):
        add(f"c/{name}.j2", f"core/alias/generated/{name}", minors=minors, patches=range(PATCHES))
    for header in ("onnxruntime_cxx_api.h", "onnxruntime_float16.h", "onnxruntime_training_cxx_api.h"):
        add(f"cpp/{header}.j2", f"core/include/{header}")
    add("python/module.cpp.j2", "bindings/python/src/generated/module.cpp")
    add("python/module.pyi.j2", "bindings/python/ortrain/_ortrain.pyi")
    add("python/init.py.j2", f"{PYTHON_CLASSES}/__init__.py")
    add("python/enums.py.j2", f"{PYTHON_CLASSES}/enums.py")
    for cls in spec.classes_in("python"):
        add("python/class.py.j2", f"{PYTHON_CLASSES}/{snake(cls.names['python'])}.py", cls=cls)
    for table in filter(lambda table: spec.calls_of(table["name"]), spec.tables):
        add("csharp/table.cs.j2", f"{CSHARP_SOURCES}/{table['name']}.cs", table=table)
    add("csharp/version.cs.j2", f"{CSHARP_SOURCES}/ApiVersion.cs")
    add("csharp/version.props.j2", f"{CSHARP_SOURCES}/Version.props")
    for enum in CsharpLanguage(spec).enums():
        add("csharp/enum.cs.j2", f"{CSHARP_SOURCES}/{enum['names']['csharp']}.cs", enum=enum)
    for cls in spec.classes_in("csharp"):
        add("csharp/class.cs.j2", f"{CSHARP_SOURCES}/{cls.names['csharp']}.cs", cls=cls)
    add("objc/ort_enums.h.j2", f"{OBJC_CLASSES}/include/generated/ort_enums.h")
    for file in OBJC_FILES:
        classes = [spec.class_named(name) for name in file.classes]
        name = f"generated/{file.name}"
        add("objc/class.h.j2", f"{OBJC_CLASSES}/include/{name}.h", file=file, classes=classes)
        add("objc/class.m.j2", f"{OBJC_CLASSES}/src/{name}.m", file=file, classes=classes)
    for page in ("languages", "c", "cpp", "csharp", "objc", "python", "session-config"):
        add(f"docs/{page}.md.j2", f"docs/reference/{page}.md")
    return rendered
