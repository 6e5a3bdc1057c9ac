"""The command tree and the one place where errors become an exit status."""

from __future__ import annotations

import os
import sys

import typer

from compat_service import __version__
from compat_service.cli import check, db, pairs, serve
from compat_service.cli.output import ERROR_EXIT, error_console
from compat_service.errors import XverError

app = typer.Typer(
    name="xver-compat",
    help="Decide from measured evidence whether a prefix cache survives a weight update.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("serve")(serve.serve_command)
app.command("check")(check.check_command)
app.command("pairs")(pairs.pairs_command)
app.add_typer(db.app, name="db")


@app.callback(invoke_without_command=True)
def _root(
    *, version: bool = typer.Option(False, "--version", help="Print the version and exit.")
) -> None:
    if version:
        typer.echo(f"xver-compat {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; ends the process with its exit status."""
    # gRPC's core writes its own lines to stderr; what matters reaches the user as a message below.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        app()
    except XverError as error:
        error_console().print(f"xver-compat: {error}", style="red", markup=False)
        sys.exit(ERROR_EXIT)
