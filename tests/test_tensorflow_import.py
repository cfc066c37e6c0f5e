"""The import of TensorFlow: what it loads, and what it leaves unchanged."""

import subprocess
import sys

import pytest

SCRIPT = """
import gc, sys
from seedcli.tensorflow_import import import_tensorflow, start_quickly
if sys.argv[1] == "program":
    start_quickly()
import_tensorflow()
import keras
imported = "matplotlib.pyplot" in sys.modules
import matplotlib.pyplot
assert gc.isenabled() and (gc.get_freeze_count() > 0) == (sys.argv[1] == "program")
assert matplotlib.pyplot.figure and keras.layers.Dense
print(imported)
"""


@pytest.mark.parametrize(("process", "imported"), [("program", "False"), ("library", "True")])
def test_the_program_leaves_out_matplotlib_and_passes_over_what_is_imported(process: str, imported: str) -> None:
    command = [sys.executable, "-c", SCRIPT, process]
    result = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert result.stdout.strip() == imported
