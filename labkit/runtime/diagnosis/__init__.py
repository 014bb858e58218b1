"""Why ranks do not go on: told from the events that each of them records.

Pure Python: no torch, no clock, no input or output. Read bottom-up: `findings` (what is
told), `agreement` (which calls fit together), `needs` (whom a call cannot end without),
`matching` (which call belongs to which), `progress` (who can still move), `ledger` (all
of it, fed with events), `report` (in words).
"""

from labkit.runtime.diagnosis.findings import (
    Differs,
    Doing,
    Fault,
    Finding,
    Groups,
    State,
)
from labkit.runtime.diagnosis.ledger import Ledger
from labkit.runtime.diagnosis.report import Report, doing_text, report

__all__ = [
    "Differs",
    "Doing",
    "Fault",
    "Finding",
    "Groups",
    "Ledger",
    "Report",
    "State",
    "doing_text",
    "report",
]
