"""The examples run, and say what they should."""

import pathlib
import re
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


@pytest.mark.torch
def test_the_block_before_and_after():
    found = subprocess.run([sys.executable, EXAMPLES / "dit_block.py"], capture_output=True, text=True, timeout=240)
    errors = [float(x) for x in re.findall(r"largest difference (\S+)", found.stdout)]
    assert found.returncode == 0, found.stderr
    assert len(errors) == 2 and max(errors) < 1e-2
