"""What `phloem serve` is told, and the five services made of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from phloem_bus.options import short_name
from phloem_bus.service import Service
from phloem_gateway.config import GatewayConfig
from phloem_gateway.service import GatewayService
from phloem_gpu_worker.config import WorkerConfig
from phloem_gpu_worker.service import WorkerService
from phloem_grammar.config import GrammarConfig
from phloem_grammar.service import GrammarService
from phloem_scheduler.config import SchedulerConfig
from phloem_scheduler.service import SchedulerService
from phloem_tokenizer.config import TokenizerConfig
from phloem_tokenizer.service import TokenizerService


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Settings of all five; each service's own configuration says what its fields mean. Validated where they are made."""

    model: str = "smollm2"
    served_model_name: str = ""
    """"" = the model's short name."""
    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    worker: WorkerConfig = field(default_factory=WorkerConfig)
    """Its ``model`` must be the same."""

    @property
    def name(self) -> str:
        """The model's name for clients."""
        return self.served_model_name or short_name(self.model)

    def services(self) -> tuple[GatewayService, list[Service]]:
        """The gateway, and all five services. Raises ConfigError, as the gateway does for its key file."""
        gateway = GatewayService(self.gateway)
        rest: list[Service] = [
            TokenizerService(TokenizerConfig(model=self.model)),
            SchedulerService(self.scheduler),
            WorkerService(self.worker),
            GrammarService(GrammarConfig(model=self.model)),
        ]
        return gateway, [gateway, *rest]
