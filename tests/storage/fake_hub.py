"""The Hugging Face Hub as its clients see it: repositories, and a second server for the bytes."""

from __future__ import annotations

import base64
import json
import re
from urllib.parse import quote

from fake_server import FakeServer


class FakeHub:
    """``files`` by path of the data set ``me/digits``; ``token`` makes it private.

    A read is redirected (302) to a signed address at the second server, which refuses requests
    with the Hub's token: clients must not pass it on.
    """

    def __init__(self):
        self.files = {}
        self.token = None
        self.gated = False
        self.page_size = 3
        self.signature, self.resolved = "s1", 0
        self.hub, self.bytes = FakeServer(self._hub), FakeServer(self._bytes)
        self.address = self.hub.address

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.hub.close()
        self.bytes.close()

    def _hub(self, call):
        if self.token and call.headers.get("Authorization") != f"Bearer {self.token}":
            return call.reply(401, b"", {"X-Error-Code": "RepoNotFound"})
        if self.gated:
            return call.reply(403, b"", {"X-Error-Code": "GatedRepo"})
        path = call.path.removeprefix("/api").removeprefix("/datasets/me/digits")
        if path == call.path.removeprefix("/api"):
            return call.reply(404, b"", {"X-Error-Code": "RepoNotFound"})
        match = re.fullmatch(r"/(resolve|tree|preupload|commit)/(main|refs/pr/7)/?(.*)", path)
        if match is None:
            return call.reply(404, b"", {"X-Error-Code": "RevisionNotFound"})
        return getattr(self, f"_{match[1]}")(call, match[3])

    def _resolve(self, call, path):
        if path not in self.files:
            return call.reply(404, b"", {"X-Error-Code": "EntryNotFound"})
        self.resolved += 1
        address = f"{self.bytes.address}/{quote(path)}?signature={self.signature}"
        return call.reply(302, b"", {"Location": address, "ETag": '"the hub\'s own"'})

    def _tree(self, call, folder):
        lead = f"{folder}/" if folder else ""
        deep = call.query.get("recursive") == "true"
        names = sorted(name for name in self.files if name.startswith(lead))
        names = [name for name in names if deep or "/" not in name[len(lead) :]]
        if not names:
            return call.reply(404, b"", {"X-Error-Code": "EntryNotFound"})
        begin = int(call.query.get("cursor", 0))
        page = names[begin : begin + self.page_size]
        entries = [{"type": "file", "path": n, "size": len(self.files[n])} for n in page]
        entries.insert(0, {"type": "directory", "path": folder or "train"})
        headers = {}
        if begin + self.page_size < len(names):
            following = f"{self.address}{call.raw_path}?cursor={begin + self.page_size}"
            headers["Link"] = f'<{following}>; rel="next"'
        return call.reply_json(entries, headers)

    def _preupload(self, call, path):
        names = [file["path"] for file in json.loads(call.body)["files"]]
        answer = [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]
        return call.reply_json({"files": answer})

    def _commit(self, call, path):
        for line in map(json.loads, call.body.splitlines()):
            if line["key"] == "file":
                self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        page = f"{self.address}/datasets/me/digits/commit/c1"
        return call.reply_json({"commitUrl": page, "commitOid": "c1", "success": True})

    def _bytes(self, call):
        if call.headers.get("Authorization") or call.query.get("signature") != self.signature:
            return call.reply(403)
        data = self.files.get(call.path.removeprefix("/"))
        return call.reply(404) if data is None else call.reply_object(data)
