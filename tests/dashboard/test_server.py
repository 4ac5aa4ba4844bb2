"""The server answers the page and nobody else, and has nothing but the runs of its folder."""

from __future__ import annotations

import http.client
import json
import os
import socket
import struct
import threading
import time
from importlib import resources

import pytest
from ortrain.dashboard.logs import open_file
from run_logs import Client, begin, step, write
from system import needs_links


@pytest.fixture
def client(serve, tmp_path):
    write(tmp_path / "runs/a/log.jsonl", begin(), step(1, 0.5))
    write(tmp_path / "secret.jsonl", {"password": "x"})
    return serve(tmp_path / "runs")


def test_the_page_and_its_files(client):
    names = [file.name for file in resources.files("ortrain.dashboard").joinpath("static").iterdir()]
    assert {"index.html", "app.js", "style.css"} <= set(names)
    kinds = {
        "html": "text/html; charset=utf-8",
        "js": "text/javascript; charset=utf-8",
        "css": "text/css; charset=utf-8",
    }
    for name in names:
        found = client.ask(f"/{name}")
        assert found.status == 200
        assert found.headers["Content-Type"] == kinds.get(name.rpartition(".")[2], "image/svg+xml")
    assert client.ask("/").body == client.ask("/index.html").body


def test_the_page_needs_nothing_from_elsewhere(client):
    for file in resources.files("ortrain.dashboard").joinpath("static").iterdir():
        text = file.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")  # the name of a namespace
        assert "http:" not in text, file.name
        assert "https:" not in text, file.name
        assert "//" not in text.replace("// ", ""), file.name


@pytest.mark.parametrize("path", ["/", "/api/runs", "/nothing", "/api/nothing"])
def test_every_answer_has_the_headers_that_protect_the_page(client, path):
    headers = client.ask(path).headers
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in headers
    if path.startswith("/api"):
        assert headers["Content-Type"] == "application/json"


def test_only_this_machine_is_served(client):
    assert client.server.server_address[0] == "127.0.0.1"
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {
        "127.0.0.1"
    }
    for address in others:
        with pytest.raises(ConnectionError):
            socket.create_connection((address, client.server.server_port), timeout=2)


@pytest.mark.parametrize("path", ["/", "/app.js", "/api/runs"])
@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "", "127.0.0.1:{port}.evil.example"],
)
def test_a_name_that_only_leads_here_is_refused(client, path, host):
    found = client.ask(path, headers={"Host": host.format(port=client.server.server_port)})
    assert found.status == 403
    assert set(found.json) == {"error"}
    assert f"expected 127.0.0.1:{client.server.server_port} or localhost" in found.json["error"]


def test_both_names_of_this_machine_are_served(client):
    for name in ("127.0.0.1", "localhost"):
        assert client.ask("/api/runs", headers={"Host": f"{name}:{client.server.server_port}"}).status == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1"]
)
def test_another_site_is_refused(client, origin):
    headers = {"Origin": origin.format(port=client.server.server_port)}
    assert client.ask("/api/runs", headers=headers).status == 403
    assert client.ask("/api/runs", headers={"Origin": client.server.url.rstrip("/")}).status == 200


@pytest.mark.parametrize(
    ("site", "status"), [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)]
)
def test_what_a_browser_says_of_the_site_that_asks(client, site, status):
    assert client.ask("/api/runs", headers={"Sec-Fetch-Site": site}).status == status
    assert client.ask("/", headers={"Sec-Fetch-Site": site, "Sec-Fetch-Dest": "iframe"}).status == status
    assert client.ask("/", headers={"Sec-Fetch-Site": site, "Sec-Fetch-Dest": "document"}).status == 200


@needs_links
def test_only_the_page_renames_runs(serve, tmp_path):
    write(tmp_path / "a.jsonl", begin(), step(1))
    write(tmp_path / "b.jsonl", begin(), step(1))
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.write_text("safe")
    (tmp_path / "b.name").symlink_to(outside)
    server = serve(tmp_path).server
    keys = {file: run["key"] for file, run in Client(server).runs().items()}

    def rename(body, **headers):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
        connection.request("POST", "/api/name", body, headers)
        return connection.getresponse().status

    good = json.dumps({"run": keys["a.jsonl"], "name": "first"})
    assert rename(good, Origin="http://evil.example") == 403
    assert rename(good, Host="evil.example") == 403
    assert rename(good, **{"Sec-Fetch-Site": "cross-site"}) == 403
    assert Client(server).runs()["a.jsonl"]["name"] == "a"
    assert rename(good) == 200
    assert Client(server).runs()["a.jsonl"]["name"] == "first"
    assert rename(json.dumps({"run": keys["b.jsonl"], "name": "x"})) == 400  # a link out of the folder
    assert outside.read_text() == "safe"
    assert rename(json.dumps({"run": "../../a", "name": "x"})) == 404
    assert rename("[]") == rename("{") == rename(json.dumps({"run": 1})) == 400
    assert rename("{}", **{"Content-Length": str(1 << 30)}) == 413


def test_two_hosts_are_refused(client):
    with socket.create_connection(("127.0.0.1", client.server.server_port), timeout=10) as link:
        good = f"127.0.0.1:{client.server.server_port}"
        link.sendall(f"GET /api/runs HTTP/1.1\r\nHost: {good}\r\nHost: evil.example\r\n\r\n".encode())
        assert b" 403 " in link.recv(100)


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT", "NONSENSE"]
)
def test_only_get_is_allowed(client, method):
    found = client.ask("/api/runs", method)
    assert found.status == 405
    assert found.headers["Allow"] == "GET"


@pytest.mark.parametrize(
    "path",
    [
        "/../secret.jsonl", "/..%2fsecret.jsonl", "/%2e%2e/secret.jsonl", "//etc/passwd", "/etc/passwd", "/a/log.jsonl",
        "/static/index.html", "/server.py", "/../server.py", "/api", "/api/", "/api/../server.py", "/.", "/app.js/..",
        "/app.js%00", "/api/layers?run=../../secret.jsonl", "/api/layers?run=/etc/passwd", "/api/series?run=a/log.jsonl",
    ],
)  # fmt: skip
def test_nothing_else_is_found(client, path):
    client.runs()
    found = client.ask(path)
    assert found.status == 404
    assert b"password" not in found.body


@needs_links
def test_links_that_lead_out_of_the_folder_are_refused(serve, tmp_path):
    write(tmp_path / "outside/log.jsonl", begin(), step(1))
    write(tmp_path / "runs/inside/log.jsonl", begin(), step(1))
    (tmp_path / "runs/file.jsonl").symlink_to(tmp_path / "outside/log.jsonl")
    (tmp_path / "runs/folder").symlink_to(tmp_path / "outside")
    (tmp_path / "runs/relative.jsonl").symlink_to("../outside/log.jsonl")
    (tmp_path / "runs/within.jsonl").symlink_to("inside/log.jsonl")
    (tmp_path / "runs/dangling.jsonl").symlink_to("nowhere")
    client = serve(tmp_path / "runs")
    assert set(client.runs()) == {"inside/log.jsonl", "within.jsonl"}
    others = client.ask("/api/runs").json["others"]
    assert sum("leads out of the folder" in other for other in others) == 2


@needs_links
def test_a_file_that_becomes_a_link_is_no_longer_read(serve, tmp_path):
    write(tmp_path / "outside.jsonl", begin(), step(1), step(2, 7.0))
    write(tmp_path / "runs/log.jsonl", begin(), step(1))
    client = serve(tmp_path / "runs")
    (run,) = client.runs().values()
    (tmp_path / "runs/log.jsonl").unlink()
    (tmp_path / "runs/log.jsonl").symlink_to(tmp_path / "outside.jsonl")
    assert client.runs() == {}
    assert client.ask(f"/api/series?run={run['key']}").status == 404


@needs_links
def test_a_folder_that_is_a_link_itself(serve, tmp_path):
    write(tmp_path / "runs/log.jsonl", begin(), step(1))
    (tmp_path / "link").symlink_to("runs")
    assert list(serve(tmp_path / "link").runs()) == ["log.jsonl"]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("x=loss", "x: expected step or elapsed, found 'loss'"),
        ("smooth=1", "smooth: expected 0 or more and less than 1"),
        ("smooth=nan", "smooth: expected 0 or more"),
        ("points=many", "points: expected a number, found 'many'"),
        ("points=1.5", "points: expected a whole number"),
        ("points=inf", "points: expected a whole number"),
        ("&".join(["series=x"] * 3000), "fields"),
    ],
)
def test_wrong_questions_are_explained(client, query, message):
    (run,) = client.runs().values()
    found = client.ask(f"/api/series?run={run['key']}&{query}")
    assert found.status == 400
    assert message in found.json["error"]


def test_a_page_that_is_closed_in_between_leaves_no_traceback(client, capsys):
    for sent in (
        b"GET /api/ru",
        f"GET /app.js HTTP/1.1\r\nHost: 127.0.0.1:{client.server.server_port}\r\n\r\n".encode(),
    ):
        for _ in range(20):
            link = socket.create_connection(("127.0.0.1", client.server.server_port), timeout=10)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets
            link.sendall(sent)
            link.close()
    assert client.ask("/api/runs").status == 200
    deadline = time.monotonic() + 10
    while threading.active_count() > 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert capsys.readouterr().err == ""


def test_new_and_removed_runs_are_noticed(serve, tmp_path):
    client = serve(tmp_path)
    assert client.ask("/api/runs").json["runs"] == []
    write(tmp_path / "b.jsonl", begin(), step(1, 0.25))
    client.server.runs._next_search = 0
    (run,) = client.runs().values()
    assert run["latest"] == {"step.loss": 0.25}
    found = client.ask(f"/api/series?run={run['key']}").json["series"]["step.loss"]
    assert (found["step"], found["y"]) == ([1], [0.25])
    os.remove(tmp_path / "b.jsonl")
    assert client.runs() == {}


def test_a_file_that_cannot_be_read(serve, tmp_path, monkeypatch):
    write(tmp_path / "log.jsonl", begin(), step(1))
    write(tmp_path / "other.jsonl", begin(), step(1))

    def refuse(path):
        if path.name == "log.jsonl":
            raise PermissionError(13, "Permission denied")
        return open_file(path)

    monkeypatch.setattr("ortrain.dashboard.logs.open_file", refuse)
    client = serve(tmp_path)
    assert list(client.runs()) == ["other.jsonl"]
    client.server.runs._next_search = 0
    assert client.ask("/api/runs").json["others"] == ["log.jsonl: Permission denied"]
