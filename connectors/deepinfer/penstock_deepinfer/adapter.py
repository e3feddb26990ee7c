"""The one place that knows DeepInfer's names.

Everything else of this worker speaks in requests and steps. What is assumed of the engine is in
DeepInferEngine and listed in README.md; whoever has the hardware changes this class only.

An engine has: `vocab_size`, `context_length`, `kv_tokens_total`, `version`; `submit(Request)`,
`cancel(request_id)`, `step()` -> list of Progress, `kv_tokens_used`, `running`, `waiting`.
Errors: Refused for a request that can't be served; anything else ends the worker, and its
supervisor starts it again. Concurrency: one thread.
"""
import dataclasses


class Refused(Exception):
    """A request that this engine can't serve; `code` as in ErrorCode of src/base/result.h."""

    INVALID_ARGUMENT, CONTEXT_LENGTH, UNSUPPORTED = 0, 1, 2

    def __init__(self, code, message, field=""):
        super().__init__(message)
        self.code = code
        self.field = field


@dataclasses.dataclass
class Request:
    request_id: int
    tokens: list  # of the prompt, and of what was emitted elsewhere
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int  # 0: all
    seed: int
    stop_token_ids: list
    ignore_eos: bool


@dataclasses.dataclass
class Progress:
    request_id: int
    tokens: list
    finish: str = ""  # "", "stop" or "length"
    cached_tokens: int = 0


class DeepInferEngine:
    """DeepInfer's offline engine, a step at a time."""

    def __init__(self, checkpoint, **options):
        import deepinfer

        self._deepinfer = deepinfer
        self._engine = deepinfer.Engine(model=checkpoint, **options)
        self.version = f"deepinfer {deepinfer.__version__}"
        self.vocab_size = self._engine.vocab_size
        self.context_length = self._engine.max_model_len
        self.kv_tokens_total = self._engine.kv_cache_tokens

    @property
    def kv_tokens_used(self):
        return self._engine.kv_cache_tokens_used

    @property
    def running(self):
        return self._engine.num_running

    @property
    def waiting(self):
        return self._engine.num_waiting

    def submit(self, request):
        if len(request.tokens) + request.max_tokens > self.context_length:
            raise Refused(Refused.CONTEXT_LENGTH,
                          f"{len(request.tokens)} tokens and {request.max_tokens} of the answer do not fit "
                          f"the context of {self.context_length}")
        self._engine.add_request(
            request.request_id, request.tokens,
            self._deepinfer.SamplingParams(
                max_tokens=request.max_tokens, temperature=request.temperature, top_p=request.top_p,
                top_k=request.top_k, seed=request.seed, stop_token_ids=request.stop_token_ids,
                ignore_eos=request.ignore_eos))

    def cancel(self, request_id):
        self._engine.abort_request(request_id)

    def step(self):
        return [Progress(out.request_id, list(out.new_token_ids), out.finish_reason or "", out.num_cached_tokens)
                for out in self._engine.step()]
