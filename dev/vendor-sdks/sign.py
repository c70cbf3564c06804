#!/usr/bin/env python3
"""Signs requests with the signers of vendors' SDKs: one JSON object per line in, one per line out.

A request has `scheme` (acs3 or rpc), `method`, `path` (not encoded), `query` and `headers` (objects), `body`, `id` and `secret`.
The answer has `signature`: the header Authorization of acs3, or the parameter Signature of rpc.
"""

import json
import sys
import types

from alibabacloud_tea_openapi.utils import Utils

ACS3 = "ACS3-HMAC-SHA256"


def acs3(request):
    payload = Utils.hash(request["body"].encode(), ACS3).hex()
    sent = types.SimpleNamespace(
        method=request["method"],
        pathname=Utils.get_encode_path(request["path"]),
        query=request["query"],
        headers=request["headers"],
    )
    return Utils.get_authorization(sent, ACS3, payload, request["id"], request["secret"])


def rpc(request):
    return Utils.get_rpcsignature(request["query"], request["method"], request["secret"])


for line in sys.stdin:
    request = json.loads(line)
    sign = {"acs3": acs3, "rpc": rpc}[request["scheme"]]
    print(json.dumps({"signature": sign(request)}), flush=True)
