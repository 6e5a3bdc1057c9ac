"""Command line of the plugin's side: ``sglang-xver``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sglang_xver import __version__
from sglang_xver.errors import XverError
from sglang_xver.identity import inspect_checkpoint

app = typer.Typer(no_args_is_help=True, add_completion=False)

_WHOLE = 2**62


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
    """Identify checkpoints the way the plugin does."""


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


def main() -> None:
    """Run the command line; an error of this project ends it with one line and status 1."""
    try:
        app()
    except XverError as error:
        typer.echo(f"sglang-xver: {error}", err=True)
        raise SystemExit(1) from error
