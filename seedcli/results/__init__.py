"""Runs after the fact: their folders read into NumPy arrays, statistics over seeds, plots, tables and reports. It may
import `roles.run_folder`, `roles.sessions` and what lies below them, and never TensorFlow. It trains and plays nothing.
"""
