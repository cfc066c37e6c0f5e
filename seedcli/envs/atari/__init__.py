"""Atari games in ale-py's vector environment. It may import what `envs` may, and ale-py when it is first needed. No
other family depends on it.
"""
