"""The server process: database, services, health, reflection, and an orderly end."""

from __future__ import annotations

import errno
import logging
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from xver.compat.v1 import compat_pb2, compat_pb2_grpc, evidence_pb2, evidence_pb2_grpc

from compat_service.config import Endpoint, Settings
from compat_service.errors import ConfigError
from compat_service.policy import DEMO
from compat_service.services import CompatServicer, EvidenceServicer
from compat_service.store import Database, Repository, open_database
from compat_service.store.schema import SchemaState, require_current, schema_status, upgrade

log = logging.getLogger(__name__)
SERVICE_NAMES = (
    compat_pb2.DESCRIPTOR.services_by_name["CompatService"].full_name,
    evidence_pb2.DESCRIPTOR.services_by_name["EvidenceService"].full_name,
)


class CompatServer:
    """A running service. Start once, stop once."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._pool = ThreadPoolExecutor(settings.max_workers, thread_name_prefix="xver-rpc")
        # Health.Watch streams last for ever; they must not hold the threads that decide.
        self._health_pool = ThreadPoolExecutor(2, thread_name_prefix="xver-health")
        self._server = grpc.server(
            self._pool,
            maximum_concurrent_rpcs=settings.max_pending_calls,
            options=[
                # A second server on the same port must fail, not share its calls.
                ("grpc.so_reuseport", 0),
                ("grpc.max_receive_message_length", settings.max_message_bytes),
                ("grpc.max_send_message_length", 64 * 1024**2),
            ],
        )
        self._health = health.HealthServicer(
            experimental_non_blocking=True, experimental_thread_pool=self._health_pool
        )
        self._add_services(Repository(database), database)
        self._bound: Endpoint | None = None

    @property
    def endpoint(self) -> Endpoint:
        """Address that clients connect to; with the real port when port 0 was asked for."""
        if self._bound is None:
            raise RuntimeError("the server has no port before start()")
        return self._bound

    def start(self) -> None:
        """Bind and serve in background threads.

        Raises:
            ConfigError: the address cannot be bound; the message says why and what to do.
        """
        wanted = self._settings.endpoint
        try:
            port = self._server.add_insecure_port(str(wanted))
        except RuntimeError as error:
            raise ConfigError(_bind_failure(wanted)) from error
        self._bound = Endpoint(wanted.host, port)
        self._server.start()
        for name in ("", *SERVICE_NAMES):
            self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    def stop(self) -> None:
        """Refuse new calls, let running ones finish within the grace period, then return."""
        self._health.enter_graceful_shutdown()
        self._server.stop(self._settings.shutdown_grace_s).wait()
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._health_pool.shutdown(wait=True, cancel_futures=True)

    def _add_services(self, repository: Repository, database: Database) -> None:
        compat_pb2_grpc.add_CompatServiceServicer_to_server(
            CompatServicer(repository, self._settings.policy, self._settings.answer_ttl_s),
            self._server,
        )
        evidence_pb2_grpc.add_EvidenceServiceServicer_to_server(
            EvidenceServicer(repository, database), self._server
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (*SERVICE_NAMES, health.SERVICE_NAME, reflection.SERVICE_NAME), self._server
        )


def serve(settings: Settings, announce: Callable[[str], None]) -> None:
    """Run until SIGTERM or SIGINT. Call from the main thread.

    Args:
        announce: receives one line when calls are accepted, and one at the end.

    Raises:
        ConfigError, SchemaError, StoreUnavailableError: the server cannot start.
    """
    stop = threading.Event()

    def request_stop(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, request_stop)
    database = open_database(
        settings.database_url,
        busy_timeout_ms=settings.busy_timeout_ms,
        pool_size=settings.max_workers,
    )
    try:
        prepare_schema(database, announce)
        server = CompatServer(settings, database)
        server.start()
        if settings.policy == DEMO.name:
            log.warning("policy demo: %s", DEMO.description)
        announce(
            f"serving on {server.endpoint}, database {database.display_url}, "
            f"policy {settings.policy}"
        )
        stop.wait()
        server.stop()
        announce("stopped")
    finally:
        database.close()


def prepare_schema(database: Database, announce: Callable[[str], None]) -> None:
    """Create the schema of a brand-new SQLite file; refuse any other that is not current.

    Raises:
        SchemaError: the schema is behind, ahead or foreign; the message holds the remedy.
    """
    if database.is_sqlite and schema_status(database).state is SchemaState.EMPTY:
        upgrade(database)
        announce(f"new database {database.display_url}: schema created")
    require_current(database)


def _bind_failure(endpoint: Endpoint) -> str:
    remedy = "choose another address with --listen or XVER_COMPAT_LISTEN"
    family = socket.AF_INET6 if ":" in endpoint.host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(tuple(endpoint))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return (
                f"port {endpoint.port} on {endpoint.host} is in use by another process; "
                f"stop it or {remedy}"
            )
        return f"cannot listen on {endpoint}: {error.strerror or error}; {remedy}"
    return f"cannot listen on {endpoint}; {remedy}"
