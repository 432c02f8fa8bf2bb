"""The wire formats: they turn JSON into requests, and events into JSON. They know nothing of HTTP.

The server and the terminal use them.
"""
