"""What goes out of an engine.

`events.py` has the events, which are all that others see; begin with it. `outbox.py` makes them of what happens,
`text.py` turns tokens into text and finds stop strings, and `reports.py` is what is told of tokens beside their text.
`stats.py` counts.
"""
