"""Importing is cheap and needs neither torch nor CUDA; the ABI by ctypes is the compiler's."""

import ctypes
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
import xstage
from xstage import _abi

HERE = pathlib.Path(__file__).parent
INCLUDE = HERE.parents[1] / "include"


def python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, timeout=120
    )


def test_importing_brings_neither_torch_nor_numpy_nor_the_library():
    code = (
        "import sys, xstage; heavy = [m for m in ('torch', 'numpy', 'ctypes', 'inspect') if m in sys.modules];"
        "assert not heavy, heavy; assert 'libxstage' not in open('/proc/self/maps').read()"
    )
    assert python(code).stderr == ""


def test_the_library_loads_without_cuda():
    code = (
        "from xstage import _abi; print(_abi.lib.xstage_version().decode());"
        "print('libcuda' in open('/proc/self/maps').read())"
    )
    found = python(code)
    assert found.stdout.split() == [xstage.__version__, "False"], found.stderr


def test_only_the_c_abi_is_exported():
    path = _abi._find()
    if shutil.which("nm") is None:
        pytest.skip("nm is not installed")
    names = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    names = [line.split()[-1] for line in names.splitlines()]
    assert len(names) > 30 and all(n.startswith("xstage_") for n in names), names


def test_a_missing_library_says_what_to_do():
    found = python("from xstage import _abi; _abi.lib.xstage_version()", XSTAGE_LIBRARY="/nowhere/libxstage.so")
    assert "XSTAGE_LIBRARY" in found.stderr and "./dev wheel" in found.stderr


def test_the_command_line_comes_along():
    if "XSTAGE_CLI" not in os.environ and not (pathlib.Path(xstage.__file__).parent / "bin/xstage").exists():
        pytest.skip("no command line binary: set XSTAGE_CLI")
    found = subprocess.run([sys.executable, "-m", "xstage", "--help"], capture_output=True, text=True, timeout=60)
    assert found.returncode == 0 and "predict" in found.stdout


def test_structures_are_laid_out_as_the_headers_say(tmp_path):
    compiler = shutil.which("cc")
    if compiler is None or not INCLUDE.exists():
        pytest.skip("no C compiler, or no headers beside the tests")
    structures = [
        kind
        for kind in vars(_abi).values()
        if isinstance(kind, type) and issubclass(kind, ctypes.Structure) and hasattr(kind, "_fields_")
    ]
    special = {"LseView": "lse_view"}
    lines, expected = [], []
    for kind in structures:
        name = "xstage_" + special.get(kind.__name__, re.sub(r"(?<!^)([A-Z])", r"_\1", kind.__name__).lower())
        lines.append(f'printf("%zu\\n", sizeof({name}));')
        expected.append(ctypes.sizeof(kind))
        for field, _ in kind._fields_:
            lines.append(f'printf("%zu\\n", offsetof({name}, {field}));')
            expected.append(getattr(kind, field).offset)
    source = tmp_path / "layout.c"
    source.write_text(
        '#include <stdio.h>\n#include "xstage/xstage_moe.h"\n#include "xstage/xstage_sparse.h"\nint main(void) {\n'
        + "\n".join(lines)
        + "\n}\n"
    )
    subprocess.run([compiler, "-I", INCLUDE, source, "-o", tmp_path / "layout"], check=True)
    found = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True).stdout.split()
    assert [int(x) for x in found] == expected
    assert len(structures) == 22
