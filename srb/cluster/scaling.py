"""Says how many replicas there should be, if their number may change. Ray Serve calls this in a process of its own."""

import math
from typing import Any


def replicas_wanted(context: Any) -> tuple[int, dict[str, Any]]:
    """The number of replicas that have room for all alternatives that wait or run. Serve keeps it within the limits.

    context: Ray Serve's `AutoscalingContext`, with the metrics of `Replica.record_autoscaling_stats`.
    """
    metrics = context.aggregated_metrics or {}
    there, room = (list(metrics.get(name, {}).values()) for name in ("there", "room"))
    if not there or not room:
        return context.target_num_replicas, {}
    return max(1, math.ceil(sum(there) / (sum(room) / len(room)))), {}
