"""The list of vendors: a new one is a folder beside this file, its import and its name here.

What needs the engine itself is the server's own, whoever invented it: slots, adapters, kept responses. All folders but
`openai/` and `native/` can be removed; others write their answers with these two.
"""

from srb.wire.anthropic import ROUTES as ANTHROPIC
from srb.wire.kobold import ROUTES as KOBOLD
from srb.wire.llama_server import ROUTES as LLAMA_SERVER
from srb.wire.native import ROUTES as NATIVE
from srb.wire.ollama import ROUTES as OLLAMA
from srb.wire.openai import ROUTES as OPENAI
from srb.wire.tokenize import ROUTES as TOKENS

ROUTES = (*NATIVE, *OPENAI, *TOKENS, *LLAMA_SERVER, *KOBOLD, *ANTHROPIC, *OLLAMA)
"""The routes of all vendors."""
