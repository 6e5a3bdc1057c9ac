"""The committed stubs are those of the .proto files."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PROTO = Path(__file__).resolve().parents[2] / "proto"
PATTERNS = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py")


def stubs_below(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): path.read_text()
        for pattern in PATTERNS
        for path in root.rglob(pattern)
    }


@pytest.mark.skipif(find_spec("grpc_tools") is None, reason="grpcio-tools is not installed")
class TestStubs:
    def test_regenerating_changes_nothing(self, tmp_path):
        result = subprocess.run(
            [sys.executable, str(PROTO / "generate.py"), "--out", str(tmp_path)],
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stderr
        committed, fresh = stubs_below(PROTO), stubs_below(tmp_path)
        assert len(fresh) == 9
        assert committed == fresh, "run: python proto/generate.py"
