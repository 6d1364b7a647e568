"""All faults, in the order in which they are done."""

from __future__ import annotations

from . import broker, clients, kills, soak, upkeep
from .row import Fault

FAULTS = (
    Fault("worker-killed", "one of two workers killed", kills.worker_killed),
    Fault("only-worker-killed", "the only worker killed, restarted", kills.only_worker_killed),
    Fault("scheduler-killed", "the leading scheduler killed", kills.scheduler_killed),
    Fault("grammar-killed", "grammar killed under 20 compiles", kills.grammar_killed),
    Fault("tokenizer-killed", "one of two tokenizers killed", kills.tokenizer_killed),
    Fault("broker-stopped", "nats-server away for 5 s", broker.broker_stopped),
    Fault("broker-restarted", "all connections to nats-server broken", broker.broker_restarted),
    Fault("worker-frozen", "one of two workers frozen for 5 s", kills.worker_frozen),
    Fault("log-disk-full", "no log can be written", upkeep.log_disk_full),
    Fault("clients-gone", "all clients of long requests gone", clients.clients_gone),
    Fault("rolling-restart", "SIGTERM to each process in turn", upkeep.rolling_restart),
    Fault("flood", "far more requests than can be served", clients.flood, long=True),
    Fault("soak", "everything mixed for minutes", soak.soak, long=True),
)


def chosen(only: tuple[str, ...], long: bool) -> list[Fault]:
    """Those named by ``only``; without names all that don't take long, or all. Raises ValueError for a name that is none."""
    known = {fault.name: fault for fault in FAULTS}
    for name in only:
        if name not in known:
            raise ValueError(f"--only: one of {', '.join(known)}, not {name!r}")
    return [fault for fault in FAULTS if fault.name in only or (not only and (long or not fault.long))]
