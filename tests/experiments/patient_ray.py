"""A Ray cluster without time limits: on a busy machine it takes minutes until all of it runs.

Import this before Ray, which reads its settings when it is imported and when its processes start.
A process that is really lost is still noticed soon: a connection to it is refused.
"""

import inspect
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

_HOUR = 3600
_SECONDS = (
    "DASHBOARD_STARTUP_TIMEOUT_S",
    "gcs_rpc_server_connect_timeout_s",
    "gcs_rpc_server_reconnect_timeout_s",
    "gcs_server_port_wait_time_s",
    "gcs_server_request_timeout_seconds",
    "py_gcs_connect_timeout_s",
    "worker_register_timeout_seconds",
)
_MILLISECONDS = (
    "agent_register_timeout_ms",
    "grpc_client_keepalive_timeout_ms",
    "grpc_keepalive_timeout_ms",
    "health_check_timeout_ms",
)
os.environ |= {f"RAY_{name}": str(_HOUR) for name in _SECONDS}
os.environ |= {f"RAY_{name}": str(1000 * _HOUR) for name in _MILLISECONDS}
# Nor is a worker ended because others have filled the machine's memory.
os.environ |= {"RAY_memory_monitor_refresh_ms": "0"}
# Ray gives its workers the lowest priority but four: beside other work they would take hours.
os.environ |= {"RAY_worker_niceness": "0"}


@contextmanager
def patient_cluster(*cores: int) -> Iterator[str]:
    """HOST:PORT of a cluster on this machine, of a head and other nodes with so many cores."""
    ray = pytest.importorskip("ray")
    from ray._private import services
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setattr(services, "start_raylet", _told_ports(services.start_raylet))
        patch.setattr(services, "get_node", _waited_for(services.get_node))
        machines = Cluster()
        stack.callback(machines.shutdown)
        stack.callback(ray.shutdown)
        for place, count in enumerate(cores):
            head = {"include_dashboard": False} if place == 0 else {}
            machines.add_node(
                wait=False, num_cpus=count, runtime_env_agent_port=_free_port(), **head
            )
        yield machines.address


def _told_ports(start: Callable[..., Any]) -> Callable[..., Any]:
    """Starts a node that knows its agents' ports: Ray waits 15 seconds for them to say which.

    The agent of the dashboard has none (-1), which is also what it says itself.
    """
    from ray import _raylet

    def started(*given: Any, **named: Any) -> Any:
        node = inspect.signature(start).bind(*given, **named).arguments
        ports = {
            _raylet.METRICS_AGENT_PORT_NAME: -1,
            _raylet.METRICS_EXPORT_PORT_NAME: -1,
            _raylet.DASHBOARD_AGENT_LISTEN_PORT_NAME: -1,
            _raylet.RUNTIME_ENV_AGENT_PORT_NAME: node["runtime_env_agent_port"],
        }
        for name, port in ports.items():
            _raylet.persist_port(node["session_dir"], node["node_id"], name, port)
        return start(*given, **named)

    return started


def _waited_for(find: Callable[..., Any]) -> Callable[..., Any]:
    """Finds a node when it is there, for which Ray waits 30 seconds."""

    def found(*node: Any) -> Any:
        end = time.monotonic() + _HOUR
        while True:
            try:
                return find(*node)
            except RuntimeError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

    return found


def _free_port() -> int:
    with socket.create_server(("", 0)) as one:
        return int(one.getsockname()[1])
