"""Flags that every service has, as Typer option types, and the validated `CommonOptions` made of them.

A service's ``__main__`` names them one by one, so that its ``--help`` is complete::

    @app.command()
    def main(model: options.Model = options.MODEL, nats_url: options.NatsUrl = options.NATS_URL, ...) -> None:
        common = options.CommonOptions.of(Role.GRAMMAR, model=model, nats_url=nats_url, ...)
        raise typer.Exit(run_service(lambda: GrammarService(config), common))
"""

from __future__ import annotations

import importlib.metadata
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from phloem_proto.subjects import Role, is_token, replies

from .errors import ConfigError
from .log import FORMATS, LEVELS
from .nats_client import NatsOptions

MODEL = "smollm2"
NATS_URL = "nats://127.0.0.1:4222"
NAMESPACE = "default"
DRAIN_S = 25.0
METRICS_HOST = "127.0.0.1"

_BUS = "Bus"
_PROCESS = "Process"

Model = Annotated[
    str, typer.Option("--model", envvar="PHLOEM_MODEL", help="Model: a name such as smollm2, a path, or a hub id.")
]
ServedModelName = Annotated[
    str,
    typer.Option(
        "--served-model-name",
        envvar="PHLOEM_SERVED_MODEL_NAME",
        help="The model's name for clients.",
        show_default="the model's short name",
    ),
]
NatsUrl = Annotated[
    str, typer.Option("--nats-url", envvar="PHLOEM_NATS_URL", help="The message broker.", rich_help_panel=_BUS)
]
NatsUser = Annotated[
    str, typer.Option("--nats-user", envvar="PHLOEM_NATS_USER", help="User at the broker.", rich_help_panel=_BUS)
]
NatsPasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--nats-password-file",
        envvar="PHLOEM_NATS_PASSWORD_FILE",
        help="File that holds its password.",
        rich_help_panel=_BUS,
    ),
]
NatsTlsCa = Annotated[
    Path | None,
    typer.Option(
        "--nats-tls-ca",
        envvar="PHLOEM_NATS_TLS_CA",
        help="Certificate of the authority that signed the broker's, for TLS.",
        rich_help_panel=_BUS,
    ),
]
NatsTlsCert = Annotated[
    Path | None,
    typer.Option(
        "--nats-tls-cert",
        envvar="PHLOEM_NATS_TLS_CERT",
        help="Our own certificate, for a broker that asks for one.",
        rich_help_panel=_BUS,
    ),
]
NatsTlsKey = Annotated[
    Path | None,
    typer.Option("--nats-tls-key", envvar="PHLOEM_NATS_TLS_KEY", help="File that holds its key.", rich_help_panel=_BUS),
]
Namespace = Annotated[
    str,
    typer.Option(
        "--namespace",
        envvar="PHLOEM_NAMESPACE",
        help="Separates deployments that share a broker.",
        rich_help_panel=_BUS,
    ),
]
Instance = Annotated[
    str,
    typer.Option(
        "--instance",
        envvar="PHLOEM_INSTANCE",
        help="This instance's name on the bus.",
        show_default="the role and random digits",
        rich_help_panel=_BUS,
    ),
]
LogFormat = Annotated[
    str, typer.Option("--log-format", envvar="PHLOEM_LOG_FORMAT", help="console or json.", rich_help_panel=_PROCESS)
]
LogLevel = Annotated[
    str,
    typer.Option(
        "--log-level", envvar="PHLOEM_LOG_LEVEL", help="debug, info, warning or error.", rich_help_panel=_PROCESS
    ),
]
DrainSeconds = Annotated[
    float,
    typer.Option(
        "--drain-seconds",
        envvar="PHLOEM_DRAIN_SECONDS",
        help="How long finishing or handing back work may take after SIGTERM.",
        rich_help_panel=_PROCESS,
    ),
]
MetricsPort = Annotated[
    int,
    typer.Option(
        "--metrics-port", envvar="PHLOEM_METRICS_PORT", help="Port for Prometheus; 0 = off.", rich_help_panel=_PROCESS
    ),
]
MetricsHost = Annotated[
    str,
    typer.Option(
        "--metrics-host", envvar="PHLOEM_METRICS_HOST", help="Address of that port.", rich_help_panel=_PROCESS
    ),
]
ReadyFile = Annotated[
    Path | None,
    typer.Option(
        "--ready-file",
        envvar="PHLOEM_READY_FILE",
        help="File that exists, freshly touched, while this service is ready.",
        rich_help_panel=_PROCESS,
    ),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"phloem {importlib.metadata.version('phloem')}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version", callback=_print_version, is_eager=True, help="Show the version and exit.", rich_help_panel=_PROCESS
    ),
]


@dataclass(frozen=True, slots=True)
class CommonOptions:
    """What every service is told. Made by `of`, which validates."""

    role: Role
    model: str = MODEL
    served_model_name: str = ""
    """Never empty after `of`."""
    nats: NatsOptions = field(default_factory=NatsOptions)
    namespace: str = NAMESPACE
    instance: str = ""
    """Never empty after `of`."""
    log_format: str = "console"
    log_level: str = "info"
    drain_s: float = DRAIN_S
    metrics_port: int = 0
    ready_file: Path | None = None
    metrics_host: str = METRICS_HOST

    @classmethod
    def of(
        cls,
        role: Role,
        *,
        model: str = MODEL,
        served_model_name: str = "",
        nats_url: str = NATS_URL,
        nats_user: str = "",
        nats_password_file: Path | None = None,
        nats_tls_ca: Path | None = None,
        nats_tls_cert: Path | None = None,
        nats_tls_key: Path | None = None,
        namespace: str = NAMESPACE,
        instance: str = "",
        log_format: str = "console",
        log_level: str = "info",
        drain_seconds: float = DRAIN_S,
        metrics_port: int = 0,
        metrics_host: str = METRICS_HOST,
        ready_file: Path | None = None,
    ) -> CommonOptions:
        """Validate the flags (same names) and read the password.

        Raises:
            ConfigError: a setting can't be used; it is named by its flag.
        """
        _check(bool(model.strip()), "--model", "must not be empty")
        _check(is_token(namespace), "--namespace", f"letters, digits, - and _ only, at most 64: {namespace!r}")
        instance = instance or f"{role}-{secrets.token_hex(4)}"
        _check(
            is_token(instance) and instance != "all",
            "--instance",
            f"letters, digits, - and _ only, and not 'all': {instance!r}",
        )
        _check(log_format in FORMATS, "--log-format", f"one of {', '.join(FORMATS)}, not {log_format!r}")
        _check(log_level in LEVELS, "--log-level", f"one of {', '.join(LEVELS)}, not {log_level!r}")
        _check(0 <= drain_seconds <= 3600, "--drain-seconds", f"between 0 and 3600, not {drain_seconds:g}")
        _check(0 <= metrics_port < 65536, "--metrics-port", f"between 0 and 65535, not {metrics_port}")
        _check(bool(metrics_host.strip()), "--metrics-host", "must not be empty")
        nats = NatsOptions(
            url=nats_url,
            user=nats_user,
            password=read_secret("--nats-password-file", nats_password_file),
            tls_ca=nats_tls_ca,
            tls_cert=nats_tls_cert,
            tls_key=nats_tls_key,
            name=instance,
            inbox=replies(role, instance),
        )
        nats.servers()
        nats.tls()
        return cls(
            role,
            model,
            served_model_name or short_name(model),
            nats,
            namespace,
            instance,
            log_format,
            log_level,
            drain_seconds,
            metrics_port,
            ready_file,
            metrics_host,
        )


def short_name(model: str) -> str:
    """What clients call a model when nobody says otherwise: the last part of a path or hub id, without ``.gguf``."""
    return model.rstrip("/").rpartition("/")[2].removesuffix(".gguf")


def read_secret(flag: str, path: Path | None) -> str:
    """A secret's text without the line end, "" for no file.

    Raises:
        ConfigError: the file can't be read or is empty.
    """
    if path is None:
        return ""
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(flag, f"can't be read: {error}") from error
    _check(bool(secret), flag, "the file is empty")
    return secret


def _check(good: bool, flag: str, message: str) -> None:
    if not good:
        raise ConfigError(flag, message)
