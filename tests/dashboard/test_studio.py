"""The server of the studio: who may ask, which paths it takes, and the commands that it runs."""

from __future__ import annotations

import http.client
import json
import threading
import time
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from ortrain.dashboard.studio import Studio
from system import needs_links

RNG = np.random.default_rng(2)
ROWS = [f"{x},{y},{'red' if x + y > 0 else 'blue'}" for x, y in RNG.normal(size=(60, 2)).round(4)]
TABLE = "\n".join(["u,v,color", *ROWS]).encode()


class Page:
    """Asks as the page does."""

    def __init__(self, server):
        self.server = server

    def ask(self, path, method="GET", body=b"", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=60)
        given = {"X-Ortrain-Token": self.server.token, **headers}
        connection.request(method, path, body if method == "POST" else None, given)
        answer = connection.getresponse()
        found = json.loads(answer.read())
        connection.close()
        return answer.status, found

    def act(self, action, /, **asked):
        return self.ask(f"/api/studio/{action}", "POST", json.dumps(asked).encode())

    def finished(self):
        end = time.monotonic() + 120
        while (found := self.ask("/api/studio/state")[1])["running"]:
            assert time.monotonic() < end
            time.sleep(0.1)
        return found


@pytest.fixture
def page(tmp_path):
    (tmp_path / "work").mkdir()
    server = Studio(tmp_path / "work")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield Page(server)
    server.work.close()
    server.shutdown()
    server.server_close()
    thread.join()


def test_nobody_without_the_token(page):
    for path in ("/api/runs", "/api/studio/state"):
        status, found = page.ask(path, **{"X-Ortrain-Token": "guess"})
        assert status == 403
        assert "the token is missing or wrong" in found["error"]
    assert page.ask("/api/studio/stop", "POST", b"{}", **{"X-Ortrain-Token": ""})[0] == 403
    assert page.ask("/api/studio/stop", "POST", b"{}", Origin="http://example.com")[0] == 403
    assert page.ask("/api/studio/stop", "POST", b"{}", Host="example.com")[0] == 403
    assert page.ask("/api/studio/state")[0] == 200


@pytest.mark.parametrize(
    "name",
    [
        "../outside.csv",
        "/etc/passwd",
        "-rf",
        ".hidden",
        "a/../../b",
        "a\\b",
        pytest.param("link/x.csv", marks=needs_links),
        "",
        None,
        3,
    ],
)
def test_no_path_leads_out_of_the_folder(page, tmp_path, name):
    if name == "link/x.csv":
        (tmp_path / "work/link").symlink_to(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    status, found = page.act("train", data=name, name="x", network="mlp", loss="mse", epochs=1)
    assert status in (400, 403), found
    status, _ = page.act("export", name=name)
    assert status in (400, 403)
    if isinstance(name, str):
        status, _ = page.ask(f"/api/studio/file?path={name.replace(chr(92), '%5C')}", "POST", b"x")
        assert status in (400, 403)
    assert sorted(tmp_path.rglob("*")) == before


def test_from_a_table_to_an_exported_model(page, tmp_path):
    folder = tmp_path / "work"
    assert page.act("place", name="colors.csv") == (200, {"path": "colors.csv"})
    assert page.ask("/api/studio/file?path=colors.csv", "POST", TABLE)[0] == 200
    assert page.ask("/api/studio/file?path=colors.csv", "POST", b"other")[0] == 409
    assert page.act("place", name="colors.csv")[1] == {"path": "colors-1.csv"}
    assert (folder / "colors.csv").read_bytes() == TABLE
    status, found = page.ask("/api/studio/data?path=colors.csv")
    assert status == 200, found
    assert (found["target"], found["classes"], found["network"]) == (
        "color",
        {"blue": sum("blue" in row for row in ROWS), "red": sum("red" in row for row in ROWS)},
        "mlp",
    )
    asked = {
        "data": "colors.csv",
        "name": "c",
        "network": "mlp",
        "loss": "cross_entropy",
        "epochs": 30,
        "rate": 0.02,
    }
    assert page.act("train", **asked)[0] == 200
    status, found = page.act("train", **{**asked, "epochs": 2})  # waits for the first
    assert status == 200
    texts = [command["text"] for command in found["commands"]]
    assert [text.split()[1] for text in texts] == ["new", "artifacts", "train", "train"]
    assert texts[0] == "ortrain new mlp --data=colors.csv --out=c.onnx"
    done = page.finished()
    assert [command["status"] for command in done["commands"]] == [0], done
    assert f"continues from {Path('c/best.ckpt')}" in done["commands"][0]["output"]
    assert done["artifacts"] == [{"name": "c", "trained": True}]
    page.act("export", name="c", preprocessing=True)
    assert page.finished()["commands"][0]["status"] == 0
    session = onnxruntime.InferenceSession(folder / "c-trained.onnx")
    cells = np.array([row.split(",")[:2] for row in ROWS], np.float64)
    (scores,) = session.run(None, {"u": cells[:, 0], "v": cells[:, 1]})
    right = [("blue", "red")[n] == row.split(",")[2] for n, row in zip(scores.argmax(1), ROWS, strict=True)]
    assert np.mean(right) > 0.9


@pytest.mark.thorough
def test_stop_forgets_what_waits_and_more_can_be_started(page, tmp_path):
    (tmp_path / "work/colors.csv").write_bytes(TABLE)
    asked = {"data": "colors.csv", "name": "c", "network": "mlp", "loss": "cross_entropy", "epochs": 100_000}
    for _ in range(3):
        assert page.act("train", **asked)[0] == 200
    end = time.monotonic() + 120
    while "epoch 1/" not in page.ask("/api/studio/state")[1]["commands"][2]["output"]:
        assert time.monotonic() < end
        time.sleep(0.1)
    page.act("stop")
    page.act("train", **{**asked, "epochs": 1})
    done = page.finished()
    assert [command["status"] for command in done["commands"]] == [0]
    runs = sorted(path.name for path in (tmp_path / "work/c/runs").iterdir())
    assert runs == ["1", "2"]


def test_two_exports_that_wait_have_two_names(page):
    found = [page.act("export", name=name)[1]["commands"] for name in ("c", "c")][-1]
    assert {text["text"].split()[-1] for text in found} >= {"c-trained-1.onnx"}


def test_what_is_wrong_with_data_is_said(page, tmp_path):
    (tmp_path / "work/bad.csv").write_text("a,b\n1\n")
    status, found = page.ask("/api/studio/data?path=bad.csv")
    assert status == 422
    assert "line 2: expected 2 values, found 1" in found["error"]
    assert page.act("train", data="bad.csv", name="x", network="mlp", loss="mse", epochs=0)[0] == 400
    assert page.act("train", data="bad.csv", name="x", network="mlp", loss="rm -rf", epochs=1)[0] == 400
