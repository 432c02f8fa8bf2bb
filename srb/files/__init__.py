"""Files on this machine: downloaded models (`download.py`), and cached states (`disk_cache.py`)."""
