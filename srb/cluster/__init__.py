"""Replicas of the engine on Ray Serve: the only home of ray."""
