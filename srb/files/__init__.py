"""The files that srb keeps on this machine: downloaded models (`download.py`), retained states (`disk_cache.py`).

`cache_folder.py` says where they are. `progress.py` shows how far a long wait is, for downloads and all else.
"""
