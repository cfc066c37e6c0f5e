"""What `import seedcli` offers in Python: play a trained agent, start a training, read a run. It may import everything
but `cli` and the tools beside it; TensorFlow only where an agent is built. Nothing else imports it: `seedcli` itself
finds these names when they are first used.
"""
