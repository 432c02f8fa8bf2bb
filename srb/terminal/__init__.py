"""The commands that people run in a terminal: `srb generate`, `srb explore`, `srb compare` and `srb history`.

The first three send request bodies and read native events, whether a server answers or an engine in this process does.
"""
