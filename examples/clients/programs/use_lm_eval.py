# needs: lm-eval[api]
import os

from lm_eval.api.instance import Instance
from lm_eval.models.gguf import GGUFLM

model = GGUFLM(base_url=f"{os.environ['HOST']}/openai")
request = Instance("loglikelihood", {}, ("Paris is the capital of", " France"), 0)
((logprob, _is_greedy),) = model.loglikelihood([request])
assert -20 < logprob < 0
