"""Regenerates the Python stubs of the API from the .proto files.

Needs grpcio-tools 1.81.1: its gencode runs on protobuf >= 6.33.5 and grpcio >= 1.81.1, the floors
of SGLang and of this project. Run ``python proto/generate.py``; ``--out`` writes elsewhere.
"""

from __future__ import annotations

import argparse
import sys
from importlib import metadata, resources
from pathlib import Path

GRPCIO_TOOLS_VERSION = "1.81.1"
PROTO_ROOT = Path(__file__).resolve().parent
API_FOLDER = Path("xver/compat/v1")


def generate(out: Path) -> None:
    """Write ``*_pb2.py``, ``*_pb2.pyi`` and ``*_pb2_grpc.py`` below ``out``.

    Raises:
        RuntimeError: grpcio-tools has another version, or protoc refuses a file.
    """
    from grpc_tools import protoc

    installed = metadata.version("grpcio-tools")
    if installed != GRPCIO_TOOLS_VERSION:
        raise RuntimeError(
            f"grpcio-tools {installed} is installed, the stubs need {GRPCIO_TOOLS_VERSION}: "
            f"pip install grpcio-tools=={GRPCIO_TOOLS_VERSION}"
        )
    out.mkdir(parents=True, exist_ok=True)
    sources = sorted(str(path) for path in (PROTO_ROOT / API_FOLDER).glob("*.proto"))
    well_known = resources.files("grpc_tools") / "_proto"
    arguments = [
        "protoc",
        f"--proto_path={PROTO_ROOT}",
        f"--proto_path={well_known}",
        f"--python_out={out}",
        f"--pyi_out={out}",
        f"--grpc_python_out={out}",
        *sources,
    ]
    if protoc.main(arguments) != 0:
        raise RuntimeError(f"protoc refused one of {', '.join(sources)}; see its message above")


def main() -> None:
    """Parse the command line and generate; exits with status 1 and a message on failure."""
    parser = argparse.ArgumentParser(description="Regenerate the stubs of xver.compat.v1.")
    parser.add_argument("--out", type=Path, default=PROTO_ROOT, help="root to write below")
    arguments = parser.parse_args()
    try:
        generate(arguments.out)
    except RuntimeError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
