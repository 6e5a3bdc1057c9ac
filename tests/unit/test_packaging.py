"""The wheel, its metadata and the pinned environment."""

from __future__ import annotations

import ast
import re
import sqlite3
import subprocess
import sys
import tomllib
import zipfile
from configparser import ConfigParser
from contextlib import closing
from email.parser import HeaderParser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
API_FOLDER = Path("xver/compat/v1")
ENGINE_PACKAGES = {"torch", "sglang", "transformers", "triton", "numpy", "scipy"}
# What the Makefile installs, and ray, which only a cluster needs but which is pinned as well.
EXTRAS = ("service", "sglang", "calibrate", "postgres", "ray", "dev")


@pytest.fixture(scope="module")
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def constraints() -> dict[str, str]:
    """Pinned version by canonical package name."""
    pins = {}
    for line in constraint_lines():
        name, _, version = line.partition("==")
        pins[canonicalize_name(name)] = version
    return pins


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    built = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"),
            *("--no-build-isolation", "--wheel-dir", str(out), str(ROOT)),
        ],
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def entry_points(wheel: Path, names: set[str]) -> ConfigParser:
    parser = ConfigParser(delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(read_text(wheel, dist_info(names, r"entry_points\.txt")))
    return parser


@pytest.fixture(scope="module")
def requirements(wheel: Path, names: set[str]) -> list[Requirement]:
    headers = HeaderParser().parsestr(read_text(wheel, dist_info(names, "METADATA")))
    return [Requirement(value) for value in headers.get_all("Requires-Dist", [])]


def constraint_lines() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def dist_info(names: set[str], file: str) -> str:
    (name,) = [name for name in names if re.fullmatch(rf"[^/]+\.dist-info/{file}", name)]
    return name


def read_text(wheel: Path, name: str) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(name).decode()


@pytest.mark.packaging
class TestWheelContent:
    def test_is_pure_and_named_as_stated(self, wheel: Path, project: dict) -> None:
        assert wheel.name == f"sglang_xver-{project['version']}-py3-none-any.whl"

    def test_holds_the_three_packages_and_nothing_else(self, names: set[str]) -> None:
        top = {name.split("/")[0] for name in names}
        packages = {name for name in top if not name.endswith(".dist-info")}
        assert packages == {"sglang_xver", "compat_service", "xver"}

    def test_every_proto_comes_with_its_stubs(self, names: set[str]) -> None:
        protos = sorted((ROOT / "proto" / API_FOLDER).glob("*.proto"))
        assert protos
        expected = {
            str(API_FOLDER / f"{proto.stem}{suffix}")
            for proto in protos
            for suffix in (".proto", "_pb2.py", "_pb2.pyi", "_pb2_grpc.py")
        }
        assert expected <= names

    def test_every_migration_is_inside_the_service(self, names: set[str]) -> None:
        files = [
            path.relative_to(ROOT / "migrations")
            for path in (ROOT / "migrations").rglob("*")
            if path.is_file() and path.suffix != ".pyc"
        ]
        assert any(path.parts[0] == "versions" for path in files)
        assert {f"compat_service/migrations/{path}" for path in files} <= names

    @pytest.mark.parametrize("package", ["sglang_xver", "compat_service", "xver"])
    def test_is_typed(self, names: set[str], package: str) -> None:
        assert f"{package}/py.typed" in names

    def test_holds_no_build_leftovers(self, names: set[str]) -> None:
        assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]

    def test_holds_the_licence(self, names: set[str]) -> None:
        assert dist_info(names, "licenses/LICENSE")


@pytest.mark.packaging
class TestWheelWorksUnpacked:
    def run(self, unpacked: Path, code: str) -> str:
        # -I keeps the checkout off sys.path; dependencies still come from the environment.
        path = f"import sys; sys.path.insert(0, {str(unpacked)!r})\n"
        done = subprocess.run(
            [sys.executable, "-I", "-c", path + code], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def test_stubs_import(self, unpacked: Path) -> None:
        code = "from xver.compat.v1 import compat_pb2_grpc as m; print(m.__file__)"
        assert self.run(unpacked, code).startswith(str(unpacked))

    def test_service_imports_without_the_engine(self, unpacked: Path) -> None:
        code = (
            "import compat_service.cli as m; print(m.__file__)\n"
            f"loaded = sorted({ENGINE_PACKAGES!r} & set(sys.modules))\n"
            "assert not loaded, loaded"
        )
        assert self.run(unpacked, code).startswith(str(unpacked))

    def test_schema_upgrades_from_its_own_migrations(self, unpacked: Path, tmp_path: Path) -> None:
        database = tmp_path / "xver.db"
        code = (
            f"sys.argv = ['xver-compat', 'db', 'upgrade', '--db', 'sqlite:///{database}']\n"
            "from compat_service.cli import main\n"
            "main()"
        )
        self.run(unpacked, code)
        with closing(sqlite3.connect(database)) as connection:
            rows = connection.execute("SELECT version_num FROM alembic_version").fetchall()
        assert len(rows) == 1


@pytest.mark.packaging
class TestEntryPoints:
    def test_plugin_is_registered_with_sglang(self, entry_points: ConfigParser) -> None:
        plugins = dict(entry_points["sglang.srt.plugins"])
        assert plugins == {"xver": "sglang_xver.engine.plugin:register"}

    def test_both_sides_have_a_command(self, entry_points: ConfigParser) -> None:
        assert dict(entry_points["console_scripts"]) == {
            "xver-compat": "compat_service.cli:main",
            "sglang-xver": "sglang_xver.cli:main",
        }

    def test_every_target_is_defined(self, entry_points: ConfigParser, unpacked: Path) -> None:
        targets = [
            value for section in entry_points.sections() for value in entry_points[section].values()
        ]
        assert targets
        for target in targets:
            module, _, attribute = target.partition(":")
            assert attribute in defined_names(unpacked / module.replace(".", "/")), target


def defined_names(module: Path) -> set[str]:
    """Return top-level names of a module, read without importing it: the engine is slow to load."""
    path = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


@pytest.mark.packaging
class TestMetadata:
    @pytest.mark.parametrize("extra", ["", "service", "postgres"])
    def test_engine_is_no_dependency_of(self, requirements: list[Requirement], extra: str) -> None:
        required = {
            canonicalize_name(requirement.name)
            for requirement in requirements
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        }
        assert "grpcio" in required
        assert not required & ENGINE_PACKAGES

    def test_sglang_is_held_to_the_verified_range(self, requirements: list[Requirement]) -> None:
        (sglang,) = [item for item in requirements if item.name == "sglang"]
        assert sglang.specifier.contains("0.5.23")
        assert not sglang.specifier.contains("0.5.22")
        assert not sglang.specifier.contains("0.5.24")


class TestConstraints:
    def test_every_line_is_an_exact_pin(self) -> None:
        pin = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9.!+]+")
        odd = [line for line in constraint_lines() if not pin.fullmatch(line)]
        assert constraint_lines()
        assert not odd

    def test_every_dependency_is_pinned_within_its_range(
        self, project: dict, constraints: dict[str, str]
    ) -> None:
        groups = [project["dependencies"]]
        groups += [project["optional-dependencies"][extra] for extra in EXTRAS]
        for requirement in [Requirement(text) for group in groups for text in group]:
            version = constraints[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), f"{requirement} is pinned to {version}"

    def test_no_extra_is_forgotten(self, project: dict) -> None:
        assert set(project["optional-dependencies"]) == set(EXTRAS)
