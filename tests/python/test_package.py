"""The package as users get it: wheel, sdist, types."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import gvmm

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.sim]


def run(*command: object, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "GVMM_"))}
    result = subprocess.run(
        [str(part) for part in command], env={**clean, **environment}, text=True, capture_output=True, timeout=600
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def has(module: str) -> bool:
    return subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True).returncode == 0


needs_backend = pytest.mark.skipif(not has("scikit_build_core") or not has("pip"), reason="no scikit-build-core or pip")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without a network and without a toolkit."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "--no-index", "-w", folder, ROOT)
    [path] = folder.glob("*.whl")
    return path


@needs_backend
def test_one_wheel_for_all_pythons(wheel):
    assert wheel.name.startswith(f"gvmm-{gvmm.__version__}-cp310-abi3-linux_")
    names = zipfile.ZipFile(wheel).namelist()
    inside = {name.removeprefix("gvmm/") for name in names if name.startswith("gvmm/")}
    assert inside >= {"__init__.py", "py.typed", "_gvmm.pyi", "_gvmm.abi3.so", "sim.py"}
    assert not [name for name in names if name.endswith((".a", ".h", ".cmake", ".c"))]


@needs_backend
def test_the_wheel_needs_nothing_but_libc(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    needed = run("readelf", "-d", tmp_path / "gvmm" / "_gvmm.abi3.so")
    libraries = [line.split("[")[1].rstrip("]") for line in needed.splitlines() if "(NEEDED)" in line]
    libc = {"libc.so.6", "libpthread.so.0", "libdl.so.2", "libm.so.6"}
    assert [name for name in libraries if name not in libc and not name.startswith("ld-linux")] == []
    symbols = run("nm", "-D", "--defined-only", tmp_path / "gvmm" / "_gvmm.abi3.so").split()
    assert symbols[2::3] == ["PyInit__gvmm", "gvmm_torch_free", "gvmm_torch_malloc"]


@needs_backend
def test_the_wheel_works(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    program = "import gvmm; b = gvmm.VirtualMemoryResource(0).allocate(1); print(b.size, gvmm.__file__)"
    for python in {sys.executable, *other_pythons()}:
        out = run(python, "-W", "error", "-c", program, PYTHONPATH=str(tmp_path), GVMM_DRIVER="sim")
        assert out == f"2097152 {tmp_path}/gvmm/__init__.py\n"


def other_pythons() -> list[str]:
    """Whichever later and earlier ones are on the path, from 3.10 on."""
    found = []
    for minor in range(10, 16):
        command = [f"python3.{minor}", "-c", "import sys; print(sys.executable)"]
        try:
            result = subprocess.run(command, text=True, capture_output=True)
        except OSError:
            continue
        if result.returncode == 0:
            found.append(result.stdout.strip())
    return found


@needs_backend
def test_the_sdist_holds_what_the_build_needs(tmp_path):
    program = f"import scikit_build_core.build as b, os; os.chdir({str(ROOT)!r}); print(b.build_sdist({str(tmp_path)!r}))"
    name = run(sys.executable, "-c", program).splitlines()[-1]
    names = {Path(member).relative_to(Path(member).parts[0]).as_posix() for member in tarfile.open(tmp_path / name).getnames()}
    for folder in ("include", "src", "sim"):
        sources = {p.relative_to(ROOT).as_posix() for p in (ROOT / folder).rglob("*.[ch]")}
        assert sources <= names
    assert {"CMakeLists.txt", "LICENSE", "pyproject.toml", "python/CMakeLists.txt", "docs/python.md"} <= names
    assert not [name for name in names if name.startswith("build/")]


@pytest.mark.skipif(not has("mypy"), reason="no mypy")
class TestTypes:
    def test_the_package_is_typed(self, tmp_path):
        run(sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path, ROOT / "python" / "gvmm")

    def test_the_stubs_are_true(self, tmp_path):
        """As far as a program can tell: every name and signature of the extension."""
        where = str(Path(gvmm.__file__).parents[1])
        run(
            sys.executable, "-m", "mypy.stubtest", "gvmm", "--ignore-missing-stub", "--ignore-unused-allowlist",
            "--allowlist", Path(__file__).parent / "stubtest.txt", "--mypy-config-file", "/dev/null",
            PYTHONPATH=where, MYPYPATH=where, MYPY_CACHE_DIR=str(tmp_path),
        )  # fmt: skip

    def test_programs_are_checked(self, tmp_path):
        good = tmp_path / "good.py"
        good.write_text(
            "import gvmm\n"
            "mr = gvmm.VirtualMemoryResource(0, {'self_access': 'r'})\n"
            "with mr.allocate(1, stream=1) as b:\n"
            "    size: int = mr.modify_allocation(b, 2).size\n"
            "    b.fill(b'ab', stream=gvmm.Stream())\n"
            "view = memoryview(b)\n"
        )
        bad = tmp_path / "bad.py"
        bad.write_text("import gvmm\ngvmm.VirtualMemoryResource(0).allocate('1')\ngvmm.stats().nothing\n")
        where = str(Path(gvmm.__file__).parents[1])
        run(sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache", good, MYPYPATH=where)
        with pytest.raises(AssertionError, match="Found 2 errors"):
            run(sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "cache", bad, MYPYPATH=where)
