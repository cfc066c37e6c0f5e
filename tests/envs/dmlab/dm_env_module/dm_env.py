"""Stands for the package dm-env, of which nothing is used here."""
