"""Command line of the plugin's side: ``sglang-xver``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sglang_xver import __version__
from sglang_xver.doctor import DoctorRequest, Finding, diagnose
from sglang_xver.errors import XverError
from sglang_xver.identity import inspect_checkpoint

app = typer.Typer(no_args_is_help=True, add_completion=False)

_WHOLE = 2**62
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red", "skipped": "dim"}


class Format(StrEnum):
    """How a result is printed."""

    HUMAN = "human"
    JSON = "json"


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"sglang-xver {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Identify checkpoints and check an installation the way the plugin does."""


@app.command()
def fingerprint(
    checkpoint: Annotated[Path, typer.Argument(help="Folder with config.json and *.safetensors.")],
    sampled: Annotated[
        bool, typer.Option(help="Hash headers and blocks only, as for very large checkpoints.")
    ] = False,
) -> None:
    """Print a checkpoint's content fingerprint and geometry as JSON."""
    found = inspect_checkpoint(checkpoint, 0 if sampled else _WHOLE)
    geometry = {**found.geometry.values, **found.geometry.rope}
    typer.echo(
        json.dumps(
            {
                "fingerprint": found.fingerprint,
                "model_type": found.model_type,
                "tokenizer_digest": found.tokenizer_digest,
                "geometry_digest": found.geometry.digest,
                "geometry": geometry,
                "tensors": len(found.tensors),
            },
            indent=2,
        )
    )


@app.command()
def doctor(
    config: Annotated[
        Path | None, typer.Option(help="Configuration file; SGLANG_XVER_CONFIG without it.")
    ] = None,
    service: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Service; the configured one without it."),
    ] = None,
    model: Annotated[
        list[Path] | None,
        typer.Option(help="Checkpoint to look at; the others must fit the first. Repeatable."),
    ] = None,
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="Running SGLang server to look at.")
    ] = None,
    output: Annotated[Format, typer.Option("--format", help="For people or for programs.")] = (
        Format.HUMAN
    ),
) -> None:
    """Check what a server needs to run with the plugin; exit status 1 if anything fails."""
    findings = diagnose(DoctorRequest(config, service, tuple(model or ()), server))
    failed = any(finding.status == "fail" for finding in findings)
    if output is Format.JSON:
        checks = [finding.to_dict() for finding in findings]
        typer.echo(
            json.dumps({"version": __version__, "ok": not failed, "checks": checks}, indent=2)
        )
    else:
        _print_findings(findings)
    if failed:
        raise typer.Exit(1)


def _print_findings(findings: Sequence[Finding]) -> None:
    table = Table("check", "")
    for title in ("found", "what to do"):
        # Fingerprints and paths are longer than a column and must stay whole.
        table.add_column(title, overflow="fold")
    for finding in findings:
        table.add_row(
            finding.check,
            Text(finding.status, style=_COLOURS[finding.status]),
            Text(finding.detail),
            Text(finding.remedy),
        )
    Console().print(table)


def main() -> None:
    """Run the command line; an error of this project ends it with one line and status 1."""
    try:
        app()
    except XverError as error:
        typer.echo(f"sglang-xver: {error}", err=True)
        raise SystemExit(1) from error
