"""Random pipelines on every engine, compared with plain Python: the check of order and state.

An integer makes a case (``cases.py``): a pipeline of built-in stages (``stages.py``), an engine,
the points where training stops, or a stage fails, and resumes. ``judge.py`` runs it in new
processes (``trainer.py``, ``processes.py``) and compares

* the inline run with a model that knows nothing of the library (``model.py``, ``expected.py``),
* every engine with the inline run,
* every resumed run with the uninterrupted one.

``python tests/oracle 1234`` runs one case, ``python tests/oracle --minutes 5`` random ones.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "state"))  # numbered.py
