"""One executable file that runs `seed`: for machines with Python and nothing else, written by `seed build` with pex
from the packages of this virtual environment. It may import `config`, `models` and `files`. Nothing but `cli` imports
it; what a file does once it runs is outside of it.
"""
