# needs: langchain-openai
import os

from langchain_openai import ChatOpenAI, OpenAI

where = {"base_url": f"{os.environ['HOST']}/openai/v1", "api_key": "none", "model": os.environ["MODEL"]}
chat = ChatOpenAI(max_tokens=8, **where)
assert chat.invoke("Say hello").content
assert "".join(chunk.content for chunk in chat.stream("Say hello"))
assert OpenAI(max_tokens=5, n=2, best_of=2, **where).generate(["Once upon"]).generations[0][1].text
