"""The Python API: play a trained agent, start a training, read a run. It may import everything but `cli`, and
TensorFlow only where an agent is built. No other package imports it: `seedcli` loads its names when they are
first used.
"""
