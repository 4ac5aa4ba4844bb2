"""scripts/wheel_contents.py lists what a wheel contains; `make test-manylinux` writes that into docs/wheel.md."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

from scripts import wheel_contents

ROOT = Path(__file__).resolve().parents[2]


def test_libraries_and_metadata_have_rows_and_other_files_are_counted_by_folder(tmp_path: Path) -> None:
    wheel = tmp_path / "package-1-cp311-cp311-manylinux_2_28_x86_64.whl"
    files = {
        "package/__init__.py": 10,
        "package/lib/libpackage.so": 2_000_000,
        "package/cli/a.py": 1_400,
        "package/cli/inner/b.py": 1_400,
        "package-1.dist-info/licenses/LICENSE": 1_076,
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.mkdir("package/lib")
        for name, size in files.items():
            archive.writestr(name, b"x" * size)
    text = wheel_contents.page(wheel, 'constrains the platform tag to\n"manylinux_2_27_x86_64".\n')
    rows = re.findall(r"^\| `(.*)` \| (\d+) \| ([\d,]+) \|$", text, re.MULTILINE)
    assert rows == [
        ("package/*.py", "1", "1"),
        ("package/cli/", "2", "3"),
        ("package/lib/libpackage.so", "1", "2,000"),
        ("package-1.dist-info/licenses/LICENSE", "1", "1"),
    ]
    assert "5 files" in text
    assert '"manylinux_2_27_x86_64".\n```' in text


def test_the_page_names_every_licence_and_both_libraries() -> None:
    text = (ROOT / "docs/wheel.md").read_text()
    names = ["LICENSE", *(f"licenses/{path.name}" for path in (ROOT / "licenses").iterdir())]
    for file in ("libortrain.so", "alias/libonnxruntime.so.1"):
        assert f"`ortrain/lib/{file}`" in text
    for name in names:
        assert f".dist-info/licenses/{name}`" in text
    assert "manylinux" in text
