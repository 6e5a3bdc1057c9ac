"""The stand-in for ``sgl_kernel``: out where the real package loads, in where it cannot.

Each case runs in a process of its own: the function changes ``sys.path`` and ``sys.modules``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]

# With the CPU engine selected, the decision needs no torch: the processes start fast.
CPU_ENGINE = {"SGLANG_USE_CPU_ENGINE": "1"}


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder that shadows whatever ``sgl_kernel`` is installed."""
    folder = tmp_path / "packages"
    folder.mkdir()
    return folder


def write_kernel(packages: Path, init: str) -> None:
    """Write a fake ``sgl_kernel`` with one submodule ``version``."""
    package = packages / "sgl_kernel"
    package.mkdir()
    (package / "__init__.py").write_text(init)
    (package / "version.py").write_text('__version__ = "9.9"\n')


def run(code: str, packages: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if k != "SGLANG_USE_CPU_ENGINE"}
    path = os.pathsep.join([str(packages), str(REPOSITORY)])
    return subprocess.run(
        [sys.executable, "-c", "from sglang_xver.engine.cpu import ensure_sgl_kernel\n" + code],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=packages,
        env={**inherited, **env, "PYTHONPATH": path},
    )


def output_of(code: str, packages: Path, env: dict[str, str] = CPU_ENGINE) -> str:
    result = run(code, packages, env)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


BROKEN = [
    pytest.param("ImportError('libcuda.so.1: cannot open')", id="import-error"),
    pytest.param("OSError('libcuda.so.1: cannot open')", id="os-error"),
]


class TestRealPackage:
    def test_stays_in_use(self, packages: Path) -> None:
        write_kernel(packages, "from sgl_kernel.version import __version__\nREAL = True\n")
        code = "print(ensure_sgl_kernel()); import sgl_kernel; print(sgl_kernel.REAL)"
        assert output_of(code, packages) == "False\nTrue"

    def test_leaves_the_path_alone(self, packages: Path) -> None:
        write_kernel(packages, "")
        code = "import sys; before = list(sys.path); ensure_sgl_kernel(); print(before == sys.path)"
        assert output_of(code, packages) == "True"

    def test_any_other_error_is_not_hidden(self, packages: Path) -> None:
        write_kernel(packages, "raise RuntimeError('driver mismatch')\n")
        result = run("ensure_sgl_kernel()", packages, CPU_ENGINE)
        assert result.returncode != 0
        assert "driver mismatch" in result.stderr


class TestBrokenPackage:
    @pytest.mark.parametrize("error", BROKEN)
    def test_stand_in_takes_over(self, packages: Path, error: str) -> None:
        write_kernel(packages, f"import sgl_kernel.version\nraise {error}\n")
        code = (
            "import sys; print(ensure_sgl_kernel())\n"
            "print('sgl_kernel.version' in sys.modules)\n"
            "from sgl_kernel import copy_all_layer_kv_cache_cpu as kernel\n"
            "print(sys.modules['sgl_kernel'].__xver_stand_in__, callable(kernel))"
        )
        assert output_of(code, packages) == "True\nFalse\nTrue True"

    def test_its_folder_comes_first(self, packages: Path) -> None:
        write_kernel(packages, "raise ImportError('no driver')\n")
        code = "import sys; ensure_sgl_kernel(); print(sys.path[0].endswith('/cpu/stub'))"
        assert output_of(code, packages) == "True"

    def test_second_call_changes_nothing(self, packages: Path) -> None:
        write_kernel(packages, "raise ImportError('no driver')\n")
        code = (
            "import sys; ensure_sgl_kernel(); path = list(sys.path)\n"
            "print(ensure_sgl_kernel(), path == sys.path)"
        )
        assert output_of(code, packages) == "True True"

    def test_main_process_warns_once_with_the_reason(self, packages: Path) -> None:
        write_kernel(packages, "raise ImportError('no driver here\\nand more')\n")
        result = run("ensure_sgl_kernel(); ensure_sgl_kernel()", packages, CPU_ENGINE)
        assert result.stderr.count("stand-in") == 1
        assert "no driver here)" in result.stderr

    def test_spawned_child_inherits_it_silently(self, packages: Path) -> None:
        write_kernel(packages, "raise ImportError('no driver')\n")
        (packages / "child.py").write_text(
            "import sgl_kernel\n"
            "from sglang_xver.engine.cpu import ensure_sgl_kernel\n"
            "def report():\n"
            "    print(sgl_kernel.__xver_stand_in__, ensure_sgl_kernel(), flush=True)\n"
        )
        # The child imports sgl_kernel while it unpickles the target, before any plugin could run.
        code = (
            "import multiprocessing as mp\n"
            "ensure_sgl_kernel()\n"
            "import child\n"
            "p = mp.get_context('spawn').Process(target=child.report); p.start(); p.join()\n"
            "raise SystemExit(p.exitcode)"
        )
        result = run(code, packages, CPU_ENGINE)
        assert result.returncode == 0, result.stderr
        assert result.stdout.strip() == "True True"
        assert result.stderr.count("stand-in") == 1


class TestAcceleratorHost:
    FAKE_TORCH = "class accelerator:\n    is_available = staticmethod(lambda: {available})\n"

    def test_broken_package_stays_a_visible_error(self, packages: Path) -> None:
        write_kernel(packages, "raise ImportError('wrong CUDA version')\n")
        (packages / "torch.py").write_text(self.FAKE_TORCH.format(available=True))
        result = run("print(ensure_sgl_kernel()); import sgl_kernel", packages, {})
        assert result.stdout.strip() == "False"
        assert "wrong CUDA version" in result.stderr
        assert "stand-in" not in result.stderr

    def test_package_is_not_even_imported(self, packages: Path) -> None:
        write_kernel(packages, "")
        (packages / "torch.py").write_text(self.FAKE_TORCH.format(available=True))
        code = "import sys; ensure_sgl_kernel(); print('sgl_kernel' in sys.modules)"
        assert output_of(code, packages, {}) == "False"

    def test_host_without_one_needs_no_variable(self, packages: Path) -> None:
        write_kernel(packages, "raise ImportError('no driver')\n")
        (packages / "torch.py").write_text(self.FAKE_TORCH.format(available=False))
        assert output_of("print(ensure_sgl_kernel())", packages, {}) == "True"


class TestStandIn:
    @pytest.fixture(autouse=True)
    def broken_kernel(self, packages: Path) -> None:
        write_kernel(packages, "raise ImportError('no driver')\n")

    def test_calling_a_kernel_names_it_and_the_remedy(self, packages: Path) -> None:
        code = "ensure_sgl_kernel(); import sgl_kernel; sgl_kernel.moe_sum(1, out=2)"
        result = run(code, packages, CPU_ENGINE)
        assert result.returncode != 0
        last_line = result.stderr.strip().splitlines()[-1]
        assert last_line.startswith("RuntimeError: sgl_kernel.moe_sum cannot run")
        assert "--attention-backend xver_cpu" in last_line

    @pytest.mark.parametrize("name", ["__all__", "__wrapped__", "_private"])
    def test_private_names_do_not_exist(self, packages: Path, name: str) -> None:
        code = f"ensure_sgl_kernel(); import sgl_kernel; print(hasattr(sgl_kernel, {name!r}))"
        assert output_of(code, packages) == "False"

    @pytest.mark.parametrize("part", ["allreduce", "kvcacheio"])
    def test_submodules_that_sglang_guards_raise_import_error(
        self, packages: Path, part: str
    ) -> None:
        code = (
            "ensure_sgl_kernel()\n"
            f"try:\n    import sgl_kernel.{part}\n"
            "except ImportError:\n    print('guarded')"
        )
        assert output_of(code, packages) == "guarded"


def test_importing_the_kit_imports_neither_torch_nor_sglang(packages: Path) -> None:
    code = "import sys; print({'torch', 'sglang', 'prometheus_client'} & set(sys.modules))"
    assert output_of(code, packages) == "set()"
