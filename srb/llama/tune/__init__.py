"""`srb tune`: which weights, attention and threads are fastest here.

`search.py` tries and decides, `probe.py` measures, `findings.py` judges, and `tuned.py` keeps the choice.
"""
