"""OpenAI's formats: completions (`reply.py`), chats (`chat.py`) and responses. `completions.py` chooses by the body."""
