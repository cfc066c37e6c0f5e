"""The processes of a run: learner, actor, evaluator, `seed train` and the serial mode, each readable from top to
bottom. A role puts the parts below together and owns their threads. It knows nothing of the command line.
"""
