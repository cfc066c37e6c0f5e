"""`seed benchmark` and `seed sweep`: suites of tasks that are trained and evaluated with several seeds each, and the
tables of their results. It may import `results` and `slurm` and what lies below them, and never TensorFlow: each run
is a process of `seed`. Nothing but `cli` imports it.
"""
