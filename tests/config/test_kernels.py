"""oneDNN's kernels are used where a network with convolutions is trained, unless the user decides otherwise."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import os, sys
from seedcli.config.sources import load_config
from seedcli.tensorflow_import import import_tensorflow
for preset in sys.argv[1:]:
    load_config(preset, environ={})
import_tensorflow()
from tensorflow.python.util import _pywrap_util_port
print(_pywrap_util_port.IsMklEnabled(), os.environ.get("TF_ENABLE_ONEDNN_OPTS"))
"""


def enabled(*presets: str, setting: str | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "TF_ENABLE_ONEDNN_OPTS"}
    if setting is not None:
        environment["TF_ENABLE_ONEDNN_OPTS"] = setting
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, *presets],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
        env=environment,
    ).stdout.strip()


def test_a_network_with_convolutions_enables_them_for_this_process_alone() -> None:
    assert enabled("pong_vtrace") == "True None"


def test_a_network_without_convolutions_leaves_tensorflows_default() -> None:
    assert enabled("cartpole_vtrace") == enabled()


@pytest.mark.parametrize("setting", ["0", "1"])
def test_the_users_setting_takes_precedence(setting: str) -> None:
    assert enabled("pong_vtrace", "cartpole_vtrace", setting=setting) == f"{setting == '1'} {setting}"
