// The scripted engine: the embedded engine with tiny random weights, whose next token a script
// chooses. `--engine scripted --script FILE`.
//
// For tests of everything around the model, with conversations that no small model can hold. Only
// the logits are edited: sampling, constraints, the KV pool and cache, batches, handoffs and
// migration are those of the embedded engine, so is everything that reads the answer. It needs of
// the checkpoint folder tokenizer.json and config.json (vocab_size, eos_token_id), no weights.
//
// A script is a JSON file:
//   {"replies": [{"when": "text", "unless": "text", "think": "text", "say": "text",
//                 "fail_after": 5}, ...]}
// The first reply counts whose `when` stands in the prompt, as the model reads it, and whose
// `unless` does not. Both may be lists (all of `when`, any of `unless`) or be left out. `say` is
// what the model writes, in its own form: added tokens by their spelling; `think`
// stands before it, with `</think>`, where the prompt ends with `<think>`. After `fail_after`
// tokens the engine fails. A prompt that no reply fits gets random tokens.
//
// Errors: kInvalidArgument names the reply and key at fault, kIo the file. Concurrency: the
// engine's thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "engine/engine.h"

namespace penstock {

// `options` name the folder that lends its vocabulary; `script` is the file's text.
Result<std::unique_ptr<engine::Engine>> open_scripted_engine(engine::EngineOptions options,
                                                             std::string_view script);

}  // namespace penstock
