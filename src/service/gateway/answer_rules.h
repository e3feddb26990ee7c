// What an answer is held to: the client's format, its tool_choice, and its strict tools, as one
// constraint for the engine.
//
// A format is passed on as it came where no tool may be called, and has no say where a call is
// forced: then there is no text. Where a call is forced, a tool is strict, or an answer may be
// either calls or of the format, the constraint is the model family's grammar of whole answers. A
// tool that isn't strict and whose schema uses what no grammar can do is held to any object.
//
// Errors: kInvalidArgument and kUnsupported with the client's name of the field at fault: that of a
// tool's parameters, of the format, or "tool_choice". Concurrency: one shard. Source:
// docs/design/0011-structured-output.md.
#pragma once

#include <cstdint>

#include "core/grammar/checked_constraints.h"
#include "core/protocol/chat_request.h"
#include "service/gateway/model_catalog.h"

namespace penstock::gateway {

enum class AnswerShape : std::uint8_t {
  kUsual,
  kText,         // a format and nothing beside it: no mark of the model's has a meaning
  kJsonOrCalls,  // to be read by ChatEncoding::make_json_or_calls_parser()
};
// Sets request.constraint and what an engine's errors about it name. Precondition: the
// conversation's tools are those that may be called.
Result<AnswerShape> constrain_answer(protocol::ChatRequest& request, const ServedModel& model,
                                     grammar::CheckedConstraints& checked);

}  // namespace penstock::gateway
