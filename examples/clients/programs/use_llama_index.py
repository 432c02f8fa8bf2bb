# needs: llama-index-llms-openai-like llama-index-llms-ollama
import os

from llama_index.llms.ollama import Ollama
from llama_index.llms.openai_like import OpenAILike

host, model = os.environ["HOST"], os.environ["MODEL"]
llm = OpenAILike(model=model, api_base=f"{host}/openai/v1", api_key="none", is_chat_model=False, max_tokens=8)
assert llm.complete("Once upon").text
assert "".join(part.delta for part in llm.stream_complete("Once upon"))
assert Ollama(model=model, base_url=host, additional_kwargs={"num_predict": 8}).complete("Say hello").text
