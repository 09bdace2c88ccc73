"""Who makes the runs of an experiment: processes here, those of one part, or a Ray cluster."""

from __future__ import annotations

from plumbline.experiments.pool import Workers
from plumbline.experiments.recipe import RecipeError
from plumbline.experiments.sharding import Shard, ShardWorkers


def workers_for(
    shard: str | None = None, workers: int | None = None, ray: str | None = None
) -> Workers:
    """Those that make an experiment's runs; a cluster has answered when this returns.

    Args:
        shard: One part of the runs, such as "3/16".
        workers: How many runs at a time, here.
        ray: The address of a cluster, as of ``ray_pool.connect``.

    Raises:
        RecipeError: If a cluster is given together with one of the others.
        ClusterError: If it does not answer.
    """
    if ray is None:
        return Workers(workers) if shard is None else ShardWorkers(Shard.parse(shard), workers)
    if shard is not None or workers is not None:
        raise RecipeError(
            "--ray leaves to the cluster which runs are made where, and how many at a time: leave "
            "out --shard and --workers."
        )
    from plumbline.experiments.ray_pool import RayWorkers

    return RayWorkers(ray)
