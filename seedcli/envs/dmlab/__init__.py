"""DeepMind Lab: its levels, actions and frames. It may import what `envs` may, and deepmind_lab when it is first
needed. No other family depends on it.
"""
