#!/usr/bin/env python3
"""Renames a wheel's platform to the manylinux tag that its binaries really need.

    tag_wheel.py xstage-0.1.0-py3-none-linux_x86_64.whl DIRECTORY

The newest versioned glibc symbol decides; a library that manylinux does not allow is an error.
"""

import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

# Of those that PEP 600 expects everywhere; libraries of C++ and CUDA are linked in.
ALLOWED = {"libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "ld-linux-x86-64.so.2"}


def main(wheel: str, directory: str) -> None:
    newest = (2, 17)
    with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not name.startswith(("xstage/lib/", "xstage/bin/")):
                continue
            path = archive.extract(name, folder)
            text = subprocess.run(["objdump", "-T", "-p", path], capture_output=True, text=True, check=True).stdout
            needed = set(re.findall(r"NEEDED\s+(\S+)", text))
            if not needed <= ALLOWED:
                sys.exit(f"{name} needs {', '.join(sorted(needed - ALLOWED))}")
            for major, minor in re.findall(r"GLIBC_(\d+)\.(\d+)", text):
                newest = max(newest, (int(major), int(minor)))
    tag = f"manylinux_{newest[0]}_{newest[1]}_x86_64"
    renamed = subprocess.run(
        [sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", tag, wheel],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    target = pathlib.Path(directory) / renamed
    pathlib.Path(wheel).with_name(renamed).replace(target)
    print(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
