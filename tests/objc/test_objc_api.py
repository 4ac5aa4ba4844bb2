"""The Objective-C headers declare what existing programs use; a new call appears in them and compiles."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from languages import ROOT, Missing, objc_options, skip_or_fail, tool

sys.path.insert(0, str(ROOT))

from codegen.languages.objc import Language
from codegen.languages.swift import Language as Swift
from codegen.render import render, render_pages
from codegen.spec.check import load
from codegen.write import write

BINDING = ROOT / "bindings/objc"
HEADERS = sorted((BINDING / "include").rglob("*.h"))

CALL = """
  - name: checkpoint_do_everything
    table: extension
    slot: FREE
    group: listing
    summary: Takes an argument of every kind, and gives two results.
    parameters:
      - {name: checkpoint_state, type: checkpoint_state, mutable: true, doc: The state.}
      - {name: old_names, type: string, length: count, doc: Names.}
      - {name: values, type: value, length: count, doc: Values for each.}
      - {name: choices, type: bool, length: count, doc: Choices for each.}
      - {name: count, type: size, unit: names, doc: How many.}
      - {name: data, type: bytes, length: data_length, doc: Bytes.}
      - {name: data_length, type: size, unit: bytes, doc: How many.}
      - {name: path, type: path, nullable: true, doc: A file that lists more.}
      - {name: name, type: string, doc: A name.}
      - {name: env, type: env, doc: An environment.}
      - {name: options, type: session_options, nullable: true, doc: Options.}
      - {name: kind, type: property_type, doc: A type.}
      - {name: ratio, type: float, doc: A number.}
      - {name: exact, type: flag, doc: A truth value.}
      - {name: error, type: int64, doc: A number whose name is taken.}
      - {name: allocator, type: allocator, doc: Gives the memory for the name.}
      - {name: out, type: string, direction: out, owner: allocator, doc: The last of the former names.}
      - {name: renamed, type: size, direction: out, unit: parameters, doc: How many were found.}
    core: body
  - name: training_session_give_everything
    table: extension
    slot: NEXT
    group: listing
    summary: Gives values, as many as are asked for.
    parameters:
      - {name: session, type: training_session, mutable: true, doc: The session.}
      - {name: run_options, type: run_options, nullable: true, doc: Settings.}
      - {name: outputs_len, type: size, unit: values, doc: How many.}
      - {name: outputs, type: value, direction: inout, length: outputs_len, owner: caller, doc: The values.}
    core: body
  - name: checkpoint_get_bytes
    table: extension
    slot: LAST
    group: listing
    summary: Gives bytes.
    parameters:
      - {name: checkpoint_state, type: checkpoint_state, doc: The state.}
      - {name: allocator, type: allocator, doc: Gives the memory.}
      - {name: out, type: bytes, direction: out, owner: allocator, length: out_length, doc: The bytes.}
      - {name: out_length, type: size, direction: out, unit: bytes, doc: How many.}
    core: body
  - name: checkpoint_get_copy
    table: extension
    slot: OWN
    group: listing
    summary: Gives another state.
    parameters:
      - {name: checkpoint_state, type: checkpoint_state, doc: The state.}
      - {name: out, type: checkpoint_state, direction: out, owner: caller, doc: The copy.}
    core: body
"""

EXPECTED = """
- (BOOL)doEverythingWithOldNames:(NSArray<NSString *> *)oldNames values:(NSArray<ORTValue *> *)values
  choices:(NSArray<NSNumber *> *)choices data:(NSData *)data
  path:(nullable NSString *)path name:(NSString *)name env:(ORTEnv *)env
  options:(nullable ORTSessionOptions *)options kind:(ORTPropertyType)kind ratio:(float)ratio exact:(BOOL)exact
  error:(int64_t)errorValue out:(NSString *_Nullable *_Nullable)outResult
  renamed:(NSUInteger *_Nullable)renamedResult error:(NSError *_Nullable *_Nullable)error;
- (nullable NSArray<ORTValue *> *)giveEverythingWithRunOptions:(nullable ORTRunOptions *)runOptions
  outputsLen:(NSUInteger)outputsLen error:(NSError *_Nullable *_Nullable)error;
- (nullable NSData *)getBytesWithError:(NSError *_Nullable *_Nullable)error;
- (nullable ORTCheckpoint *)getCopyWithError:(NSError *_Nullable *_Nullable)error;
"""


def plain(declaration: str) -> str:
    """A declaration without line breaks, parameter names, and defaults."""
    text = re.sub(r"\s+", " ", declaration).strip().rstrip(";")
    text = re.sub(r" (ORT_FAILS_BY_ERROR|NS_DESIGNATED_INITIALIZER|ORT_SWIFT_NAME\(.*?\)\)?)", "", text)
    text = text.replace("nonnull ", "")
    return re.sub(r"\)\w+(?= \w+:|$)", ")", text)


def declared(header: str) -> dict[str, list[str]]:
    """The declarations of methods by class."""
    text = re.sub(r"/\*.*?\*/|^#.*?$", "", header, flags=re.DOTALL | re.MULTILINE)
    classes = re.findall(r"@interface (\w+) : NSObject(.*?)@end", text, re.DOTALL)
    return {
        name: [plain(d) for d in re.findall(r"^- .*?;", body, re.DOTALL | re.MULTILINE)]
        for name, body in classes
    }


def listed() -> list[list[str]]:
    """The rows of selectors.txt: class, declaration, declaration in Swift."""
    lines = (ROOT / "tests/objc/selectors.txt").read_text(encoding="utf-8").splitlines()
    return [line.split(" | ") for line in lines if line and not line.startswith("#")]


@pytest.fixture(scope="module")
def api() -> dict[str, list[str]]:
    return {cls: found for path in HEADERS for cls, found in declared(path.read_text()).items()}


@pytest.mark.parametrize(("cls", "declaration", "swift"), listed())
def test_the_headers_declare_it(api, cls, declaration, swift):
    assert plain(declaration) in api[cls]


def swift_types(declaration: str) -> str:
    """A Swift declaration without the names that only its body would use."""
    return re.sub(r"(?<=[(,]) ?(\w+)(?: \w+)?:", r"\1:", declaration)


def test_swift_names_are_those_of_the_list():
    spec = load(ROOT / "spec")
    objc, swift = Language(spec), Swift(spec)
    given = {
        (cls.own, plain(objc.declaration(m))): declaration
        for cls in objc.classes
        for m, declaration in zip(objc.methods(cls), swift.declarations(cls.name), strict=True)
    }
    rows = [row for row in listed() if row[0] in {cls for cls, _ in given}]
    assert len(rows) > 30
    for cls, declaration, recorded in rows:
        assert swift_types(given[cls, plain(declaration)]) == swift_types(recorded), declaration


@pytest.mark.parametrize("path", HEADERS, ids=lambda path: path.name)
def test_every_method_is_documented(path):
    text = path.read_text()
    for comment, declaration in re.findall(r"(?:/\*\*(.*?)\*/\s*)?^(- .*?;)", text, re.DOTALL | re.MULTILINE):
        if "ORT_UNAVAILABLE" in declaration:
            continue
        names = re.findall(r"\)(\w+)(?=\s+\w+:|;| ORT_| NS_)", declaration)
        assert names, declaration
        for name in names:
            assert re.search(rf"@param {name} \S", comment), f"{name} of {declaration}"
        assert re.search(r"@return \S", comment), declaration


def test_the_version_is_that_of_the_project():
    version = re.search(r"^  version: (\S+)", (ROOT / "spec/library.yaml").read_text(), re.MULTILINE)
    assert version is not None
    assert f"spec.version = '{version[1]}'" in (BINDING / "ortrain-training-objc.podspec").read_text()
    assert f"VERSION {version[1]} " in (BINDING / "CMakeLists.txt").read_text()


def test_the_files_of_the_pod_are_there():
    text = (BINDING / "ortrain-training-objc.podspec").read_text()
    patterns = re.findall(r"'((?:bindings|core)/[^']*)'", text)
    assert len(patterns) >= 4
    packed = set()
    for pattern in patterns:
        for ending in ("h", "m") if "{h,m}" in pattern else ("",):
            packed |= set(ROOT.glob(pattern.replace("{h,m}", ending)))
    assert set(HEADERS) <= packed
    assert set((BINDING / "src").rglob("*.[hm]")) <= packed
    assert ROOT / "core/include/ortrain_c_api.h" in packed


def compiler(counted: bool = False) -> list[str]:
    try:
        return [tool("clang", "clang"), *objc_options(counted)]
    except Missing as why:
        skip_or_fail("objc", why)


def compile_only(command: list[str], *arguments: str | Path, text: str | None = None) -> None:
    ran = subprocess.run(
        [*command, "-fsyntax-only", *map(str, arguments)],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    """The headers in one folder, as in a framework."""
    folder = tmp_path / "onnxruntime_training_objc.framework/Headers"
    folder.mkdir(parents=True)
    for path in HEADERS:
        shutil.copy(path, folder)
    return folder


@pytest.mark.first_case
@pytest.mark.parametrize("counted", [False, True], ids=["by hand", "counted"])
@pytest.mark.parametrize("language", ["objective-c", "objective-c++"])
def test_each_header_compiles_alone(language, counted, flat):
    for path in HEADERS:
        text = f'#import "{path.name}"\n'
        compile_only([*compiler(counted), *CLIENT_WARNINGS], "-x", language, f"-I{flat}", "-", text=text)


def test_the_umbrella_header_imports_all_and_compiles_in_a_framework(flat):
    forward, training = (
        set(re.findall(r'#import "(.*)"', (BINDING / "include" / name).read_text()))
        for name in ("onnxruntime.h", "onnxruntime_training.h")
    )
    assert "onnxruntime.h" in training
    assert not forward & training
    assert forward | training == {path.name for path in HEADERS} - {"onnxruntime_training.h"}
    module = (BINDING / "include/module.modulemap").read_text()
    assert "module onnxruntime_training_objc" in module
    assert 'umbrella header "onnxruntime_training.h"' in module
    framework = flat.parent
    (framework / "Modules").mkdir()
    (framework / "Modules/module.modulemap").write_text("framework " + module.split("\n", 1)[1])
    text = "#import <onnxruntime_training_objc/onnxruntime_training.h>\nORTEnv *env;\n"
    compile_only(compiler(), "-x", "objective-c", f"-F{framework.parent}", "-", text=text)


CLIENT_WARNINGS = [
    "-Wnullability",
    "-Wnullability-completeness",
    "-Wnullable-to-nonnull-conversion",
    "-Wnonnull",
]

CLIENT = """
#import "ort_training_session.h"
#import "onnxruntime.h"

/** Adds what a program might: another initializer, which calls a designated one. */
@interface Resumed : ORTCheckpoint
- (nullable instancetype)initWithFolder:(NSString *_Nonnull)folder;
@end

@implementation Resumed
- (nullable instancetype)initWithFolder:(NSString *_Nonnull)folder {
  return [self initWithPath:[folder stringByAppendingPathComponent:@"checkpoint"] error:NULL];
}
@end

ORTTrainingSession *_Nullable Make(ORTEnv *_Nonnull env, ORTCheckpoint *_Nonnull state) {
  NSError *error = nil;
  ORTSetSeed(2718);
  ORTSessionOptions *options = [[ORTSessionOptions alloc] initWithError:&error];
  if (options == nil) return nil;
  return [[ORTTrainingSession alloc] initWithEnv:env
                                  sessionOptions:nil
                                      checkpoint:state
                                  trainModelPath:@"training_model.onnx"
                                   evalModelPath:nil
                              optimizerModelPath:nil
                                           error:&error];
}
"""

ATTRIBUTES = {
    "ORTEnv": {"initWithLoggingLevel:error:": "designated"},
    "ORTSession": {"initWithEnv:modelPath:sessionOptions:error:": "designated"},
    "ORTCheckpoint": {
        "initWithPath:error:": "designated",
        "getIntPropertyWithName:error:": "error",
        "getFloatPropertyWithName:error:": "error",
        "getStringPropertyWithName:error:": "error",
    },
    "ORTTrainingSession": {
        "initWithEnv:sessionOptions:checkpoint:trainModelPath:evalModelPath:optimizerModelPath:error:": "designated",
        "getLearningRateWithError:": "error",
    },
}
"""What the original headers say about methods beyond their types."""

NOT_DESIGNATED = {"ORTSessionOptions": "initWithError:", "ORTRunOptions": "initWithError:"}


def attributes_of(cls: str, flat: Path) -> dict[str, str]:
    """The attributes of a class's methods as the compiler sees them, by selector."""
    command = [*compiler(), "-fsyntax-only", "-x", "objective-c", f"-I{flat}", "-"]
    command += ["-Xclang", "-ast-dump", "-Xclang", f"-ast-dump-filter={cls}"]
    text = '#import "onnxruntime_training.h"\n'
    ran = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    parts = re.split(r"^Dumping ", ran.stdout, flags=re.MULTILINE)
    own = "\n".join(part for part in parts if part.startswith(f"{cls}:\nObjCInterfaceDecl"))
    found: dict[str, str] = {}
    for method in re.split(r"^[|`]-", own, flags=re.MULTILINE):
        named = re.match(r"ObjCMethodDecl 0x\S+ <.*?> \S+ - (\S+) '", method)
        if named:
            found[named[1]] = method
    return found


@pytest.mark.parametrize("cls", [*ATTRIBUTES, *NOT_DESIGNATED])
def test_methods_have_the_attributes_of_the_original_headers(cls, flat):
    methods = attributes_of(cls, flat)
    assert "UnavailableAttr" in methods["init"]
    for selector, wanted in ATTRIBUTES.get(cls, {}).items():
        if wanted == "designated":
            assert "ObjCDesignatedInitializerAttr" in methods[selector]
        else:
            assert re.search(r"SwiftErrorAttr .* NonNullError", methods[selector])
    if cls in NOT_DESIGNATED:
        assert "ObjCDesignatedInitializerAttr" not in methods[NOT_DESIGNATED[cls]]


@pytest.mark.parametrize("counted", [False, True], ids=["by hand", "counted"])
@pytest.mark.parametrize("language", ["objective-c", "objective-c++"])
def test_a_program_of_the_original_compiles_without_a_warning(language, counted, flat):
    compile_only([*compiler(counted), *CLIENT_WARNINGS], "-x", language, f"-I{flat}", "-", text=CLIENT)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[[ORTCheckpoint alloc] init]", "'init' is unavailable"),
        ("[[ORTCheckpoint alloc] initWithPath:nil error:NULL]", "null passed"),
        ("[[ORTEnv alloc] init]", "'init' is unavailable"),
    ],
)
def test_what_the_headers_forbid_does_not_compile(line, said, flat):
    text = f'#import "onnxruntime_training.h"\nid Make(void) {{ return {line}; }}\n'
    command = [*compiler(), *CLIENT_WARNINGS, "-fsyntax-only", "-x", "objective-c", f"-I{flat}", "-"]
    ran = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert ran.returncode != 0
    assert said in ran.stderr


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with the files generated from a spec with four more calls, and the other sources."""
    root = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "spec", root / "spec")
    shutil.copytree(BINDING, root / "bindings/objc")
    shutil.copytree(ROOT / "bindings/swift", root / "bindings/swift")
    shutil.copytree(ROOT / "core/include", root / "core/include")
    free = next(t["slots"] for t in load(root / "spec").tables if t["name"] == "extension")
    library = root / "spec/library.yaml"
    table = "  - name: extension\n    slots: "
    assert f"{table}{free}" in library.read_text()
    library.write_text(library.read_text().replace(f"{table}{free}", f"{table}{free + 4}"))
    call = CALL
    for i, place in enumerate(("FREE", "NEXT", "LAST", "OWN")):
        call = call.replace(f"slot: {place}", f"slot: {free + i}")
    # Some kinds of results do not exist in other languages.
    for language in ("cpp", "csharp"):
        path = root / f"spec/languages/{language}.yaml"
        path.write_text(path.read_text().replace("      complete: true\n", ""))
    extensions = root / "spec/extensions.yaml"
    extensions.write_text(extensions.read_text() + call)
    write(render(load(root / "spec")), root)
    return root


def test_the_same_calls_compile_in_swift(extended):
    try:
        compiler = tool("swiftc", "swiftlang")
    except Missing as why:
        skip_or_fail("swift", why)
    sources = sorted((extended / "bindings/swift/Sources/onnxruntime_training_objc").rglob("*.swift"))
    text = "".join(path.read_text() for path in sources)
    assert "func doEverything(withOldNames oldNames: [String], values: [ORTValue], choices: [Bool]," in text
    assert (
        "func giveEverything(withRunOptions runOptions: ORTRunOptions?, outputsLen: UInt) throws -> [ORTValue]"
        in text
    )
    includes = ["-I", extended / "bindings/swift/Sources/COrtrain", "-Xcc", f"-I{extended / 'core/include'}"]
    command = [compiler, "-typecheck", "-swift-version", "6", "-warnings-as-errors", *includes, *sources]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.thorough
def test_new_calls_become_methods(extended):
    classes = [declared(path.read_text()) for path in (extended / "bindings/objc/include").rglob("*.h")]
    found = {declaration for methods in classes for own in methods.values() for declaration in own}
    for declaration in re.findall(r"^- .*?;", EXPECTED, re.DOTALL | re.MULTILINE):
        assert plain(declaration) in found
    page = render_pages(load(extended / "spec"))["objc.md"]
    assert "-[ORTCheckpoint getBytesWithError:]" in page
    assert "func getBytes() throws -> Data" in page


@pytest.mark.thorough
@pytest.mark.parametrize("counted", [False, True], ids=["by hand", "counted"])
def test_new_calls_compile(extended, counted):
    folders = (
        "bindings/objc/include",
        "bindings/objc/include/generated",
        "bindings/objc/src",
        "core/include",
    )
    includes = [f"-I{extended / folder}" for folder in folders]
    sources = sorted((extended / "bindings/objc/src").rglob("*.m"))
    assert len(sources) >= 8
    compile_only(compiler(counted), *includes, *sources)
