import os
import tempfile
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def elsewhere():
    """Nothing is written in the tests' folders."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        yield
        os.chdir(before)
