"""The notebook runs from its first cell to its last."""

from __future__ import annotations

import json

import pytest
from languages import ROOT


def test_the_cells_run_in_order(tmp_path, monkeypatch):
    notebook = json.loads((ROOT / "docs/tour.ipynb").read_text("utf-8"))
    assert (notebook["nbformat"], notebook["metadata"]["language_info"]["name"]) == (4, "python")
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("matplotlib")
    names: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(notebook["cells"]):
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "commit the notebook without outputs"
            exec(compile("".join(cell["source"]), f"tour.ipynb, cell {number}", "exec"), names)
    assert (tmp_path / "digits.onnx").stat().st_size > 10_000


def outputs_of(cells, folder):
    """Run cells in a kernel of Jupyter, and return what each shows, by the types of its outputs."""
    nbclient = pytest.importorskip("nbclient", reason="needs Jupyter: make test-integrations")
    pytest.importorskip("ipykernel", reason="needs Jupyter: make test-integrations")
    import nbformat

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("".join(cell)) for cell in cells])
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return [[dict(output.get("data", {})) for output in cell.outputs] for cell in notebook.cells]


def test_jupyter_shows_the_table_and_the_pictures(tmp_path):
    cells = json.loads((ROOT / "docs/tour.ipynb").read_text("utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    code.append("again.find_learning_rate(images, labels).plot()")
    shown = outputs_of(code, tmp_path)
    fitted = next(number for number, source in enumerate(code) if "trainer.fit(" in source)
    table = shown[fitted][0]["text/html"]  # one output, which was updated
    assert table.count("<tr>") == 5
    assert "<th>val_accuracy</th>" in table
    assert "4 epochs" in table
    for number in (code.index(next(source for source in code if "plot(history)" in source)), -1):
        assert shown[number][-1]["image/png"], code[number]
