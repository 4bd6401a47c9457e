"""`python -m xstage`: the command line that the wheel brings."""

import os
import pathlib
import sys


def main() -> None:
    binary = os.environ.get("XSTAGE_CLI") or str(pathlib.Path(__file__).parent / "bin" / "xstage")
    if not os.access(binary, os.X_OK):
        sys.exit(f"{binary} is missing: install the wheel (./dev wheel), or name a built one in XSTAGE_CLI")
    os.execv(binary, [binary, *sys.argv[1:]])


if __name__ == "__main__":
    main()
