"""Ports for a deployment that nobody needs to know beforehand."""

from __future__ import annotations

import socket
from contextlib import ExitStack

from phloem.up.ports import LOOPBACK, Ports


class AnyPorts(Ports):
    """Gives out whatever the system has free: several deployments that start at the same time don't want the same ones."""

    def near(self, wanted: int) -> int:
        """A free port; ``wanted`` does not matter."""
        while (port := free_ports(1)[0]) in self._given:
            pass
        self._given.add(port)
        return port


def free_ports(count: int) -> list[int]:
    """``count`` different TCP ports of loopback on which nobody listens now."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return [int(probe.getsockname()[1]) for probe in probes]
