"""A hub on this machine: the part of the Hugging Face Hub's HTTP interface that fetching a repository takes."""

import contextlib
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """`repositories`: `models/org/name` or `datasets/org/name` -> its files.

    `answers`: a part of a path -> the status (and the value of X-Error-Code) that all requests with it get."""

    repositories: Mapping[str, Mapping[str, bytes]]
    answers: dict[str, tuple[int, str | None]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)  # `METHOD path`, in order
    url: str = ""

    @classmethod
    @contextlib.contextmanager
    def open(cls, repositories: Mapping[str, Mapping[str, bytes]]) -> "Iterator[FakeHub]":
        hub = cls(repositories)

        class Handler(_Handler):
            pass

        Handler.hub = hub
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            hub.url = f"http://127.0.0.1:{server.server_port}"
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            try:
                yield hub
            finally:
                server.shutdown()
                thread.join()

    def fetched(self) -> list[str]:
        """The files whose contents were sent."""
        return [
            path.rpartition("/resolve/")[2] for path in self.asked if path.startswith("GET") and "/resolve/" in path
        ]


class _Handler(http.server.BaseHTTPRequestHandler):
    hub: FakeHub

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{self.command} {path}")
        for part, (status, code) in self.hub.answers.items():
            if part in path:
                return self._send(status, b"{}", {"X-Error-Code": code} if code else {})
        name = path.removeprefix("/api/").partition("/revision/")[0].partition("/tree/")[0]
        if path.startswith("/api/") and name in self.hub.repositories:
            told = self._tree(name) if "/tree/" in path else self._info(name)
            return self._send(200, json.dumps(told).encode())
        name, _, rest = path.strip("/").partition("/resolve/")
        files = self.hub.repositories.get(name if name.startswith("datasets/") else f"models/{name}", {})
        content = files.get(rest.partition("/")[2])
        if content is None:
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound" if files else "RepoNotFound"})
        etag = hashlib.sha1(content).hexdigest()
        return self._send(200, content, {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"'})

    def _info(self, name: str) -> dict[str, object]:
        identifier = name.partition("/")[2]
        siblings = [{"rfilename": path} for path in self.hub.repositories[name]]
        return {"id": identifier, "modelId": identifier, "sha": COMMIT, "private": False, "siblings": siblings}

    def _tree(self, name: str) -> list[dict[str, object]]:
        files = self.hub.repositories[name].items()
        return [
            {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
            for path, content in files
        ]

    def _send(self, status: int, content: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass
