"""Starts and stops the server: `serve.py` does it all, with `ready.py` for the model, and `site.py` for HTTP.

The model may be loading when `serve.py` is imported: `srb/serving/early_loading.py`. `keeper.py` writes requests to the
history and goes on with them after a restart; `keeping.py` is how routes reach it, and `story_feed.py` tells watchers.
"""
