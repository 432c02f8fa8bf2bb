# needs: lm-eval[api]
import os

from lm_eval.api.instance import Instance
from lm_eval.models.gguf import GGUFLM
from lm_eval.models.openai_completions import LocalCompletionsAPI

# At /v1 lm-eval uses the server's tokenizer, and needs no other.
by_tokens = LocalCompletionsAPI(
    base_url=f"{os.environ['HOST']}/v1/completions", model=os.environ["MODEL"], batch_size=2, max_length=2048
)
assert by_tokens.tokenizer_backend == "remote"
by_text = GGUFLM(base_url=f"{os.environ['HOST']}/openai")
cities = " France", " Peru"
requests = [Instance("loglikelihood", {}, ("Paris is the capital of", city), k) for k, city in enumerate(cities)]
france, peru = by_tokens.loglikelihood(requests)
assert -20 < peru[0] < france[0] < 0
for (logprob, greedy), (same, also) in zip(by_text.loglikelihood(requests), (france, peru), strict=True):
    assert abs(logprob - same) < 0.01
    assert greedy == also
until = Instance("generate_until", {}, ("Once upon a", {"until": ["."], "max_gen_toks": 8}), 0)
(text,) = by_tokens.generate_until([until])
assert text
