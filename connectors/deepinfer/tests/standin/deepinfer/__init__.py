"""Has the surface of DeepInfer that the adapter uses, and repeats its prompts: for tests.

One token a step and request; `fail_at` makes step() raise, as a device fault would.
"""
import dataclasses
import os

__version__ = "0.1.0+standin"


@dataclasses.dataclass
class SamplingParams:
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    stop_token_ids: list
    ignore_eos: bool


@dataclasses.dataclass
class Output:
    request_id: int
    new_token_ids: list
    finish_reason: str
    num_cached_tokens: int


class Engine:
    def __init__(self, model):
        self.vocab_size = 2048
        self.max_model_len = 4096
        self.kv_cache_tokens = 65536
        self._requests = {}
        self._steps = 0
        self._fail_at = int(os.environ.get("STANDIN_FAIL_AT", "0"))

    @property
    def kv_cache_tokens_used(self):
        return sum(len(prompt) + made for prompt, _, made in self._requests.values())

    @property
    def num_running(self):
        return len(self._requests)

    num_waiting = 0

    def add_request(self, request_id, prompt_token_ids, params):
        self._requests[request_id] = [prompt_token_ids, params, 0]

    def abort_request(self, request_id):
        self._requests.pop(request_id, None)

    def step(self):
        self._steps += 1
        if self._steps == self._fail_at:
            raise RuntimeError("the device is gone")
        out = []
        for request_id, state in list(self._requests.items()):
            prompt, params, made = state
            token = prompt[made % len(prompt)]
            state[2] = made + 1
            stops = token in params.stop_token_ids and not params.ignore_eos
            finish = "stop" if stops else "length" if made + 1 >= params.max_tokens else ""
            if finish:
                del self._requests[request_id]
            out.append(Output(request_id, [token], finish, 0))
        return out
