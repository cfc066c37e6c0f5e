"""The commands of `seed`, one file each: arguments in, one function called, an exit status out. A command may import
anything below it, but only inside its function, so that `seed --help` never loads TensorFlow. It does not depend on
how a role works.
"""
