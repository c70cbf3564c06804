"""Calls a pod with the official Python client of Kubernetes, and prints what came of each as one JSON object.

Usage: calls.py KUBECONFIG NAMESPACE POD. Nothing is judged here: that is for the test that reads it.
"""

import json
import sys

from kubernetes import client, config
from kubernetes.client.rest import ApiException
from kubernetes.stream import portforward, stream

# Long enough for a busy machine, in seconds.
LIMIT = 60
MUCH = 300_000


def main(kubeconfig, namespace, pod):
    config.load_kube_config(config_file=kubeconfig)
    api = client.CoreV1Api()
    calls = Calls(api, namespace, pod)
    json.dump(
        {
            "simple": calls.simple(["echo", "hello", "world"]),
            "errors": calls.run(["sh", "-c", "echo oops >&2"]),
            "codes": [calls.run(["sh", "-c", f"exit {code}"])["code"] for code in (0, 1, 42, 137)],
            "input": calls.run(["cat"], "one\ntwo\n"),
            "much": calls.much(),
            "unknown container": calls.refused("nobody"),
            "http": calls.http(8080),
            "echo": calls.echo(9000),
            "closed port": calls.closed(1),
            "log": calls.log(),
        },
        sys.stdout,
    )


class Calls:
    def __init__(self, api, namespace, pod):
        self.api = api
        self.pod = {"name": pod, "namespace": namespace}

    def exec(self, command, **options):
        wanted = {"stdin": False, "stdout": True, "stderr": True, "tty": False, "container": "main"}
        return stream(
            self.api.connect_get_namespaced_pod_exec, **self.pod, command=command, **{**wanted, **options}
        )

    def simple(self, command):
        """In one call, as most programs do it."""
        return self.exec(command)

    def run(self, command, text=None):
        process = self.exec(command, stdin=text is not None, _preload_content=False)
        if text is not None:
            process.write_stdin(text)
            # The end of input, which v4 cannot say.
            process.close_channel(0)
        process.run_forever(timeout=LIMIT)
        return {
            "protocol": process.subprotocol,
            "ended": not process.is_open(),
            "out": process.read_channel(1),
            "err": process.read_channel(2),
            "code": process.returncode,
        }

    def much(self):
        process = self.exec(["head", "-c", str(MUCH), "/dev/zero"], _preload_content=False, binary=True)
        process.run_forever(timeout=LIMIT)
        return len(process.read_channel(1))

    def refused(self, container):
        try:
            return self.exec(["true"], container=container)
        except ApiException as refused:
            return str(refused)

    def forward(self, port):
        forwarded = portforward(self.api.connect_get_namespaced_pod_portforward, **self.pod, ports=str(port))
        forwarded.socket(port).settimeout(LIMIT)
        return forwarded

    def http(self, port):
        forwarded = self.forward(port)
        socket = forwarded.socket(port)
        socket.sendall(b"GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")
        answer = b""
        # Until it ends: that the pod closed its connection is to be seen too.
        while piece := socket.recv(4096):
            answer += piece
        return {"answer": answer.decode(), "error": forwarded.error(port)}

    def echo(self, port):
        forwarded = self.forward(port)
        socket = forwarded.socket(port)
        there = bytes(index % 251 for index in range(MUCH))
        back = b""
        # In pieces, because this client has one thread for both directions.
        for place in range(0, MUCH, 30_000):
            socket.sendall(there[place : place + 30_000])
            while len(back) < min(place + 30_000, MUCH):
                piece = socket.recv(65536)
                if not piece:
                    break
                back += piece
        forwarded.close()
        return {"same": back == there, "length": len(back)}

    def closed(self, port):
        forwarded = self.forward(port)
        socket = forwarded.socket(port)
        try:
            socket.sendall(b"anybody?")
            while socket.recv(4096):
                pass
        except OSError:
            # Closed under our hands, as it should.
            pass
        return forwarded.error(port)

    def log(self):
        read = self.api.read_namespaced_pod_log
        followed = read(**self.pod, follow=True, _preload_content=False, _request_timeout=LIMIT)
        first = followed.readline().decode()
        followed.release_conn()
        return {
            "first": first,
            "whole": read(**self.pod),
            "tail": read(**self.pod, tail_lines=1, timestamps=True),
            "bytes": read(**self.pod, limit_bytes=5),
        }


main(*sys.argv[1:])
