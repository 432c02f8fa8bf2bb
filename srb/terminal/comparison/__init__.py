"""`srb compare`: what a spec compares, how it runs, and what is reported of it.

`compare.py` is the command; begin with it. `spec.py` and `prompts.py` read what to compare, `running.py` runs it, and
`results.py` keeps what comes. `measures.py`, `statistics.py`, `scorers.py`, `rating.py` and `rate.py` judge the
texts, and `report.py` and `plots.py` show the judgement.

In: a spec, a TOML file. Out: a folder with `results.jsonl`, tables and a report.

A comparison is one request per prompt, with a branch for each setting and seed. The engine finds what prompts share. A
result has the hash of everything that it depends on, so that the same command can go on, and another command can't mix
its results in.
"""
