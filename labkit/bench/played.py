"""What a rank does to be watched: very many short spans, at an even pace."""

from __future__ import annotations

import time

from labkit.record.recorder import span

NAMES = ("forward", "backward", "optimizer")
PERIOD_S = 0.005


def play(num_spans: int, duration_s: float, rest_s: float = 0.0) -> int:
    """Open and close `num_spans` spans in `duration_s`, then rest; how many it was."""
    start_s, done = time.monotonic(), 0
    while done < num_spans:
        time.sleep(PERIOD_S)
        share = min(1.0, (time.monotonic() - start_s) / duration_s)
        due = int(share * num_spans)
        for number in range(done, due):
            with span(NAMES[number % len(NAMES)]):
                pass
        done = due
    time.sleep(rest_s)
    return done
