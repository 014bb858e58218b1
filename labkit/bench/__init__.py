"""Measures labkit beside the tools that people use today, in the same run."""
