# needs: koboldapi
import os

from koboldapi import KoboldAPI

api = KoboldAPI(os.environ["HOST"])
assert api.get_model()
assert api.count_tokens("Once upon a time")
assert api.generate(prompt="Once upon", max_length=8)
