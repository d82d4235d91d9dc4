"""What pytest leaves alone when it collects doctests from src/."""

from __future__ import annotations

# Its docstrings are those of the stages, word for word, and run where the stages are defined.
collect_ignore = ["src/penstock/pipeline/fluent.py"]
