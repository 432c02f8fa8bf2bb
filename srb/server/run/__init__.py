"""Starts and stops the server: `serve.py` does it all, with `listen.py` for the address and `ready.py` for the model.

`keeping.py` writes requests to the history and goes on with them after a restart; `story_feed.py` tells watchers.
"""
