"""A plugin of pytest (`-p without_llama`) that hides llama-cpp-python, which the quick tests must not need."""

import sys

sys.modules["llama_cpp"] = None  # type: ignore[assignment]  # importing it then fails as if it weren't installed
