"""The list of vendors: a new one is a folder beside this file, its import and its name here.

What needs the engine itself is the server's own, whoever invented it: slots, adapters, kept responses. All folders but
`openai/` and `native/` can be removed; others write their answers with these two.
"""

from srb.wire.anthropic.routes import ROUTES as ANTHROPIC
from srb.wire.kobold.routes import ROUTES as KOBOLD
from srb.wire.llama_server.routes import ROUTES as LLAMA_SERVER
from srb.wire.native.routes import ROUTES as NATIVE
from srb.wire.ollama.routes import ROUTES as OLLAMA
from srb.wire.openai.routes import ROUTES as OPENAI
from srb.wire.tokenize import ROUTES as TOKENS

ROUTES = (*NATIVE, *OPENAI, *TOKENS, *LLAMA_SERVER, *KOBOLD, *ANTHROPIC, *OLLAMA)
"""The routes of all vendors."""
