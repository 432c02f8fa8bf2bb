"""The files that srb keeps on this machine: downloaded models (`download.py`), retained states (`disk_cache.py`).

`cache_folder.py` says where they are.
"""
