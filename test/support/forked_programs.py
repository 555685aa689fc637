"""Programs in forks of one process that has imported their packages, since most of their time would go into that."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_LIMIT = 2**17  # bytes of a program and its environment
_NO_CHANGES: Mapping[str, str] = {}
_SERVER = """
import json, os, socket, sys
requests = socket.socket(fileno=0)
exec(json.loads(requests.recv({limit})))
while True:
    message, files, _, _ = socket.recv_fds(requests, {limit}, 2)
    if not message:
        sys.exit()
    if (pid := os.fork()) == 0:
        break
    for file in files:
        os.close(file)
    requests.send(json.dumps(pid).encode())
    requests.send(json.dumps(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
requests.detach()
for file, number in zip((os.open(os.devnull, os.O_RDONLY), *files), range(3)):
    os.dup2(file, number)
    os.close(file)
program, environ = json.loads(message)
os.environ.update(environ)
exec(program)
"""


@dataclass
class Program:
    """A running program, whose `stdout` is read before `stderr`, and both before `wait`."""

    pid: int
    stdout: Any
    stderr: Any
    _requests: socket.socket

    def wait(self) -> int:
        """Return the exit status, negative for a signal."""
        self.stdout.close()
        self.stderr.close()
        return int(json.loads(self._requests.recv(64)))


class ForkedPrograms:
    """Run one program at a time in a fork, which ends like an interpreter of its own."""

    def __init__(self, requests: socket.socket) -> None:
        self._requests = requests

    def start(self, program: str, environ: Mapping[str, str] = _NO_CHANGES) -> Program:
        """Start a program with these environment variables, in the namespace of the imports."""
        (stdout, for_stdout), (stderr, for_stderr) = os.pipe(), os.pipe()
        socket.send_fds(self._requests, [json.dumps([program, dict(environ)]).encode()], [for_stdout, for_stderr])
        os.close(for_stdout)
        os.close(for_stderr)
        pid = json.loads(self._requests.recv(64))
        return Program(pid, os.fdopen(stdout), os.fdopen(stderr), self._requests)

    def run(self, program: str, environ: Mapping[str, str] = _NO_CHANGES) -> subprocess.CompletedProcess[str]:
        started = self.start(program, environ)
        output, errors = started.stdout.read(), started.stderr.read()
        return subprocess.CompletedProcess([], started.wait(), output, errors)


@contextlib.contextmanager
def forked_programs(imports: str) -> Iterator[ForkedPrograms]:
    """Start the process that runs `imports` once and then forks."""
    requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-c", _SERVER.format(limit=_LIMIT)]
    with requests, theirs, subprocess.Popen(command, stdin=theirs.fileno()) as server:
        theirs.close()
        requests.send(json.dumps(imports).encode())
        yield ForkedPrograms(requests)
        requests.close()
        assert server.wait(60) == 0
