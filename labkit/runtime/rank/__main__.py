"""A spawned rank: `python -m labkit.runtime.rank CHANNEL STDOUT STDERR PARENT`."""

from __future__ import annotations

import pickle
import sys

from labkit.runtime.rank.enter import enter
from labkit.runtime.rank.process import die_with_parent

if __name__ == "__main__":
    fds = [int(argument) for argument in sys.argv[1:4]]
    die_with_parent(int(sys.argv[4]))
    enter(pickle.load(sys.stdin.buffer), fds)
