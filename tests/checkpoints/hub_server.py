"""A local server with the part of the Hugging Face Hub's protocol that downloads need."""

import contextlib
import hashlib
import http.server
import json
import re
import threading


class HubServer(http.server.ThreadingHTTPServer):
    """Serves repositories, and single files under /files.

    Attributes:
      repositories: owner/name -> names and contents of the files in the branch main.
      files: plain files by name.
      gated: the repositories that answer 403 to requests without the token "good".
      broken: path of a file -> list of numbers of bytes. Each of the next answers sends that many bytes before the
        connection breaks. When the list is empty, the complete file is sent.
      requests: method, path, Range and Authorization of each request.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories, self.files, self.gated, self.broken, self.requests = {}, {}, set(), {}, []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def commit(self, name):
        """Returns the commit of the branch main, which depends on the files."""
        return hashlib.sha1(repr(sorted(self.repositories[name].items())).encode()).hexdigest()

    def asked(self, method, ending):
        return [request for request in self.requests if request[0] == method and request[1].endswith(ending)]


@contextlib.contextmanager
def hub_server():
    """Runs a server in a thread."""
    with HubServer() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        server, path = self.server, self.path.partition("?")[0]
        token = self.headers["Authorization"]
        server.requests.append((self.command, path, self.headers["Range"], token))
        if path.startswith("/files/"):
            return self._file(path, server.files[path.removeprefix("/files/")], {})
        match = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/([^/]+)", path)
        match = match or re.fullmatch(r"/([^/]+/[^/]+)/(resolve)/([^/]+)/(.+)", path)
        if not match:
            return self._error(404, "EntryNotFound")
        name, what, revision = match.group(1, 2, 3)
        if name not in server.repositories:
            return self._error(404 if token else 401, "RepoNotFound")
        if name in server.gated and token != "Bearer good":
            return self._error(403, "GatedRepo")
        commit, contents = server.commit(name), server.repositories[name]
        if revision not in ("main", "v1", commit):
            return self._error(404, "RevisionNotFound")
        if what == "revision":
            return self._json({"id": name, "sha": commit, "siblings": [{"rfilename": file} for file in contents]})
        if what == "tree":
            digests = {file: hashlib.sha1(data).hexdigest() for file, data in contents.items()}
            size = {file: len(data) for file, data in contents.items()}
            return self._json([{"type": "file", "path": f, "size": size[f], "oid": digests[f]} for f in contents])
        if match[4] not in contents:
            return self._error(404, "EntryNotFound")
        return self._file(match[4], contents[match[4]], {"X-Repo-Commit": commit})

    do_HEAD = do_GET

    def _json(self, value):
        self._answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _error(self, status, code):
        self._answer(status, b"", {"X-Error-Code": code, "X-Error-Message": f"this is {code}"})

    def _file(self, path, data, headers):
        headers = {**headers, "ETag": f'"{hashlib.sha1(data).hexdigest()}"', "Accept-Ranges": "bytes"}
        start, status = 0, 200
        if self.headers["Range"]:
            start, status = int(re.fullmatch(r"bytes=(\d+)-", self.headers["Range"])[1]), 206
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        breaks = self.server.broken.get(path)
        end = start + breaks.pop(0) if breaks and self.command == "GET" else len(data)
        self._answer(status, data[start:], headers, data[start:end])

    def _answer(self, status, body, headers, sent=None):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": len(body)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body if sent is None else sent)
            self.close_connection = sent is not None and len(sent) < len(body)
