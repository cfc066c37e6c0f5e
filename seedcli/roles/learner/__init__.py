"""The learner: its parts, its threads, what it reports, alone or as one of several hosts. It may import everything
below `roles`, and what roles share. No other part imports it but `roles.local` and `roles.serial`.
"""
