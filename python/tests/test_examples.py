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


@pytest.mark.torch
@pytest.mark.diffusers
def test_sparse_attention_in_wan():
    found = subprocess.run([sys.executable, EXAMPLES / "wan_sparse.py"], capture_output=True, text=True, timeout=240)
    assert found.returncode == 0, found.stderr
    dense, sparse = re.findall(r"density (\S+): video differs by (\S+), attention by at most (\S+)", found.stdout)
    assert [float(x) for x in dense] == [1, 0, 0]
    assert 0.75 < float(sparse[0]) <= 0.8 and 0 < float(sparse[1]) < 0.1 and 0 < float(sparse[2]) < 1
