"""Several learner hosts of one run: which there are, how they find each other, agree and stop. It may import
`serving`, `training` and what lies below. It knows nothing of how one host runs its threads.
"""
