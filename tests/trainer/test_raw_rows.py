"""A trainer does to data frames, columns, texts and bytes what `ortrain train` did, and warns about other rows."""

from __future__ import annotations

import json
import pathlib
import warnings

import numpy as np
import onnxruntime
import pytest
from ortrain import Trainer
from ortrain.cli import main

RNG = np.random.default_rng(8)


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run a command in a folder; return what it prints as JSON."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        capsys.readouterr()
        assert main([*map(str, arguments), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_a_data_frame_is_encoded_as_the_table_of_the_training(command, tmp_path):
    pandas = pytest.importorskip("pandas")
    x = RNG.normal(50, 20, 60)
    rows = {
        "id": [f"n{row}" for row in range(60)],  # left out
        "size": np.where(np.arange(60) % 9, x.round(2), np.nan),
        "color": RNG.choice(["red", "blue"], 60),
        "day": [f"2026-03-{1 + row % 28:02}" for row in range(60)],
        "price": (x / 3).round(2),
    }
    frame = pandas.DataFrame(rows)
    frame.to_csv("t.csv", index=False)
    trained = command("train", "--data", "t.csv", "--target", "price", "--epochs", 2)["history"]
    expected = command("predict", "artifacts", "--data", "t.csv")["values"]
    trainer = Trainer("artifacts", checkpoint="artifacts/best.ckpt")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for data in (
            frame,
            frame.drop(columns=["price", "id"])[["day", "size", "color"]],
            {name: rows[name] for name in ("color", "day", "size")},
        ):
            np.testing.assert_array_equal(trainer.predict(data), np.array(expected, np.float32))
        evaluated = command("evaluate", "artifacts", "--data", "t.csv")["loss"]
        assert trainer.evaluate(frame)["loss"] == pytest.approx(evaluated, rel=1e-6)
        assert trainer.evaluate(frame.drop(columns="price"), frame["price"])["loss"] == pytest.approx(
            evaluated
        )
        assert trainer.fit(frame, epochs=1, verbose=False)["loss"][0] != trained["loss"][-1]
    trainer.save("again.ckpt")
    again = Trainer("artifacts", checkpoint="again.ckpt")
    np.testing.assert_array_equal(again.predict(frame), trainer.predict(frame))
    with pytest.raises(ValueError, match="color is missing and colour is unknown \\(did you mean 'color'"):
        trainer.predict(frame.drop(columns="price").rename(columns={"color": "colour"}))

    width = trainer.inputs.forms[0].shape[1]
    encoded = np.zeros((2, width), np.float32)
    with pytest.warns(UserWarning, match="A data frame with the columns size, color, day is encoded"):
        found = trainer.predict(encoded)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(trainer.predict({"features": encoded}), found)


def test_bytes_of_pictures_are_normalized_as_in_the_training(command, tmp_path):
    images = pytest.importorskip("PIL.Image")
    for name in ("a", "b"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(4):
            pixels = RNG.integers(0, 256, (8, 8, 3), np.uint8)
            images.fromarray(pixels).save(tmp_path / f"pictures/{name}/{number}.png")
    command("train", "--data", "pictures", "--epochs", 1)
    expected = command("predict", "artifacts", "--data", "pictures")
    files = [tmp_path / "pictures" / name for name in expected["files"]]
    pixels = np.stack([np.asarray(images.open(file)).transpose(2, 0, 1) for file in files])
    trainer = Trainer("artifacts", checkpoint="artifacts/best.ckpt")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for data in (pixels, {"image": pixels}, (pixels, np.zeros(8, np.int64))):
            np.testing.assert_allclose(trainer.predict(data), expected["scores"], rtol=1e-5)
    with pytest.warns(UserWarning, match="pictures that are normalized"):
        trainer.predict(pixels / np.float32(255))


def test_texts_become_tokens(command, tmp_path, capsys):
    tokenizers = pytest.importorskip("tokenizers")
    words = ["good", "bad", "film", "plot", "the"]
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel(
            {"[PAD]": 0, "[UNK]": 1} | {w: n + 2 for n, w in enumerate(words)}, "[UNK]"
        )
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    texts = [" ".join(RNG.choice(words, 4)) for _ in range(24)]
    lines = [f"{text},{'yes' if 'good' in text else 'no'}" for text in texts]
    (tmp_path / "t.csv").write_text("\n".join(["text,liked", *lines]))
    command("train", "--data", "t.csv", "--tokenizer", "tokenizer.json", "--epochs", 1)
    expected = command("predict", "artifacts", "--data", "t.csv")["scores"]
    trainer = Trainer("artifacts", checkpoint="artifacts/best.ckpt")
    np.testing.assert_allclose(trainer.predict(texts), expected, rtol=1e-6)
    np.testing.assert_allclose(trainer.predict({"text": texts}), expected, rtol=1e-6)
    capsys.readouterr()
    assert main(["export", "artifacts", "t.onnx", "--with-preprocessing"]) == 1
    tokenizer = pathlib.Path("artifacts", "tokenizer.json")
    takes = f"the model takes the numbers of tokens, 4 a row, as the tokenizer in {tokenizer} makes them"
    assert (
        f"a tokenizer, for which ONNX has no operator; without the option, {takes}" in capsys.readouterr().err
    )
    assert not (tmp_path / "t.onnx").exists()
    assert main(["export", "artifacts", "t.onnx"]) == 0
    assert takes in capsys.readouterr().err
    (found,) = onnxruntime.InferenceSession("t.onnx").run(None, made_tokens(made, texts))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def made_tokens(tokenizer, texts):
    """What an app gives the exported model."""
    return {"input_ids": np.array([found.ids for found in tokenizer.encode_batch(texts)], np.int64)}
