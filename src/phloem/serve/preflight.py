"""What can be known to fail before torch is loaded, so that it is told at once. Nothing here imports torch."""

from __future__ import annotations

import sys

from phloem_bus.errors import ConfigError
from phloem_gateway.config import GatewayConfig, read_keys
from phloem_gateway.listening import bind
from phloem_gpu_worker.config import STAND_IN
from phloem_model import ModelError, ModelUnavailable, resolve


def check_gateway(config: GatewayConfig) -> None:
    """Ports that are taken, addresses that are not ours, keys that can't be read. Raises ConfigError."""
    for flag, host, port in (
        ("--http-port", config.http_host, config.http_port),
        ("--grpc-port", config.grpc_host, config.grpc_port),
    ):
        if port:
            bind(host, port, flag).close()
    read_keys(config.api_keys_file)


def prepare_model(model: str) -> None:
    """Fetch and convert it once, with progress on standard error, before three services ask for it.

    Raises:
        ConfigError: there is no such model, or it can't be used.
        ModelUnavailable: it could not be fetched.
    """
    if model.startswith(STAND_IN):
        return
    try:
        resolve(model, progress=lambda line: print(line, file=sys.stderr, flush=True))
    except ModelUnavailable:
        raise
    except ModelError as error:
        raise ConfigError("--model", str(error), error.exit_code) from error
