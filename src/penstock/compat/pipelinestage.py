"""``PipelineStage``, which several modules of WebDataset have, in one place so that it is one.

``penstock.utils`` and ``penstock.compat.utils`` would each make their own.
"""

from __future__ import annotations

import abc
from typing import Any

from penstock.pipeline.data_pipeline import DataPipeline
from penstock.stages.stage import Stage


class PipelineStage(abc.ABC):  # noqa: B024 - for register
    """A base for stages of one's own: give it ``run(source)``, an iterator of what comes out.

    The stages and pipelines of the library count as such.
    """

    def invoke(self, *args: Any, **kw: Any) -> Any:
        raise NotImplementedError


PipelineStage.register(Stage)
PipelineStage.register(DataPipeline)
