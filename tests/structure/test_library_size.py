"""scripts/library_size.py says where the bytes of a library come from; `make size` writes them into docs/size.md."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from scripts import library_size

ROOT = Path(__file__).resolve().parents[2]
ARM64 = library_size.Stripped("arm64", 5_200_000, 6000)
OBJECT = "CMakeFiles/core.dir/made/together/core/src/ops/enclosed_0.cpp.o"
MAP = f"""
Discarded input sections

 .text          0x0000000000000000      0x999 {OBJECT}

Memory Configuration

Linker script and memory map

.text           0x0000000000001000      0x130
 *(.text.unlikely .text.*_unlikely .text.unlikely.*)
 .text          0x0000000000001000      0x100 {OBJECT}
 .text._ZN7ortrain11with_a_long_nameEv
                0x0000000000001100       0x20 CMakeFiles/core.dir/core/src/backend/cpu/conv.cpp.o
 .fini          0x0000000000001120       0x10 /usr/lib/crti.o

.eh_frame_hdr   0x0000000000001130       0x40
 .eh_frame_hdr  0x0000000000001130       0x40 {OBJECT}

.rela.dyn       0x0000000000001170       0x30
 .rela.dyn      0x0000000000001170       0x30 /usr/lib/crti.o

.bss            0x0000000000002000      0x800
 .bss           0x0000000000002000      0x800 {OBJECT}

.debug_info     0x0000000000000000      0x400
 .debug_info    0x0000000000000000      0x400 {OBJECT}
"""


def test_parts_of_the_file_are_read_from_the_map() -> None:
    parts = library_size.parts_of(MAP)
    assert [(part.address, part.size, library_size.source_of(part, {})) for part in parts] == [
        (0x1000, 0x100, "ops/enclosed_0.cpp"),
        (0x1100, 0x20, "backend/cpu/conv.cpp"),
        (0x1120, 0x10, library_size.OTHERS),
        (0x1130, 0x40, library_size.LINKER),
        (0x1170, 0x30, library_size.LINKER),
    ]


def test_functions_of_several_sources_and_of_linked_code_are_told_by_their_symbols() -> None:
    known = {"_ZN7ortrain5PanelEv": library_size.SHARED, "_ZN7ortrain4ReLUEv": "ops/relu.cpp"}
    for object_, section, source in [
        ("core/src/backend/cpu/attention.cpp.o", ".text._ZN7ortrain5PanelEv", library_size.SHARED),
        ("core/src/backend/cpu/attention.cpp.o", ".text", "backend/cpu/attention.cpp"),
        ("/tmp/cc.ltrans0.ltrans.o", ".text.unlikely._ZN7ortrain4ReLUEv.isra.0", "ops/relu.cpp"),
        ("/tmp/cc.ltrans0.ltrans.o", ".eh_frame", library_size.UNNAMED),
    ]:
        map_ = f"Linker script and memory map\n\n.text 0x1 0x9\n {section} 0x0000000000001000 0x9 {object_}\n"
        (part,) = library_size.parts_of(map_)
        assert library_size.source_of(part, known) == source


@pytest.mark.skipif(not shutil.which("g++"), reason="needs a compiler")
def test_the_kinds_of_a_library_and_the_sources_of_its_code_are_found(tmp_path: Path) -> None:
    object_ = tmp_path / OBJECT
    object_.parent.mkdir(parents=True)
    source = tmp_path / "source.cpp"
    body = "".join(f"x = x * {n} + {n * n}; if (x % {n + 2} == 0) x += *y;" for n in range(3, 300))
    source.write_text(
        f"namespace source_gather {{ long first(long x, volatile long* y) {{ {body} return x; }} }}\n"
        "namespace source_slice { long second(long x) { return x + 1; } }\n"
    )
    subprocess.run(["g++", "-fPIC", "-O1", "-c", source, "-o", object_], check=True)
    link = ["g++", "-shared", OBJECT, "-o", "libortrain.so", "-Wl,-Map=libortrain.map"]
    subprocess.run(link, check=True, cwd=tmp_path)

    library = library_size.read("test", tmp_path, ROOT)
    assert sum(library.kinds.values()) == library.size < (tmp_path / "libortrain.so").stat().st_size
    assert library.kinds["code"] > 5000
    assert library.folders["ops"] > 5000
    assert library.sources["ops/tensor/gather.cpp"] > 100 * library.sources["ops/tensor/slice.cpp"] > 0
    assert "| ops | " in library_size.page([library], ARM64)


def test_a_library_above_its_limit_is_named() -> None:
    def library(name: str, size: int, limit: int | None) -> library_size.Library:
        return library_size.Library(name, size, limit, {"code": size}, {}, {})

    small, full = library("digits", 1_500_000, 1500), library("all operators", 9_000_000, None)
    large = library("in wheels", 6_000_001, 6000)
    assert library_size.above_limits([small, full]) == []
    (problem,) = library_size.above_limits([small, large, full])
    assert (
        "in wheels: the stripped file has 6,000,001 bytes, which is more than its limit of 6,000 kilobytes"
        in problem
    )
    assert "| limit | 1,500 | 6,000 |  |" in library_size.page([small, large, full], ARM64)


def test_make_size_checks_the_limits() -> None:
    recipe = re.search(r"^size:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    assert re.findall(r'"([^"=]+)=[^"=]+=(\d+)"', recipe[1]) == [
        ("in wheels", "6000"),
        ("$(run)", "1500"),
        ("head of MobileNetV2", "2000"),
    ]


def test_a_folder_without_a_build_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"libortrain\.so is missing; `make size` builds"):
        library_size.read("test", tmp_path, ROOT)


def test_the_page_is_part_of_the_documentation() -> None:
    assert "\nsize\n" in (ROOT / "docs" / "index.md").read_text()
    page = (ROOT / "docs" / "size.md").read_text()
    assert "Written by `make size`" in page
    assert "## By folder of core/src" in page


@pytest.mark.parametrize(("size", "ends"), [(6_000_000, None), (6_000_001, "more than its limit of 6,000")])
def test_a_stripped_file_of_another_system_is_checked_alone(
    size: int, ends: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "stripped.so"
    file.write_bytes(bytes(size))
    monkeypatch.setattr("sys.argv", ["library_size.py", "--check", f"arm64={file}=6000"])
    if ends is None:
        library_size.main()
    else:
        with pytest.raises(SystemExit, match=ends):
            library_size.main()
