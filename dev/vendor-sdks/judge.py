#!/usr/bin/env python3
"""Shows a journal of requests and responses to the vendor's models: `judge.py eci`, one JSON object per line in.

An entry has `action`, `parameters` (flat, as they were sent), `status`, `response` and `faulty` (a fault has changed the response). Each
request, un-flattened, and each response is converted to the vendor's model and back. What is unknown, lost or of another type is printed,
one line for each, with its path.
"""

import json
import re
import sys

from parameters import fields

from alibabacloud_eci20180808 import models

TEXTS = {"int": r"-?\d+", "float": r"-?\d+(\.\d+)?([eE][-+]?\d+)?", "bool": r"(?i)true|false"}
KINDS = {"str": str, "int": int, "float": (int, float), "bool": bool}
# What every refusal has: the models are those of successes.
REFUSAL = {"Code": str, "HostId": str, "Message": str, "Recommend": str, "RequestId": str}


def unflatten(parameters):
    """`{"Tag.1.Key": "a"}` becomes `{"Tag": [{"Key": "a"}]}`."""
    tree = {}
    for path, value in parameters.items():
        node, parts = tree, path.split(".")
        for part in parts[:-1]:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                return path
        if isinstance(node.get(parts[-1]), dict):
            return path
        node[parts[-1]] = value

    def lists(node):
        if not isinstance(node, dict):
            return node
        node = {key: lists(value) for key, value in node.items()}
        if node and all(key.isdigit() for key in node):
            indices = sorted(map(int, node))
            if indices == list(range(1, len(indices) + 1)):
                return [node[str(index)] for index in indices]
        return node

    return lists(tree)


def check(model, tree, path, is_text, findings):
    """Compares a tree with the fields of a model. In requests every leaf is text."""
    if not isinstance(tree, dict):
        findings.append(f"{path}: {type(tree).__name__}, the vendor has an object")
        return
    known = {key: kind for key, kind, _ in fields(model)}
    for key, value in tree.items():
        place = f"{path}.{key}"
        if key not in known:
            findings.append(f"{place}: the vendor does not know it")
            continue
        kind = known[key]
        if item := re.match(r"List\[(\w+)\]$", kind):
            if not isinstance(value, list):
                findings.append(f"{place}: {type(value).__name__}, the vendor has a list")
                continue
            for index, each in enumerate(value, 1):
                leaf(item[1], each, f"{place}.{index}", is_text, findings)
        else:
            leaf(kind, value, place, is_text, findings)


def leaf(kind, value, path, is_text, findings):
    if hasattr(models, kind):
        check(getattr(models, kind), value, path, is_text, findings)
    elif kind.startswith("Dict"):
        if not isinstance(value, dict):
            findings.append(f"{path}: {type(value).__name__}, the vendor has a map")
    elif is_text:
        if not isinstance(value, str) or kind in TEXTS and not re.fullmatch(TEXTS[kind], value):
            findings.append(f"{path}: not {kind}")
    elif not isinstance(value, KINDS[kind]) or isinstance(value, bool) and kind != "bool":
        findings.append(f"{path}: {type(value).__name__}, the vendor has {kind}")


def round_trip(model, tree, path, findings):
    """What the vendor's own conversion does not give back."""
    try:
        back = model().from_map(tree).to_map()
    except Exception as error:  # a model that meets something else fails in many ways
        findings.append(f"{path}: the vendor's model fails: {error!r}")
        return
    compare(tree, back, path, findings)


def compare(sent, back, path, findings):
    if isinstance(sent, dict):
        for key, value in sent.items():
            if value is None:
                continue
            if not isinstance(back, dict) or key not in back:
                findings.append(f"{path}.{key}: lost by the vendor's model")
            else:
                compare(value, back[key], f"{path}.{key}", findings)
    elif isinstance(sent, list):
        if not isinstance(back, list) or len(back) != len(sent):
            findings.append(f"{path}: lost by the vendor's model")
        else:
            for index, (one, other) in enumerate(zip(sent, back), 1):
                compare(one, other, f"{path}.{index}", findings)
    elif sent != back:
        findings.append(f"{path}: changed by the vendor's model")


def judge(entry):
    action, findings = entry["action"], []
    request = getattr(models, f"{action}Request", None)
    if request is None:
        return [f"{action}: the vendor does not know this action"]
    # A call with a mistake that the emulator has refused is still a mistake of the caller.
    tree = unflatten(entry["parameters"])
    if isinstance(tree, str):
        findings.append(f"{action}Request.{tree}: both a value and an object")
    else:
        check(request, tree, f"{action}Request", True, findings)
        if not findings:
            round_trip(request, tree, f"{action}Request", findings)
    response, name = entry["response"], f"{action}Response"
    if entry.get("faulty"):
        return findings
    if entry["status"] == 200:
        body = getattr(models, f"{action}ResponseBody")
        before = len(findings)
        check(body, response, name, False, findings)
        if len(findings) == before:
            round_trip(body, response, name, findings)
    else:
        for key, value in response.items():
            if not isinstance(value, REFUSAL.get(key, ())):
                findings.append(f"{name}.{key}: not in a refusal")
    return findings


if __name__ == "__main__":
    assert sys.argv[1] == "eci", "only eci"
    seen = set()
    for line in sys.stdin:
        for finding in judge(json.loads(line)):
            # The same place of another item of a list says nothing new.
            place = re.sub(r"\.\d+(?=[.:])", ".N", finding)
            if place not in seen:
                seen.add(place)
                print(finding, flush=True)
