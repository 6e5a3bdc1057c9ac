"""``xver-compat pairs``: what evidence exists."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table
from xver.compat.v1 import common_pb2 as common
from xver.compat.v1 import evidence_pb2 as evidence
from xver.compat.v1 import evidence_pb2_grpc

from compat_service.cli.output import console
from compat_service.cli.remote import ADDRESS_HELP, TIMEOUT_S, connect
from compat_service.config import DEFAULT_LISTEN


def pairs_command(
    limit: Annotated[int, typer.Option(min=1, max=500, help="Pairs to print.")] = 50,
    address: Annotated[
        str, typer.Option(envvar="XVER_COMPAT_LISTEN", help=ADDRESS_HELP)
    ] = DEFAULT_LISTEN,
) -> None:
    """List the pairs with evidence, newest first."""
    with connect(address) as channel:
        stub = evidence_pb2_grpc.EvidenceServiceStub(channel)
        request = evidence.ListPairsRequest(page_size=limit)
        response: evidence.ListPairsResponse = stub.ListPairs(request, timeout=TIMEOUT_S)
    out = console()
    if not response.pairs:
        out.print("no evidence recorded")
        return
    table = Table("source", "target", "runs", "families", "longest prefix", "last recorded")
    for pair in response.pairs:
        table.add_row(
            _version(pair.source),
            _version(pair.target),
            str(pair.num_runs),
            ", ".join(pair.task_families),
            f"{pair.prefix_tokens_max} tokens",
            pair.last_recorded_at.ToDatetime().isoformat(" ", "seconds") + " UTC",
        )
    out.print(table)
    if response.next_page_token:
        out.print(f"more than {limit} pairs; raise --limit to see them")


def _version(version: common.ModelVersion) -> str:
    label = f"{version.label}\n" if version.label else ""
    return escape(label + version.fingerprint)
