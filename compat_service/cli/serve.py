"""``xver-compat serve``."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from compat_service.cli.output import console


def serve_command(
    db: Annotated[
        str | None,
        typer.Option("--db", help="SQLAlchemy URL; default: a SQLite file in the data folder."),
    ] = None,
    listen: Annotated[
        str | None, typer.Option(help="host:port, loopback only; port 0 takes a free one.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="Policy for requests that name none.")] = None,
) -> None:
    """Run the service until SIGTERM or SIGINT.

    The schema of a brand-new SQLite file is created; any other schema must be current already.
    """
    from compat_service.config import load_settings
    from compat_service.server import serve

    settings = load_settings({"database_url": db, "listen": listen, "policy": policy})
    logging.basicConfig(
        level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    logging.getLogger("alembic").setLevel(logging.WARNING)
    out = console()

    def announce(line: str) -> None:
        out.print(f"xver-compat: {line}", markup=False)
        out.file.flush()

    serve(settings, announce)
