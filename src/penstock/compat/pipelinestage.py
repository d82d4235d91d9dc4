"""``PipelineStage``, which several modules of WebDataset have.

In a separate module, because ``penstock.utils`` and ``penstock.compat.utils`` would each define a
different class.
"""

from __future__ import annotations

import abc
from typing import Any

from penstock.pipeline.data_pipeline import DataPipeline
from penstock.stages.stage import Stage


class PipelineStage(abc.ABC):  # noqa: B024 - for register
    """A base class for custom stages: define ``run(source)``, which returns an iterator.

    The library's stages and pipelines are registered as subclasses.
    """

    def invoke(self, *args: Any, **kw: Any) -> Any:
        raise NotImplementedError


PipelineStage.register(Stage)
PipelineStage.register(DataPipeline)
