"""A model's vocabulary and chat template without its weights, for a server whose engines are on other machines."""

from contextlib import ExitStack
from functools import cached_property

import llama_cpp

from srb.engine.model import ModelInfo
from srb.engine.sampling_params import SamplingParams
from srb.llama.grammar.matcher import LarkCompiler
from srb.llama.model.chat_template import chat_template_of
from srb.llama.model.loader import load_model
from srb.llama.model.metadata import read_model_info
from srb.llama.model.model_file import find_model, fingerprint
from srb.llama.model.tokenizer import LlamaTokenizer
from srb.llama.native.params import start
from srb.llama.sampling.compiled import CompiledSampling
from srb.options.settings import Settings


class Vocabulary:
    """The vocabulary of the settings' model file. Raises `ModelLoadError`. `close` must be called once.

    Attributes:
        model: a hash that identifies the model.
    """

    def __init__(self, settings: Settings) -> None:
        path = find_model(settings.model)
        start(settings)
        with ExitStack() as stack:
            model = load_model(path, settings, vocab_only=True)
            stack.callback(llama_cpp.llama_model_free, model)
            self.tokenizer = LlamaTokenizer(llama_cpp.llama_model_get_vocab(model))
            stack.callback(self.tokenizer.close)
            self.chat_template = chat_template_of(model, settings)
            self.model = fingerprint(path)
            self._path = path
            self._exit = stack.pop_all()
        self._lark = LarkCompiler(self.tokenizer)

    @cached_property
    def model_info(self) -> ModelInfo:
        """What the model's file says about the model. Raises `ModelLoadError`."""
        return read_model_info(self._path)

    def check(self, branches: tuple[SamplingParams, ...], n_cells: int) -> None:
        """Check that the samplers of all branches can be made. Raises `InvalidRequestError`, say for a bad grammar."""
        CompiledSampling(self.tokenizer, self._lark, n_cells, branches).close()

    def close(self) -> None:
        """Free the vocabulary."""
        self._exit.close()
