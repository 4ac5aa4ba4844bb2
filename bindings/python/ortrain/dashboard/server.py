"""The server of the dashboard: static files of the package, and the contents of the logs as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ortrain._ortrain import __version__
from ortrain.dashboard import curves, details
from ortrain.dashboard.graph import Graph
from ortrain.dashboard.logs import Log
from ortrain.dashboard.runs import Runs
from ortrain.errors import OrtrainError

ADDRESS = "127.0.0.1"

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_MOST_POINTS = 5000
_MOST_BYTES_OF_A_QUESTION = 64 << 10
_NAME = "/api/name"

Query = dict[str, list[str]]


class Refusal(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class Server(ThreadingHTTPServer):
    """Serves the dashboard of a folder to this machine.

    Parameters
    ----------
    folder : Path
        Where runs are looked for.
    port : int, default 0
        The port; 0 for any free port.
    handler : type, optional
        What answers requests.

    Attributes
    ----------
    url : str
        Where the page is.
    runs : Runs
        What has been found.

    Raises
    ------
    OSError
        When the port is in use.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(
        self, folder: Path, port: int = 0, handler: type[BaseHTTPRequestHandler] | None = None
    ) -> None:
        super().__init__((ADDRESS, port), handler or Handler)
        self.runs = Runs(folder)
        self.url = f"http://{ADDRESS}:{self.server_port}/"
        self.hosts = {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}
        self.files = _static_files()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print what went wrong, unless it is only that a page was closed."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)

    def answer(self, path: str, query: Query) -> dict[str, Any]:
        """Return the answer for a path below ``/api``.

        Raises
        ------
        Refusal
            When there is no such path or run, a value of the query is invalid, or the log has what cannot be shown.
        """
        if path == "/api/runs":
            self.runs.refresh()
            return {
                "version": __version__,
                "folder": str(self.runs.folder),
                "runs": self.runs.describe(),  # first, because this call finds further problems
                "others": self.runs.others,
            }
        views: dict[str, Callable[[Log, Query], dict[str, Any]]] = {
            "/api/series": _series,
            "/api/layers": lambda log, query: details.layers(log),
            "/api/layer": lambda log, query: details.layer(log, _one(query, "name", "")),
            "/api/profile": lambda log, query: details.profile(log),
            "/api/samples": lambda log, query: details.samples(log, _whole(query, "index")),
            "/api/graph": _graph,
        }
        if path not in views:
            raise Refusal(HTTPStatus.NOT_FOUND, f"there is no {path}")
        found = self.runs.all().get(_one(query, "run", ""))
        if found is None:
            raise Refusal(HTTPStatus.NOT_FOUND, "there is no such run")
        name, log = found
        try:
            return views[path](log, query)
        except Refusal:
            raise
        except Exception as error:
            # whatever a log contains, the server continues, and its answer names the log
            raise Refusal(
                HTTPStatus.INTERNAL_SERVER_ERROR, f"{name}: {type(error).__name__}: {error}"[:300]
            ) from error

    def act(self, path: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Give a run the name that a page asks for; an empty one takes it away.

        Raises
        ------
        Refusal
            When there is no such path or run, or no name.
        """
        if path != _NAME:
            raise Refusal(HTTPStatus.NOT_FOUND, f"there is no {path}")
        key, name = asked.get("run"), asked.get("name")
        if not isinstance(key, str) or not isinstance(name, str):
            raise Refusal(HTTPStatus.BAD_REQUEST, "expected a run and a name")
        if key not in self.runs.all():
            raise Refusal(HTTPStatus.NOT_FOUND, "there is no such run")
        self.runs.rename(key, name)
        return {"name": name}


def _static_files() -> dict[str, tuple[str, bytes]]:
    """Return type and content of the page's files by path. The server sends no other files."""
    found = {}
    for file in resources.files("ortrain.dashboard").joinpath("static").iterdir():
        suffix = file.name[file.name.rfind(".") :]
        if suffix in _TYPES:
            found[f"/{file.name}"] = (_TYPES[suffix], file.read_bytes())
    found["/"] = found["/index.html"]
    return found


def _one(query: Query, name: str, default: str) -> str:
    return query.get(name, [default])[0]


def _real(query: Query, name: str) -> float | None:
    if name not in query:
        return None
    try:
        return float(query[name][0])
    except ValueError:
        raise Refusal(
            HTTPStatus.BAD_REQUEST, f"{name}: expected a number, found {query[name][0]!r:.40}"
        ) from None


def _whole(query: Query, name: str) -> int | None:
    found = _real(query, name)
    if found is None:
        return None
    if not found.is_integer():
        raise Refusal(HTTPStatus.BAD_REQUEST, f"{name}: expected a whole number, found {found}")
    return int(found)


def _series(log: Log, query: Query) -> dict[str, Any]:
    axis = _one(query, "x", "step")
    if axis not in ("step", "elapsed"):
        raise Refusal(HTTPStatus.BAD_REQUEST, f"x: expected step or elapsed, found {axis!r:.40}")
    weight = _real(query, "smooth") or 0.0
    if not 0 <= weight < 1:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"smooth: expected 0 or more and less than 1, found {weight}")
    low, high = _real(query, "from"), _real(query, "to")
    points = _whole(query, "points")
    points = min(_MOST_POINTS, max(4, 1000 if points is None else points))
    with log.lock:
        names = query.get("series") or sorted(log.series)
        chosen = {name: log.series[name].copy() for name in names if name in log.series}
    return {
        "series": {
            name: curves.curve(series, axis, low, high, points, weight) for name, series in chosen.items()
        }
    }


def _graph(log: Log, query: Query) -> dict[str, Any]:
    places = log.details["model"]
    model = log.detail(places[-1]) if places else {}
    return Graph(model).picture(query.get("open") if "open" in query else None)


class Handler(BaseHTTPRequestHandler):
    """Answers the questions of the page with GET, renames runs with POST, and refuses what others ask."""

    server: Server
    server_version, sys_version = "ortrain", ""
    protocol_version = "HTTP/1.1"
    timeout = 30  # seconds without data after which a connection is closed

    def do_GET(self) -> None:
        """Answer a question, or send a file of the page."""
        try:
            self._check()
            url = urlsplit(self.path)
            if url.path in self.server.files:
                kind, content = self.server.files[url.path]
            else:
                query = parse_qs(url.query, keep_blank_values=True, max_num_fields=2000)
                kind = "application/json"
                content = json.dumps(self.server.answer(url.path, query), allow_nan=False).encode()
            self._send(HTTPStatus.OK, kind, content)
        except Refusal as refusal:
            self._refuse(refusal.status, str(refusal))
        except ValueError as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))

    def do_POST(self) -> None:
        """Answer an action, whose arguments are JSON."""
        # the body of a refused request stays unread, so the connection cannot be used again
        self.close_connection = True
        try:
            self._check()
            path = urlsplit(self.path).path
            if path != _NAME:
                self.send_error(HTTPStatus.NOT_IMPLEMENTED)
                return
            answer = self.server.act(path, self._question())
            self._send(HTTPStatus.OK, "application/json", json.dumps(answer).encode())
        except Refusal as refusal:
            self._refuse(refusal.status, str(refusal))
        except (ValueError, OSError, OrtrainError) as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))

    def _length(self, most: int) -> int:
        """Return the length of the body.

        Raises
        ------
        Refusal
            When the length is missing or too large.
        """
        size = self.headers.get("Content-Length", "")
        if not size.isdecimal() or int(size) > most:
            raise Refusal(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"expected a length of at most {most} bytes, found {size!r:.20}",
            )
        return int(size)

    def _question(self) -> dict[str, Any]:
        """Return the arguments of an action."""
        asked = json.loads(self.rfile.read(self._length(_MOST_BYTES_OF_A_QUESTION)) or b"{}")
        if not isinstance(asked, dict):
            raise Refusal(HTTPStatus.BAD_REQUEST, "expected a JSON object")
        return asked

    def _check(self) -> None:
        """Refuse requests from other sites, which may request data or have a name that resolves to this server."""
        hosts = self.headers.get_all("Host", [])
        if hosts not in [[host] for host in self.server.hosts]:
            expected, found = " or ".join(sorted(self.server.hosts)), ", ".join(hosts) or "none"
            raise Refusal(HTTPStatus.FORBIDDEN, f"Host: expected {expected}, found {found}")
        origins = {f"http://{host}" for host in self.server.hosts}
        if any(origin not in origins for origin in self.headers.get_all("Origin", [])):
            raise Refusal(HTTPStatus.FORBIDDEN, "the Origin of the request is another site")
        # the user followed a link to the page
        followed = self.path == "/" and self.headers.get("Sec-Fetch-Dest") == "document"
        if self.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none") and not followed:
            raise Refusal(HTTPStatus.FORBIDDEN, "the request comes from another site")

    def _send(self, status: HTTPStatus, kind: str, content: bytes, **more: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        for name, value in {**_HEADERS, **more}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _refuse(self, status: HTTPStatus, message: str, **more: str) -> None:
        self._send(status, "application/json", json.dumps({"error": message}).encode(), **more)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer requests that the base class rejects, such as all methods but GET."""
        self.close_connection = True  # a body may follow, which stays unread
        if code == HTTPStatus.NOT_IMPLEMENTED:
            self._refuse(
                HTTPStatus.METHOD_NOT_ALLOWED, "only GET is allowed here", Allow="GET", Connection="close"
            )
            return
        self._refuse(HTTPStatus(code), message or HTTPStatus(code).phrase, Connection="close")

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""
