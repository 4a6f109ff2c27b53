"""What ``make demo`` shows. It takes a while, and is a file of its own for that."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.promise
@pytest.mark.timeout(900)  # Java starts several times, beside other tests
def test_the_demo_runs() -> None:
    done = subprocess.run([sys.executable, "-m", "toril.demo"], capture_output=True, text=True, check=True)
    assert "Nothing was lost." in done.stdout
