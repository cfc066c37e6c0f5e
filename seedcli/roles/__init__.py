"""The processes of a run: learner, actor, evaluator, `seed train` and the serial mode, each readable from top to
bottom. A role assembles the parts below it and owns their threads. It does not depend on the command line.
"""
