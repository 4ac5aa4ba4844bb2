"""A language model writes what stock onnxruntime's scores say."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from ortrain import InferenceSession, Trainer, text
from small_language_model import chats, prompts, write_lines, write_model

PROMPT = "The capital of Peru is"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("model")
    write_model(found)
    return found


def greedy(folder, ids, count):
    """The tokens that stock onnxruntime's highest scores give, each from rows without padding."""
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    ids = list(ids)
    start = len(ids)
    for _ in range(count):
        row = np.array([ids])
        (scores,) = session.run(["logits"], {"input_ids": row, "attention_mask": np.ones_like(row)})
        ids.append(int(scores[0, -1].argmax()))
    return ids[start:]


def test_the_most_likely_tokens_are_those_of_onnxruntime(folder):
    tokenizer, session = text.Tokenizer(folder), InferenceSession(folder / "model.onnx")
    expected = greedy(folder, tokenizer.encode(PROMPT).ids, 20)
    pieces = []
    found = text.generate(session, tokenizer, PROMPT, max_tokens=20, on_text=pieces.append)
    assert found.tokens == expected
    assert "".join(pieces) == found.text
    assert found.stopped == "max_tokens"


def test_writing_stops_at_the_longest_text_of_the_model(folder):
    tokenizer, session = text.Tokenizer(folder), InferenceSession(folder / "model.onnx")
    tokenizer.limit = 16
    found = text.generate(session, tokenizer, PROMPT)
    assert found.stopped == "length"
    assert len(tokenizer.encode(PROMPT).ids) + len(found.tokens) == 17  # the last one is read by nothing
    with pytest.raises(ValueError, match="the model takes 16 tokens at most, found"):
        text.generate(session, tokenizer, PROMPT * 9)


def test_the_longest_text_of_a_model_is_found_where_no_file_names_it(folder):
    """The model has 48 positions; rows would be padded to 64."""
    tokenizer, session = text.Tokenizer(folder), InferenceSession(folder / "model.onnx")
    tokenizer.ends, ids = (), tokenizer.encode(PROMPT).ids
    found = text.generate(session, tokenizer, PROMPT)
    assert found.stopped == "length"
    assert found.tokens == greedy(folder, ids, 49 - len(ids))
    with pytest.raises(
        ValueError, match=r"prompt: the model does not take its \d+ tokens: Run: node .* index 48 "
    ):
        text.generate(session, tokenizer, PROMPT * 9)


def test_draws_depend_on_the_seed_and_the_settings(folder):
    tokenizer, session = text.Tokenizer(folder), InferenceSession(folder / "model.onnx")

    def drawn(**settings):
        return text.generate(session, tokenizer, PROMPT, max_tokens=8, **settings).tokens

    likely = drawn()
    assert drawn(temperature=1.0, top_k=1) == drawn(temperature=1.0, top_p=1e-9) == likely
    first = drawn(temperature=2.0, seed=1)
    assert first == drawn(temperature=2.0, seed=1)
    assert first != drawn(temperature=2.0, seed=2)


def test_probabilities_are_those_of_the_settings():
    shares = np.array([0.1, 0.4, 0.3, 0.2])
    scores = np.log(shares).astype(np.float32)
    np.testing.assert_allclose(text.probabilities(scores), shares, rtol=1e-5)
    np.testing.assert_allclose(
        text.probabilities(scores, temperature=0.5), shares**2 / (shares**2).sum(), rtol=1e-5
    )
    np.testing.assert_allclose(text.probabilities(scores, top_k=2), [0, 4 / 7, 3 / 7, 0], rtol=1e-5)
    np.testing.assert_allclose(text.probabilities(scores, top_p=0.65), [0, 4 / 7, 3 / 7, 0], rtol=1e-5)
    for name, value in (("temperature", -1.0), ("top_k", -1), ("top_p", 0.0), ("max_tokens", 0)):
        with pytest.raises(ValueError, match=f"{name}: expected"):
            text.generate(None, None, PROMPT, **{name: value})


@pytest.mark.parametrize("kind", ["prompts", "chats"])
def test_a_trainer_learns_text_and_writes_it(folder, tmp_path, kind):
    tokenizer = text.Tokenizer(folder)
    if kind == "chats":
        pytest.importorskip("jinja2")
    lines = write_lines(tmp_path / "data.jsonl", prompts() if kind == "prompts" else chats())
    rows = text.rows_of(text.read_lines(lines), tokenizer)
    trainer = Trainer(
        folder / "model.onnx", loss="token_cross_entropy", learning_rate=5e-3, metrics=["perplexity"]
    )
    history = trainer.fit(
        rows.arrays, epochs=40, batch_size=4, verbose=False, callbacks=[text.TokenSpeed(rows)]
    )
    assert history["perplexity"][-1] < 1.2 < 50 < history["perplexity"][0]
    prompt = PROMPT if kind == "prompts" else [{"role": "user", "content": "Peru?"}]
    found = text.generate(trainer, tokenizer, prompt)
    assert (found.text, found.stopped) == (" Lima." if kind == "prompts" else "Lima", "end")
