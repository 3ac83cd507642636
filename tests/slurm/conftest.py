"""A Slurm cluster for the tests of this folder: started once, stopped by its own process ids."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from experiments.faults.cluster import Cluster, missing

WHY_NOT = missing()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    if WHY_NOT is not None:
        pytest.skip(WHY_NOT)
    with Cluster(nodes=2, gpus=2) as started:
        yield started
