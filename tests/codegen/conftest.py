"""Shared by the tests of the code generator."""

from __future__ import annotations

import json
import pathlib
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest
from spec_copy import ROOT, SpecCopy

sys.path.insert(0, str(ROOT))


@pytest.fixture(autouse=True, scope="session")
def valid_documents_are_validated_once() -> Iterator[None]:
    """Pass over documents that fitted the same schema before: most tests change one of thirty files."""
    iterate = jsonschema.Draft202012Validator.iter_errors
    valid: set[str] = set()

    def errors_of(validator: Any, instance: Any, *arguments: Any) -> Iterator[jsonschema.ValidationError]:
        if "$defs" not in validator.schema or arguments:  # a part of the schema
            yield from iterate(validator, instance, *arguments)
            return
        key = json.dumps([validator.schema, instance])
        if key not in valid:
            found = list(iterate(validator, instance))
            valid.update([] if found else [key])
            yield from found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonschema.Draft202012Validator, "iter_errors", errors_of)
        yield


@pytest.fixture
def spec_copy(tmp_path: pathlib.Path) -> SpecCopy:
    shutil.copytree(ROOT / "spec", tmp_path / "spec")
    return SpecCopy(tmp_path / "spec")


@pytest.fixture
def refusal(spec_copy: SpecCopy) -> Callable[[], str]:
    """Loads the copy, which must be rejected; returns the message."""
    from codegen.spec.check import load
    from codegen.spec.source import SpecError

    def load_rejected() -> str:
        with pytest.raises(SpecError) as caught:
            load(spec_copy.folder)
        return str(caught.value)

    return load_rejected
