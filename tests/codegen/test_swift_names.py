"""Swift's own declarations are those under which Swift imports the Objective-C classes, which programs were written for."""

from __future__ import annotations

import pytest
from spec_copy import ROOT
from swift_import import imported

from codegen.languages import language_class
from codegen.languages.objc import Language as ObjectiveC
from codegen.languages.swift import Language as Swift
from codegen.spec.check import load


@pytest.fixture(scope="module")
def languages() -> tuple[Swift, ObjectiveC]:
    spec = load(ROOT / "spec")
    swift, objc = language_class("swift")(spec), language_class("objc")(spec)
    assert isinstance(swift, Swift)
    assert isinstance(objc, ObjectiveC)
    return swift, objc


def test_the_classes_and_declarations_are_those_that_swift_imports(
    languages: tuple[Swift, ObjectiveC],
) -> None:
    swift, objc = languages
    ours = {cls.own: [swift.declaration(m) for m in swift.methods(cls)] for cls in swift.classes}
    theirs = {cls.own: [imported(objc, m) for m in objc.methods(cls)] for cls in objc.classes}
    assert ours == theirs
    assert "func setLearningRate(_ learningRate: Float) throws" in ours["ORTTrainingSession"]


def test_the_enumerations_are_those_that_swift_imports(languages: tuple[Swift, ObjectiveC]) -> None:
    swift, objc = languages
    assert [swift.enum_name(e["name"]) for e in swift.enums] == [
        objc.enum_name(e["name"]) for e in objc.enums
    ]
    for enum in swift.enums:
        for value in enum["values"]:
            name = objc.value_name(enum["name"], value["name"]).removeprefix(objc.enum_name(enum["name"]))
            assert swift.value_name(enum["name"], value["name"]).lower() == name.lower()
    types = [
        swift.value_name("tensor_element_type", name) for name in ("float", "uint8", "bfloat16", "int64")
    ]
    assert types == ["float", "uInt8", "bFloat16", "int64"]
