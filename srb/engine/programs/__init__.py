"""Results for programs that wait: texts, scores, embeddings (`texts.py`), and evaluated texts in files (`saved.py`)."""
