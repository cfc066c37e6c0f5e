"""Plots, tables and reports of runs: their folders read into NumPy arrays, and statistics over seeds. It may
import `roles.run_folder`, `roles.sessions` and what lies below them, and never TensorFlow. It trains and plays nothing.
"""
