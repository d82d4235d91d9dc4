"""An AIStore cluster as its clients see it: a proxy that redirects them, and one target."""

from __future__ import annotations

import json

from fake_server import FakeServer


class FakeAis:
    """``objects`` by (provider, bucket, name). If ``token`` is set, requests must carry it.

    Like the real one, the proxy never transfers an object: it responds 307 with an address at the
    target, which refuses requests that were not redirected by the proxy.
    """

    def __init__(self):
        self.objects = {}
        self.token = None
        self.page_size = 3
        self.proxy, self.target = FakeServer(self._proxy), FakeServer(self._target)
        self.address = self.proxy.address

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.proxy.close()
        self.target.close()

    def _proxy(self, call):
        if self.token and call.headers.get("Authorization") != f"Bearer {self.token}":
            return call.reply(401, b"token required")
        if call.path.startswith("/v1/buckets/"):
            return self._list(call)
        if call.body:
            return call.reply(400, b"the proxy takes no objects")
        address = f"{self.target.address}{call.raw_path}?provider={call.query['provider']}&pid=p1"
        return call.reply(307, b"", {"Location": address})

    def _target(self, call):
        if call.query.get("pid") != "p1":
            return call.reply(400, b"not redirected by a proxy")
        bucket, _, name = call.path.removeprefix("/v1/objects/").partition("/")
        key = (call.query["provider"], bucket, name)
        if call.method == "PUT":
            self.objects[key] = call.body
            return call.reply(200)
        if key not in self.objects:
            return call.reply(404, b'{"message": "object does not exist"}')
        return call.reply_object(self.objects[key], {"ais-version": "1"})

    def _list(self, call):
        wanted = json.loads(call.body)
        if wanted["action"] != "list":
            return call.reply(400)
        value = wanted["value"]
        bucket = (call.query["provider"], call.path.removeprefix("/v1/buckets/"))
        if not any(found[:2] == bucket for found in self.objects):
            return call.reply(404, b'{"message": "bucket does not exist"}')
        names = sorted(found[2] for found in self.objects if found[:2] == bucket)
        names = [name for name in names if name.startswith(value["prefix"])]
        names = [name for name in names if name > value["continuation_token"]]
        page, rest = names[: self.page_size], names[self.page_size :]
        if value["continuation_token"] and value["uuid"] != "u1":
            return call.reply(400, b"which listing?")
        sizes = [{"name": n, "size": str(len(self.objects[(*bucket, n)]))} for n in page]
        return call.reply_json(
            {"uuid": "u1", "entries": sizes, "continuation_token": page[-1] if rest else ""}
        )
