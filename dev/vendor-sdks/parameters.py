#!/usr/bin/env python3
"""Prints the parameters of the calls of an API as the vendor's models have them: `parameters.py eci`.

One line for each: its path (`N` stands for an index), its type, and `required` if the vendor says so.
"""

import functools
import pathlib
import re
import sys

from alibabacloud_eci20180808 import models

CALLS = {
    "eci": """CreateContainerGroup DeleteContainerGroup DescribeAvailableResource DescribeContainerGroupEvents
        DescribeContainerGroupMetric DescribeContainerGroupPrice DescribeContainerGroupStatus DescribeContainerGroups
        DescribeContainerLog DescribeMultiContainerGroupMetric DescribeRegions ExecContainerCommand ListTagResources
        ListUsage RestartContainerGroup TagResources UntagResources UpdateContainerGroup""".split()
}


# The text of each model. `inspect` would parse the whole file for each of them.
SOURCES = {
    part.split("(", 1)[0]: part for part in pathlib.Path(models.__file__).read_text().split("\nclass ")[1:]
}


@functools.cache
def fields(model):
    """Key on the wire, type and whether it is required, of each field of a model."""
    source = SOURCES[model.__name__]
    constructor = source[source.index("def __init__") : source.index("def validate")]
    head, body = constructor.split("):\n", 1)
    keys = {attribute: key for key, attribute in re.findall(r"result\['([^']+)'\] = self\.(\w+)", source)}
    for key, attribute in re.findall(r"result\['([^']+)'\] = \[\]\n        if self\.(\w+) is not None", source):
        keys[attribute] = key
    required, comment = set(), ""
    for line in map(str.strip, body.splitlines()):
        if line.startswith("#"):
            comment += line
        elif found := re.match(r"self\.(\w+) = ", line):
            if "This parameter is required" in comment:
                required.add(found[1])
            comment = ""
    found = re.findall(r"^        (\w+): (.+) = None,$", head, re.M)
    return [(keys[attribute], kind, attribute in required) for attribute, kind in found]


def walk(model, prefix=""):
    for key, kind, required in fields(model):
        path = prefix + key
        if item := re.match(r"List\[(\w+)\]$", kind):
            path, kind = path + ".N", item[1]
        if hasattr(models, kind):
            if required:
                yield path, "object", True
            yield from walk(getattr(models, kind), path + ".")
        else:
            yield path, kind, required


if __name__ == "__main__":
    for call in CALLS[sys.argv[1]]:
        print("#", call)
        for path, kind, required in sorted(walk(getattr(models, call + "Request"))):
            print(path, kind, *["required"] * required)
