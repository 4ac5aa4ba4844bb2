"""scripts/check_unused.py finds functions that nothing uses; `make check` runs it on the project."""

from __future__ import annotations

from scripts import check_unused

HEADER = """
struct Shapes {
  int64_t rank() const { return rank_; }
  // See used_in_text().
  bool used_in_text() const;
};
std::vector<int64_t> strides_of(const Shapes& s);
void note(const char* text);
"""
SOURCE = """
std::vector<int64_t> strides_of(const Shapes& s) { return {s.rank()}; }
bool Shapes::used_in_text() const {
  const Guard guard(rank_);
  note("used_in_text()");
  return spaces::within(rank_);
}
constexpr Row kRows[] = {{strides_of}};
"""


def test_functions_of_cpp_without_a_use_are_found() -> None:
    assert check_unused.unused_cpp({"a.h": HEADER, "a.cpp": SOURCE}) == {"used_in_text": "a.cpp:3"}
    assert set(check_unused.unused_cpp({"a.h": HEADER})) == {"rank", "used_in_text", "strides_of", "note"}


def test_functions_of_python_without_a_use_are_found() -> None:
    product = {
        "a.py": "def _private(): ...\ndef public(): ...\ndef used(): return _called()\ndef _called(): ..."
    }
    documented = {**product, "page.md": "`used()`", "test_a.py": "_private()"}
    assert check_unused.unused_python(product, documented) == {"_private": "a.py:1", "public": "a.py:2"}
