"""Numbers of a record: step time, exposed communication, bubble, bandwidth, MFU."""

from labkit.record.measure.measures import Measures, measure

__all__ = ["Measures", "measure"]
