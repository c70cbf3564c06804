#!/usr/bin/env python3
"""Drives an emulator with the vendor's SDK through every call: `peer.py eci http://127.0.0.1:PORT`.

Prints a JSON object per line: `step`, and `sent` (the request's model), `answer` (what the SDK understood) or `error` (its code).
"""

import json
import re
import sys
import time

import websocket
from alibabacloud_eci20180808 import models
from alibabacloud_eci20180808.client import Client
from alibabacloud_tea_openapi.utils_models import Config
from Tea.exceptions import TeaException

from parameters import fields

REGION = "cn-hangzhou"
# Values that the vendor restricts, by path. The first one that matches counts; `None` leaves a field out.
VALUES = [
    (r"OwnerAccount|ResourceOwner|OwnerId", None),
    (r"Volume\.\d+\.(Config|Disk|Empty|Flex|HostPath|NFS)\w*", None),
    (r"Probe\.(Exec|HttpGet|TcpSocket)$", None),
    (r"DryRun|InstanceType|HostPath|ZoneId|FixedIp|EipInstanceId", None),
    (r"RegionId", REGION),
    (r"ContainerGroupName", "vk-everything"),
    (r"VSwitchId", "vsw-a,vsw-b"),
    (r"SecurityGroupId", "sg-1"),
    (r"ClientToken", "token-of-the-peer"),
    (r"RestartPolicy", "Always"),
    (r"DnsPolicy", "None"),
    (r"NameServer", "10.96.0.10"),
    (r"SpotStrategy", "SpotWithPriceLimit"),
    (r"ScheduleStrategy", "VSwitchOrdered"),
    (r"CpuArchitecture", "AMD64"),
    (r"OsType", "Linux"),
    (r"EipISP", "BGP"),
    (r"ImagePullPolicy", "IfNotPresent"),
    (r"HostAliase\.\d+\.Ip", "10.0.0.1"),
    (r"Protocol", "TCP"),
    (r"Port$", 8080),
    (r"Scheme", "HTTP"),
    (r"MountPropagation", "None"),
    (r"FieldRef", None),
    (r"Cpu$", 1.0),
    (r"Memory$", 2.0),
    (r"WorkingDir", "/tmp"),
    (r"TerminationGracePeriodSeconds", 1),
    (r"ActiveDeadlineSeconds", 3600),
    (r"RunAs(User|Group)", 0),
    (r"RunAsNonRoot", False),
    (r"Container\.1\.Name", "main"),
    (r"Container\.2\.Name", "second"),
    (r"EnvironmentVar\.\d+\.Key", "NAME"),
    (r"EnvironmentVar\.\d+\.Value", "a value: \u00e9\u4e2d & = + / %20"),
    (r"VolumeMount\.1\.Name", "files"),
    (r"VolumeMount\.1\.MountPath", "/files"),
    (r"VolumeMount\.\d+\.SubPath", "folder"),
    (r"TerminationMessagePolicy", None),
    (r"TerminationMessagePath", "/dev/termination-log"),
]
PAIRS = {"Container.N": 2}


def fill(model, prefix=""):
    """A map with a value for every field of a model."""
    filled = {}
    for key, kind, _ in fields(model):
        path = f"{prefix}{key}"
        rule = next((value for pattern, value in VALUES if re.search(pattern, path)), ...)
        if rule is None:
            continue
        item = re.match(r"List\[(\w+)\]$", kind)
        if item and hasattr(models, item[1]):
            count = PAIRS.get(path + ".N", 1)
            filled[key] = [fill(getattr(models, item[1]), f"{path}.{index}.") for index in range(1, count + 1)]
        elif hasattr(models, kind):
            filled[key] = fill(getattr(models, kind), path + ".")
        else:
            value = rule
            if value is ...:
                value = {"int": 1, "float": 1.5, "bool": True}.get(item[1] if item else kind, "x")
            filled[key] = [value] if item else value
    return filled


def everything():
    request = fill(models.CreateContainerGroupRequest)
    first, second = request["Container"]
    first["Command"], first["Arg"] = ["sh", "-c"], ["echo hello; sleep 3600"]
    second["Command"], second["Arg"] = ["sleep"], ["3600"]
    second["EnvironmentVar"].append({"Key": "POD_IP", "FieldRef": {"FieldPath": "status.podIP"}})
    first["LivenessProbe"]["Exec"] = {"Command": ["true"]}
    first["ReadinessProbe"]["Exec"] = {"Command": ["true"]}
    second["LivenessProbe"]["HttpGet"] = {"Path": "/", "Port": 8080, "Scheme": "HTTP"}
    second["ReadinessProbe"]["TcpSocket"] = {"Port": 8080}
    init = request["InitContainer"][0]
    init["Name"], init["Command"], init["Arg"] = "init", ["true"], ["x"]
    request["Tag"] = [{"Key": "node", "Value": "peer"}, {"Key": "empty", "Value": ""}]
    request["Volume"] = [
        {"Name": "files", "Type": "ConfigFileVolume", "ConfigFileVolume": {"DefaultMode": 644, "ConfigFileToPath": [
            {"Path": "folder/a", "Content": "aGVsbG8=", "Mode": 600}]}},
        {"Name": "disk", "Type": "DiskVolume", "DiskVolume": {"DiskId": "d-1", "DiskSize": 20, "FsType": "ext4"}},
        {"Name": "scratch", "Type": "EmptyDirVolume", "EmptyDirVolume": {"Medium": "Memory", "SizeLimit": "1Gi"}},
        {"Name": "flex", "Type": "FlexVolume", "FlexVolume": {"Driver": "alicloud/nas", "FsType": "nfs", "Options": "{}"}},
        {"Name": "nfs", "Type": "NFSVolume", "NFSVolume": {"Server": "nas", "Path": "/", "ReadOnly": True}},
    ]
    return request


class Peer:
    def __init__(self, endpoint, key="testid", secret="testsecret", token=None):
        address = endpoint.split("://")[1]
        self.client = Client(Config(
            access_key_id=key, access_key_secret=secret, security_token=token, endpoint=address,
            protocol="http", region_id=REGION, connect_timeout=5000, read_timeout=30000,
        ))

    def call(self, step, action, **parameters):
        """Calls, prints what was understood, and returns it."""
        request = getattr(models, f"{action}Request")().from_map({"RegionId": REGION, **parameters})
        method = re.sub(r"(?<!^)(?=[A-Z])", "_", action).lower()
        line = {"step": step, "action": action, "sent": request.to_map()}
        try:
            answer = getattr(self.client, method)(request)
            line["answer"] = answer.body.to_map()
        except TeaException as error:
            line["error"], line["message"] = error.code, error.message
        print(json.dumps(line), flush=True)
        return line.get("answer", {})

    def until(self, group, status):
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            request = models.DescribeContainerGroupsRequest(region_id=REGION, container_group_ids=json.dumps([group]))
            groups = self.client.describe_container_groups(request).body.container_groups
            if (groups[0].status if groups else None) == status:
                return
            time.sleep(0.05)
        raise SystemExit(f"{group} is not {status}")


def exchange(uri, sent=b""):
    """All that comes from the WebSocket of a command."""
    socket = websocket.create_connection(uri, timeout=20)
    if sent:
        socket.send_binary(b"\x00" + sent)
    came = {}
    while True:
        try:
            data = socket.recv()
        except websocket.WebSocketConnectionClosedException:
            break
        if not data:
            break
        data = data.encode() if isinstance(data, str) else data
        came[str(data[0])] = came.get(str(data[0]), "") + data[1:].decode()
        if data[0] == 3:
            break
    socket.close()
    return came


def eci(endpoint):
    peer = Peer(endpoint)
    request = everything()
    group = peer.call("create", "CreateContainerGroup", **request)["ContainerGroupId"]
    peer.call("create again", "CreateContainerGroup", **request)
    peer.until(group, "Running")
    ids = json.dumps([group])
    small = [{"Name": "main", "Image": "busybox", "Command": ["sleep", "3600"]}]
    for number in range(22):
        peer.call("fill", "CreateContainerGroup", ContainerGroupName=f"vk-{number}", Container=small)
    page = peer.call("first page", "DescribeContainerGroups")
    peer.call("second page", "DescribeContainerGroups", NextToken=page["NextToken"])
    peer.call("describe", "DescribeContainerGroups", ContainerGroupIds=ids, WithEvent=True)
    peer.call("by tag", "DescribeContainerGroupStatus", Tag=[{"Key": "node", "Value": "peer"}])
    peer.call("status", "DescribeContainerGroupStatus", SinceSecond=3600, Limit=200)
    peer.call("events", "DescribeContainerGroupEvents", ContainerGroupIds=ids, SinceSecond=3600, EventSource="K8sAgent")
    peer.call("log", "DescribeContainerLog", ContainerGroupId=group, ContainerName="main", Tail=10, Timestamps=False)
    where = {"ContainerGroupId": group, "ContainerName": "main"}
    answer = peer.call("exec", "ExecContainerCommand", **where, Command='["cat"]', Stdin=True, TTY=False)
    socket = websocket.create_connection(answer["WebSocketUri"], timeout=20)
    socket.send_binary(b"\x00ping\n")
    came = socket.recv()
    socket.close()
    print(json.dumps({"step": "exec stream", "answer": {str(came[0]): came[1:].decode()}}), flush=True)
    answer = peer.call("exec code", "ExecContainerCommand", **where, Command='["sh","-c","echo out; exit 3"]', Stdin=False)
    print(json.dumps({"step": "exec end", "answer": exchange(answer["WebSocketUri"])}), flush=True)
    peer.call("exec sync", "ExecContainerCommand", **where, Command='["echo","hi"]', Sync=True, TTY=False)
    peer.call("metric", "DescribeContainerGroupMetric", ContainerGroupId=group)
    peer.call("metrics", "DescribeMultiContainerGroupMetric", ContainerGroupIds=ids)
    peer.call("price", "DescribeContainerGroupPrice", Cpu=2.0, Memory=4.0, SpotStrategy="SpotAsPriceGo")
    peer.call("price of type", "DescribeContainerGroupPrice", InstanceType="ecs.c6.large")
    peer.call("usage", "ListUsage")
    peer.call("regions", "DescribeRegions")
    wanted = {"Category": "InstanceType", "Value": "ecs.c6.large"}
    peer.call("available", "DescribeAvailableResource", DestinationResource=wanted)
    of = {"ResourceType": "containergroup", "ResourceId": [group]}
    peer.call("tag", "TagResources", **of, Tag=[{"Key": "more", "Value": "tags"}])
    peer.call("tags", "ListTagResources", **of)
    peer.call("untag", "UntagResources", **of, TagKey=["more"])
    change = [{"Name": "main", "Image": "busybox:2"}]
    peer.call("update", "UpdateContainerGroup", ContainerGroupId=group, UpdateType="IncrementalUpdate", Container=change)
    peer.call("update early", "UpdateContainerGroup", ContainerGroupId=group, UpdateType="IncrementalUpdate", Container=change)
    peer.until(group, "Running")
    peer.call("restart", "RestartContainerGroup", ContainerGroupId=group)
    peer.until(group, "Running")
    peer.call("delete", "DeleteContainerGroup", ContainerGroupId=group)
    peer.until(group, None)
    peer.call("delete again", "DeleteContainerGroup", ContainerGroupId=group)
    errors(peer, endpoint, request)


def errors(peer, endpoint, request):
    peer.call("other token", "CreateContainerGroup", **{**request, "ContainerGroupName": "vk-other"})
    plain = {**request, "ClientToken": "another"}
    peer.call("dry run", "CreateContainerGroup", **plain, DryRun=True)
    peer.call("bad name", "CreateContainerGroup", **{**plain, "ContainerGroupName": "Not_Allowed"})
    peer.call("bad vswitch", "CreateContainerGroup", **{**plain, "VSwitchId": "vsw-none"})
    peer.call("bad group", "CreateContainerGroup", **{**plain, "SecurityGroupId": "sg-none"})
    peer.call("bad size", "CreateContainerGroup", **{**plain, "Cpu": 1000.0})
    peer.call("bad region", "ListUsage", RegionId="cn-nowhere")
    peer.call("bad page", "DescribeContainerGroups", NextToken="nonsense")
    peer.call("no container", "DescribeContainerLog", ContainerGroupId="eci-none")
    Peer(endpoint, key="nobody").call("wrong key", "ListUsage")
    Peer(endpoint, secret="wrong").call("wrong secret", "ListUsage")
    Peer(endpoint, key="temporary", secret="testsecret", token="token").call("temporary", "ListUsage")
    Peer(endpoint, key="temporary", secret="testsecret", token="other").call("wrong token", "ListUsage")
    Peer(endpoint, key="expired", secret="testsecret", token="token").call("expired token", "ListUsage")


if __name__ == "__main__":
    {"eci": eci}[sys.argv[1]](sys.argv[2])
