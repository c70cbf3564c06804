#!/usr/bin/env python3
"""Sends requests as the vendor's SDK does: `golden.py eci`, one JSON object per line in, one per line out.

A request has `action` and `parameters` (flat). The SDK's client gets it as a model and sends it to a recorder in this process. The answer
has `query` and `headers` as they arrived, or `lost`: parameters that the vendor's model does not know.
"""

import http.server
import json
import re
import sys
import threading
import urllib.parse

from alibabacloud_eci20180808 import models
from alibabacloud_eci20180808.client import Client
from alibabacloud_tea_openapi.utils_models import Config

from judge import check, unflatten
from parameters import fields


def typed(model, tree):
    """The tree with the types of the model's fields, which a request has as text."""
    result = {}
    for key, kind, _ in fields(model):
        if key not in tree:
            continue
        item = re.match(r"List\[(\w+)\]$", kind)
        convert = lambda value, name=item[1] if item else kind: leaf(name, value)
        result[key] = [convert(value) for value in tree[key]] if item else convert(tree[key])
    return result


def leaf(kind, value):
    if hasattr(models, kind):
        return typed(getattr(models, kind), value)
    return {"int": int, "float": float, "bool": lambda text: text.lower() == "true"}.get(kind, str)(value)


class Recorder(http.server.BaseHTTPRequestHandler):
    arrived = None

    def do_POST(self):
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length).decode()
        query = urllib.parse.urlsplit(self.path).query
        pairs = urllib.parse.parse_qsl("&".join(filter(None, [query, body])), keep_blank_values=True)
        Recorder.arrived = {
            "query": dict(pairs),
            "headers": {name.lower(): value for name, value in self.headers.items()},
        }
        answer = b'{"RequestId": "1"}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def main():
    assert sys.argv[1] == "eci", "only eci"
    server = http.server.HTTPServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = Client(Config(
        access_key_id="testid", access_key_secret="testsecret", protocol="http", region_id="cn-hangzhou",
        endpoint=f"127.0.0.1:{server.server_port}",
    ))
    for line in sys.stdin:
        asked = json.loads(line)
        model = getattr(models, asked["action"] + "Request")
        tree, lost = unflatten(asked["parameters"]), []
        check(model, tree, "", True, lost)
        if not lost:
            method = re.sub(r"(?<!^)(?=[A-Z])", "_", asked["action"]).lower()
            getattr(client, method)(model().from_map(typed(model, tree)))
        print(json.dumps({"lost": lost} if lost else Recorder.arrived), flush=True)


if __name__ == "__main__":
    main()
