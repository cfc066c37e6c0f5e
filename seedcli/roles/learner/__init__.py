"""The learner: its parts, its threads and its reports, alone or as one of several hosts. It may import everything below
`roles`, and what roles share. Only `roles.local` and `roles.serial` import it.
"""
