"""Files that are damaged, hostile or no files at all: one line says which file, what was expected and what was found."""

from __future__ import annotations

import io
import json
import os
import re
import struct
import subprocess
import sys
import zipfile
import zlib

import numpy as np
import onnx
import pytest
from languages import ROOT
from ortrain import FileError, InvalidArgumentError, NoSuchFileError
from ortrain._files.reading import open_file, read_lines, read_npz
from system import needs_devices, needs_named_pipes

PBSEQ = ROOT / "tests/data/pbseq/trained"


def spawn(*arguments: object, **options) -> subprocess.CompletedProcess[str]:
    """Run the command in a separate process, which must end."""
    return subprocess.run(
        [sys.executable, "-m", "ortrain", *map(str, arguments)],
        capture_output=True, text=True, timeout=120, check=False, **options,
    )  # fmt: skip


def refused(run, path, *arguments: object) -> str:
    """Run a command that must fail, and return the line that says why."""
    lines = run(*arguments, status=1).err.splitlines()
    assert len(lines) <= 2, lines  # the error, and a hint
    assert str(path) in lines[0], lines
    return lines[0]


def array(values=((1.0,),)) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array(values, np.float32))
    return file.getvalue()


def npy(header: str, data: bytes = b"", version: int = 1) -> bytes:
    text = header.encode("latin1") + b"\n"
    return (
        b"\x93NUMPY"
        + bytes([version, 0])
        + struct.pack("<H" if version == 1 else "<I", len(text))
        + text
        + data
    )


def shaped(shape: str, kind: str = "<f4") -> str:
    return f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"


NPY = {
    "empty": b"",
    "text": b"1,2,3\n",
    "cut": array(np.ones((100, 3)))[:-7],
    "more than any memory": npy(shaped("(1152921504606846976, 3)")),
    "larger than it is": npy(shaped("(1073741824, 1024)"), b"\0" * 100),
    "negative": npy(shaped("(-5, 3)"), b"\0" * 100),
    "objects": npy(shaped("(2,)", "|O"), b"\x80\x04N."),
    "unknown version": npy(shaped("(1,)"), b"\0" * 4, version=9),
    "no header": npy("x" * 50),
    "deep header": npy("(" * 5000 + ")" * 5000),
    "code in the header": npy("__import__('os').system('true')"),
    "huge number": npy(shaped("(" + "9" * 4000 + ",)")),
}  # fmt: skip


@pytest.mark.parametrize("name", NPY)
def test_npy(name, artifacts, tmp_path, run):
    path = tmp_path / "bad.npy"
    path.write_bytes(NPY[name])
    said = refused(run, path, "train", artifacts, "--data", path)
    assert "expected an NPY file as written by numpy.save" in said or "does not fit into memory" in said


def zipped(**members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return file.getvalue()


def with_bad_crc() -> bytes:
    data = zipped(image=array(np.full((4, 1, 4, 4), 7)), labels=array([0, 1, 2, 0]))
    at = data.index(np.float32(7).tobytes() * 4)
    return data[:at] + b"\x01" + data[at + 1 :]


def changed(data: bytes, signature: bytes, offset: int, value: int) -> bytes:
    """Change a number of 16 bits in all headers of a ZIP file that begin with a signature."""
    changed = bytearray(data)
    at = -1
    while (at := data.find(signature, at + 1)) >= 0:
        changed[at + offset : at + offset + 2] = struct.pack("<H", value)
    return bytes(changed)


PLAIN = zipped(image=array(np.ones((4, 1, 4, 4))), labels=array([0, 1, 2, 0]))
NPZ = {
    "text": b"image,labels\n",
    "a bad checksum": with_bad_crc(),
    "cut": PLAIN[:200] + PLAIN[-100:],
    "more than any memory": zipped(image=npy(shaped("(1125899906842624, 3)")), labels=array([0])),
    "larger than it is": zipped(image=npy(shaped("(100000, 3)")), labels=array([0])),
    "a member that is not an array": zipped(image=b"hello", labels=array([0])),
    "objects": zipped(image=npy(shaped("(2,)", "|O"), b"\x80\x04N."), labels=array([0])),
    "encrypted": changed(changed(PLAIN, b"PK\x03\x04", 6, 1), b"PK\x01\x02", 8, 1),
    "an unknown compression": changed(changed(PLAIN, b"PK\x03\x04", 8, 77), b"PK\x01\x02", 10, 77),
}  # fmt: skip


@pytest.mark.parametrize("name", NPZ)
@pytest.mark.parametrize("command", ["train", "profile", "convert"])
def test_npz(name, command, artifacts, tmp_path, run):
    path = tmp_path / "bad.npz"
    path.write_bytes(NPZ[name])
    arguments = {
        "train": ("train", artifacts, "--data", path),
        "profile": ("profile", artifacts, "--inputs", path, "--json"),
        "convert": ("convert", path, tmp_path / "out.npz"),
    }[command]
    said = refused(run, path, *arguments)
    assert "expected a" in said or "does not fit into memory" in said
    assert not (tmp_path / "out.npz").exists()


CSV = {
    "a long field": (b"a,b\n1,2\n" + b"x" * 200_000 + b",2\n", "line 3: expected values of a table, found: field larger"),
    "bytes": (b"a,b\n1,\xff2\n", "line 2: expected UTF-8, found byte 0xff at column 3"),
    "a line that is too short": (b"a,b\n\n1,2\n1\n", "line 4: expected 2 values, found 1"),
    "4,000 digits": (b"x,y\n1,0\n" + b"9" * 4000 + b",1\n", "line 3: expected a number or a name of at most 1000 char"),
}  # fmt: skip


@pytest.mark.parametrize("name", CSV)
def test_csv(name, artifacts, tmp_path, run):
    path = tmp_path / "bad.csv"
    content, expected = CSV[name]
    if name == "4,000 digits":  # as many columns as the model takes
        content = b"\n".join(line.replace(b",", b",0" * 15 + b",", 1) for line in content.splitlines()[1:])
        content = ",".join([*(f"c{n}" for n in range(16)), "y"]).encode() + b"\n" + content
    path.write_bytes(content)
    assert expected in refused(run, path, "train", artifacts, "--data", path)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_csv_of_other_systems(end, mark, artifacts, tmp_path, run):
    """Lines end as on any system, and a byte order mark is not part of the first name."""
    names = [f"c{n}" for n in range(16)]
    rows = [",".join(map(str, [*range(row, row + 16), row % 3])) for row in range(6)]
    path = tmp_path / "good.csv"
    path.write_bytes((mark + end.join([",".join([*names, '"the\nclass"']), *rows]) + end).encode())
    run("train", artifacts, "--data", path, "--target", "the\nclass")


@pytest.mark.parametrize("command", ["train", "artifacts", "compat", "quantize", "inspect", "convert"])
def test_a_truncated_model(command, artifacts, tmp_path, run):
    path = tmp_path / "cut.onnx"
    path.write_bytes((tmp_path / "model.onnx").read_bytes()[:200])
    options = {
        "train": ("--data", tmp_path / "train.npz"),
        "artifacts": ("--loss", "mse"),
        "convert": (tmp_path / "cut.ort",),
    }
    assert "is not an ONNX model" in refused(run, path, command, path, *options.get(command, ()))


@pytest.mark.parametrize("command", ["reduce", "inspect", "profile"])
def test_truncated_artifacts(command, artifacts, run):
    path = artifacts / "optimizer_model.onnx"
    path.write_bytes(path.read_bytes()[:100])
    assert "an ONNX model" in refused(run, path, command, artifacts)


JSON = {
    "deep": (b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b', "y": 0}', "line 2: expected a JSON object: .* too deep"),
    "as deep as Python": (b'{"x": ' + b"[" * 900 + b"1" + b"]" * 900 + b', "y": 0}', "expected rows of one shape|numbers"),
    "4,000 digits": (b'{"x": ' + b"9" * 4000 + b', "y": 0}', "line 2: expected a number of at most 308 digits"),
    "4,000 digits in a list": (b'{"x": [' + b"9" * 4000 + b'], "y": 0}', "expected"),
    "5,000 digits": (b'{"x": ' + b"9" * 5000 + b', "y": 0}', "line 2: expected a JSON object: Exceeds the limit"),
    "bytes": (b'{"x": "\xc3\x28", "y": 0}', "line 2: expected UTF-8, found byte 0xc3"),
    "zeros": (b"\0" * 100, "line 2: expected a JSON object"),
}  # fmt: skip


@pytest.mark.parametrize("name", JSON)
def test_json_lines(name, artifacts, tmp_path, run):
    path = tmp_path / "bad.jsonl"
    content, expected = JSON[name]
    first = b'{"x": [1], "y": 0}' if "list" in name else b'{"x": 1, "y": 0}'
    path.write_bytes(first + b"\n" + content + b"\n")
    said = refused(run, path, "train", artifacts, "--data", path)
    assert re.search(expected, said), said


def png(width: int, height: int, data: bytes) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    heading = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", heading) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


IMAGES = {
    "a bomb": png(60_000, 60_000, zlib.compress(b"\0")),
    "a large image": png(10_000, 10_000, zlib.compress(b"\0")),
    "cut": png(8, 8, zlib.compress(bytes(range(72))))[:-40],
    "no data": png(8, 8, b"x"),
    "empty": b"",
    "text": b"hello",
}  # fmt: skip


@pytest.mark.parametrize("name", IMAGES)
def test_images(name, artifacts, tmp_path, run):
    pytest.importorskip("PIL")
    for number in range(2):
        (tmp_path / f"images/{number}").mkdir(parents=True)
        (tmp_path / f"images/{number}/a.png").write_bytes(png(8, 8, zlib.compress(b"\0" * 72)))
    path = tmp_path / "images/1/b.png"
    path.write_bytes(IMAGES[name])
    said = refused(run, path, "train", artifacts, "--data", tmp_path / "images")
    assert "expected an image" in said


@pytest.mark.parametrize("content", ["cut", "text", "empty", "bytes changed"])
def test_parquet(content, artifacts, tmp_path, run):
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    path = tmp_path / "bad.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"x": np.ones(1000), "y": np.arange(1000) % 2}), path)
    good = path.read_bytes()
    path.write_bytes(
        {"cut": good[:-200], "text": b"x,y\n", "empty": b"", "bytes changed": good[:-150] + b"\xff" * 140 + good[-10:]}[
            content
        ]
    )  # fmt: skip
    assert "expected a Parquet file" in refused(run, path, "train", artifacts, "--data", path)


@needs_named_pipes
@pytest.mark.parametrize("kind", ["npz", "npy", "csv", "jsonl", "parquet"])
def test_pipes_and_devices_are_no_data(kind, artifacts, tmp_path):
    """A pipe would be waited for until another process writes to it."""
    path = tmp_path / f"data.{kind}"
    os.mkfifo(path)
    ran = spawn("train", artifacts, "--data", path)
    assert ran.returncode == 1
    assert f"--data: expected a file, found a pipe, {path}; save the data to a file first" in ran.stderr


@needs_named_pipes
@pytest.mark.thorough
def test_pipes_elsewhere(artifacts, tmp_path):
    for name in (
        "a.npz",
        "a.onnx",
        "a.ort",
        "a.safetensors",
        "images/0/a.png",
        "old/paramtrain_tensors.pbseq",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(tmp_path / name)
    (tmp_path / "images/1").mkdir()
    commands = [
        ("profile", artifacts, "--inputs", tmp_path / "a.npz"),
        ("convert", tmp_path / "a.npz", tmp_path / "out.npz"),
        ("convert", tmp_path / "a.safetensors", tmp_path / "out.npz"),
        ("convert", tmp_path / "a.onnx", tmp_path / "out.ort"),
        ("convert", tmp_path / "a.ort", tmp_path / "out.onnx"),
        ("convert", tmp_path / "old", tmp_path / "out.ckpt"),
        ("artifacts", tmp_path / "a.onnx", "--loss", "mse", "--out", tmp_path / "made"),
        ("compat", tmp_path / "a.onnx"),
        ("inspect", tmp_path / "a.onnx"),
        ("train", artifacts, "--data", tmp_path / "images"),
    ]
    for command in commands:
        ran = spawn(*command)
        assert ran.returncode == 1, command
        assert ran.stderr.count("expected a file, found a pipe") == 1, (command, ran.stderr)
        assert "is not" not in ran.stderr
        assert "Traceback" not in ran.stderr


@needs_devices
def test_standard_input_is_no_data(artifacts):
    for path in ("/dev/stdin", "/dev/fd/0", "/dev/null"):
        ran = spawn("train", artifacts, "--data", path, input="x,y\n1,2\n")
        assert ran.returncode == 1
        assert "; save the data to a file first" in ran.stderr


def sequence(*tensors: onnx.TensorProto | bytes) -> bytes:
    parts = [bytes([len(tensors)])]
    for tensor in tensors:
        data = tensor if isinstance(tensor, bytes) else tensor.SerializeToString()
        assert len(data) < 128
        parts += [bytes([len(data)]), data]
    return b"".join(parts)


def tensor(name="w", data_type=1, dims=(2,), **more) -> onnx.TensorProto:
    return onnx.TensorProto(name=name, data_type=data_type, dims=dims, **more)


FOLDERS = {
    "too little data": ("paramtrain_tensors", sequence(tensor(raw_data=b"\0" * 4)), "'w' in "),
    "no data": ("paramtrain_tensors", sequence(tensor()), "'w' in "),
    "a huge shape": ("paramtrain_tensors", sequence(tensor(dims=(1 << 62,), raw_data=b"\0" * 4)), "'w' in "),
    "a negative shape": ("paramtrain_tensors", sequence(tensor(dims=(-3,), raw_data=b"\0" * 4)), "'w' in "),
    "an unknown type": ("paramtrain_tensors", sequence(tensor(data_type=99, raw_data=b"\0" * 8)), "'w' in "),
    "no tensor": ("paramtrain_tensors", sequence(b"\xff\xff\xff"), "tensor 1 of 1 is not an ONNX tensor"),
    "a name of bytes": ("paramtrain_tensors", sequence(b"\x10\x01\x42\x02\xff\xfe"), "tensor 1 of 1 is not an ONNX tensor"),
    "a name with a zero": ("paramtrain_tensors", sequence(tensor("w\0", raw_data=b"\0" * 8)), "tensor 1 of 1 is not an"),
    "cut": ("paramtrain_tensors", sequence(tensor(raw_data=b"\0" * 8))[:-3], "bytes of tensor 1 of 1"),
    "more behind it": ("paramtrain_tensors", sequence(tensor(raw_data=b"\0" * 8)) + b"x", "expected the end of the file"),
    "empty": ("paramtrain_tensors", b"", "expected a number at byte 0"),
    "data elsewhere": ("paramtrain_tensors", sequence(tensor(data_location=1)), "expected tensors in the file itself"),
    "two numbers": ("custom_properties", sequence(tensor(raw_data=b"\0" * 8)), "expected a property, one number"),
    "a number that is too large": (
        "custom_properties", sequence(tensor(data_type=13, dims=(), raw_data=b"\xff" * 8)), "a number of 64 bits, found 184"),
    "text of bytes": ("custom_properties", sequence(tensor(data_type=8, dims=(), string_data=[b"\xff"])), "'w' in "),
    "no steps": ("optim_g_properties", sequence(tensor(dims=(), raw_data=b"\0" * 4)), "expected builtin.step and "),
    "steps that are text": (
        "optim_g_properties", sequence(tensor("builtin.step", 8, (), string_data=[b"x"]),
                                       tensor("builtin.initial_learning_rate", 1, (), raw_data=b"\0" * 4)),
        "expected a number of steps and a learning rate"),
    "another file": ("paramtrain_tensor", b"", "expected a file of parameters"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDERS)
@pytest.mark.parametrize("result", ["out.ckpt", "out.npz"])
def test_folders_of_tensors(name, result, tmp_path, run):
    pytest.importorskip("flatbuffers")
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "paramtrain_tensors.pbseq").write_bytes(sequence(tensor(raw_data=b"\0" * 8)))
    kind, content, expected = FOLDERS[name]
    (folder / f"{kind}.pbseq").write_bytes(content)
    said = refused(run, folder / f"{kind}.pbseq", "convert", folder, tmp_path / result)
    assert expected in said
    assert not (tmp_path / result).exists()


def test_a_checkpoint_that_the_library_refuses_replaces_nothing(tmp_path, run):
    """The moments of parameters that are not there."""
    folder = tmp_path / "old"
    folder.mkdir()
    for path in PBSEQ.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "paramtrain_tensors.pbseq").write_bytes(sequence(tensor(raw_data=b"\0" * 8)))
    (tmp_path / "out.ckpt").write_text("old")
    assert "optimizer state" in refused(run, folder, "convert", folder, tmp_path / "out.ckpt")
    assert (tmp_path / "out.ckpt").read_text() == "old"


def test_the_errors_of_the_package(tmp_path):
    """From Python, they are errors of ortrain, and those that Python programs expect."""
    with pytest.raises(NoSuchFileError) as error:
        open_file(tmp_path / "missing", "data")
    assert error.value.code.name == "ORT_NO_SUCHFILE"
    with pytest.raises(InvalidArgumentError, match="found the folder"):
        open_file(tmp_path, "data")
    (tmp_path / "file").write_text("x")
    # Windows does not say that the folder is a file.
    expected = (FileError, "cannot open .*: Not a directory")
    if os.name == "nt":
        expected = (NoSuchFileError, "there is no file")
    with pytest.raises(expected[0], match=expected[1]):
        open_file(tmp_path / "file/below", "data")
    (tmp_path / "bad.npz").write_bytes(NPZ["a bad checksum"])
    with pytest.raises(InvalidArgumentError, match=r"array 'image' of .*bad.npz: Bad CRC-32"):
        read_npz(tmp_path / "bad.npz", "data")
    (tmp_path / "bad.npz").write_bytes(NPZ["more than any memory"])
    with pytest.raises(FileError, match=r"array 'image' of .*bad.npz does not fit into memory"):
        read_npz(tmp_path / "bad.npz", "data")
    (tmp_path / "lines").write_bytes(b"a\nb\xff\n")
    with pytest.raises(InvalidArgumentError, match="line 2: expected UTF-8"):
        list(read_lines(tmp_path / "lines", "data"))


def test_logs_of_a_run_that_goes_on(artifacts, train_npz, tmp_path, run):
    """Lines of any kind in log.jsonl are dropped; a log.csv that is not a table is named."""
    data = ("--data", train_npz, "--out", tmp_path / "runs")
    run("train", artifacts, *data, "--epochs", 2)
    log = tmp_path / "runs/1/log.jsonl"
    count = len(log.read_bytes().splitlines())
    with log.open("ab") as file:
        file.write(
            b"[" * 100_000
            + b"\n\xff\xfe\n"
            + b"9" * 5000
            + b'\n{"event": "step", "step": "x", "elapsed": []}\n[1]\n'
        )
    resume = ("--resume", tmp_path / "runs/1/epoch-2.ckpt", "--epochs", 3)
    run("train", artifacts, *data, *resume)
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(entries) > count
    assert not any(isinstance(entry.get("step"), str) for entry in entries)
    (tmp_path / "runs/1/log.csv").write_bytes(b"epoch,loss\nx,1\n")
    said = refused(run, tmp_path / "runs/1/log.csv", "train", artifacts, *data, *resume)
    assert "expected rows as CSVLogger writes them" in said
