"""The list of vendors. To add a vendor, add a package, and its import and name here.

Routes that need the engine itself are the server's own, even if others defined them: slots, adapters, stored responses.
All packages but `openai/` and `native/` can be removed; others build their responses with these two.
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
