"""Rendering: the spec through the templates of every language, to the text of every generated file."""

from __future__ import annotations

import json
from pathlib import Path

import jinja2

from codegen import languages
from codegen.languages import File
from codegen.onnx_signatures import onnx_signatures, onnx_versions
from codegen.spec.model import Spec
from codegen.spec.names import snake
from codegen.spec.source import Problem, SpecError

TEMPLATES = Path(__file__).resolve().parent / "templates"
"""Templates of files that belong to no language."""

COMMON = (
    File("languages.md.j2", "docs/reference/languages.md"),
    File("session-config.md.j2", "docs/reference/session-config.md"),
    File("onnx_signatures.h.j2", "core/src/op/generated/onnx_signatures.h"),
    File("onnx_versions.h.j2", "core/src/op/generated/onnx_versions.h"),
    File("slots.mjs.j2", "bindings/javascript/generated/slots.mjs"),
)


def tidy(text: str) -> str:
    """Return a text without trailing blanks, and with at most two empty lines in a row."""
    lines: list[str] = []
    for line in (line.rstrip() for line in text.splitlines()):
        if line or lines[-2:] != ["", ""]:
            lines.append(line)
    return "\n".join(lines).strip("\n") + "\n"


def _check_languages(spec: Spec) -> None:
    """Raise a SpecError unless each language has both a package and a file in the spec."""
    packages = languages.names()
    problems = [
        document.problem(("language", "name"), f"expected a package codegen/languages/{name}, found none")
        for name, document in spec.languages.items()
        if name not in packages
    ]
    problems += [
        Problem(f"codegen/languages/{name}", 1, "", f"expected a file spec/languages/{name}.yaml, found none")
        for name in packages
        if name not in spec.languages
    ]
    if problems:
        raise SpecError(problems)


def _prepared(spec: Spec) -> tuple[jinja2.Environment, list[languages.Base]]:
    """Return the templates, with the values that they use, and the languages."""
    _check_languages(spec)
    folders = {
        name: jinja2.FileSystemLoader(languages.FOLDER / name / "templates") for name in languages.names()
    }
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PrefixLoader(folders), jinja2.FileSystemLoader(TEMPLATES)]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    instances = {name: languages.language_class(name)(spec) for name in languages.names()}
    environment.globals.update(instances, spec=spec, bindings=[*instances.values()], c_string=json.dumps)
    environment.globals.update(onnx_signatures=onnx_signatures, onnx_versions=onnx_versions)
    environment.filters["snake"] = snake
    return environment, [*instances.values()]


def _text(environment: jinja2.Environment, file: File) -> str:
    return tidy(environment.get_template(file.template).render(**file.context))


def render(spec: Spec) -> dict[str, str]:
    """Return every generated file that is committed.

    Returns
    -------
    dict of str to str
        The text of each file by its path from the root of the checkout.

    Raises
    ------
    SpecError
        If a language lacks its package or its file, or cannot print a method.
    """
    environment, instances = _prepared(spec)
    files = [file for language in instances for file in language.files()]
    return {file.path: _text(environment, file) for file in (*files, *COMMON)}


def render_pages(spec: Spec) -> dict[str, str]:
    """Return the page of the API of every language. The pages are long, so they are only on the site.

    Returns
    -------
    dict of str to str
        The text of each page by the name of its file.

    Raises
    ------
    SpecError
        As :func:`render`.
    """
    environment, instances = _prepared(spec)
    pages = [page for language in instances if (page := language.page)]
    return {page.path: _text(environment, page) for page in pages}
