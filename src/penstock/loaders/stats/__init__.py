"""Measurements of a running loader, and how they are displayed and exported.

recorder     records times and counts while the loader runs
stats        the result of loader.stats()
bottleneck   names the bottleneck and the remedy
progress     a progress bar with the statistics
exporters    as a table, HTML, Prometheus' text format, a trace
"""
