"""Texts to tokens and back (`tokenizer.py`), and chats to texts (`chat_template.py`)."""
