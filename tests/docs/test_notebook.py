"""The notebook runs from its first cell to its last."""

from __future__ import annotations

import json

from languages import ROOT


def test_the_cells_run_in_order(tmp_path, monkeypatch):
    notebook = json.loads((ROOT / "docs/tour.ipynb").read_text("utf-8"))
    assert (notebook["nbformat"], notebook["metadata"]["language_info"]["name"]) == (4, "python")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "commit the notebook without outputs"
            exec(compile("".join(cell["source"]), f"tour.ipynb, cell {number}", "exec"), names)
    assert (tmp_path / "digits.onnx").stat().st_size > 10_000
