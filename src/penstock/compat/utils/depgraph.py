"""``speechbrain.utils.depgraph``"""

from __future__ import annotations

from penstock.datasets.manifests.dependency_graph import DependencyGraph, DGNode
from penstock.errors import CircularDependencyError

__all__ = ["CircularDependencyError", "DGNode", "DependencyGraph"]
