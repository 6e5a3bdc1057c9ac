"""``xver-compat check``: may KV of one version be read by another?"""

from __future__ import annotations

from typing import Annotated

import grpc
import typer
from rich.table import Table
from xver.compat.v1 import common_pb2 as common
from xver.compat.v1 import compat_pb2 as compat
from xver.compat.v1 import compat_pb2_grpc, evidence_pb2_grpc
from xver.compat.v1 import evidence_pb2 as evidence

from compat_service.cli.output import (
    action_name,
    confidence_name,
    console,
    exit_status,
    reason_name,
)
from compat_service.cli.remote import ADDRESS_HELP, TIMEOUT_S, connect
from compat_service.config import DEFAULT_LISTEN
from compat_service.errors import ConfigError

# Stands for the conditions of a server that was not described. It matches no evidence.
_UNSPECIFIED = "unspecified"


def check_command(
    source: Annotated[str, typer.Option(help="Fingerprint of the weights that wrote the KV.")],
    target: Annotated[str, typer.Option(help="Fingerprint of the weights that will read it.")],
    layout: Annotated[
        str, typer.Option(help="Layout digest of the server; default: the recorded one.")
    ] = "",
    engine_version: Annotated[
        str, typer.Option(help="Engine version of the server; default: the recorded one.")
    ] = "",
    engine: Annotated[str, typer.Option(help="Engine of the server.")] = "sglang",
    family: Annotated[
        list[str] | None, typer.Option(help="Task family; repeat for several. Default: all.")
    ] = None,
    policy: Annotated[str, typer.Option(help="Policy; default: the service's.")] = "",
    address: Annotated[
        str, typer.Option(envvar="XVER_COMPAT_LISTEN", help=ADDRESS_HELP)
    ] = DEFAULT_LISTEN,
) -> None:
    """Print the rules for one pair with their reasons.

    Exit status: 0 keep or remap, 3 evict, 4 inconclusive or no evidence, 1 error.
    """
    with connect(address) as channel:
        request = compat.CheckCompatRequest(
            source=common.ModelVersion(fingerprint=source),
            target=common.ModelVersion(fingerprint=target),
            source_layout=common.CacheLayout(digest=layout),
            engine=common.Engine(name=engine, version=engine_version),
            task_families=family or [],
            policy=policy,
            client="xver-compat check",
        )
        if not layout or not engine_version:
            _fill_conditions(channel, request)
        stub = compat_pb2_grpc.CompatServiceStub(channel)
        answer: compat.CheckCompatResponse = stub.CheckCompat(request, timeout=TIMEOUT_S)
    _print_answer(request, answer)
    raise typer.Exit(exit_status(answer.action, answer.confidence))


def _fill_conditions(channel: grpc.Channel, request: compat.CheckCompatRequest) -> None:
    """Take layout and engine version from the recorded runs when these leave no choice."""
    stub = evidence_pb2_grpc.EvidenceServiceStub(channel)
    listing = evidence.ListPairsRequest(
        source_fingerprint=request.source.fingerprint,
        target_fingerprint=request.target.fingerprint,
        page_size=1,
    )
    pairs = stub.ListPairs(listing, timeout=TIMEOUT_S).pairs
    asked = request.source_layout.digest, request.engine.version
    fitting = [
        recorded
        for pair in pairs
        for recorded in pair.conditions
        if recorded.engine.name == request.engine.name
        and asked[0] in ("", recorded.layout.digest)
        and asked[1] in ("", recorded.engine.version)
    ]
    if len(fitting) > 1:
        choices = "; ".join(
            f"--layout {c.layout.digest} --engine-version {c.engine.version}" for c in fitting
        )
        raise ConfigError(f"runs exist for several servers, choose one: {choices}")
    if fitting:
        request.source_layout.digest = fitting[0].layout.digest
        request.engine.version = fitting[0].engine.version
        return
    request.source_layout.digest = request.source_layout.digest or _UNSPECIFIED
    request.engine.version = request.engine.version or _UNSPECIFIED


def _print_answer(request: compat.CheckCompatRequest, answer: compat.CheckCompatResponse) -> None:
    out = console()
    out.print(
        f"{action_name(answer.action)} ({confidence_name(answer.confidence)})  "
        f"{request.source.fingerprint} -> {request.target.fingerprint}",
        style="bold",
        markup=False,
    )
    out.print(
        f"layout {request.source_layout.digest}, {request.engine.name} {request.engine.version}, "
        f"policy {answer.policy}, evidence revision {answer.evidence_revision}, "
        f"decision {answer.decision_id}",
        markup=False,
    )
    for reason in answer.reasons:
        out.print(f"- {reason_name(reason.code)}: {reason.message}", markup=False)
    table = Table("family", "prefix tokens", "action", "confidence", "reasons")
    for rule in answer.rules:
        reasons = "\n".join(f"{reason_name(r.code)}: {r.message}" for r in rule.reasons)
        table.add_row(
            rule.task_family,
            _range(rule),
            action_name(rule.action),
            confidence_name(rule.confidence),
            # Markup characters of stored text must not be read as styles.
            reasons.replace("[", r"\["),
        )
    out.print(table)


def _range(rule: compat.Rule) -> str:
    low = rule.prefix_tokens_min_exclusive
    return f"{low + 1}..{rule.prefix_tokens_max}" if rule.prefix_tokens_max else f"> {low}"
