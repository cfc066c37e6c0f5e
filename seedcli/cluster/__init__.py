"""Several learner hosts of one run: which hosts there are, how they find each other, agree and stop.

It may import `serving`, `training` and the layers below. It knows nothing of the threads within a host.
"""
