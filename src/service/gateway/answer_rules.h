// What an answer is held to: the client's format, its tool_choice, and its strict tools, as one
// constraint for the engine.
//
// A format is passed on as it came, where no call is forced: then there is no text. Where a call is
// forced or a tool is strict, the constraint is the model family's grammar of whole answers.
// A tool that isn't strict and whose schema uses what no grammar can do is held to any object.
//
// Errors: kInvalidArgument and kUnsupported with the client's name of the field at fault: that of a
// tool's parameters, of the format, or "tool_choice". Concurrency: one shard. Source:
// docs/design/0011-structured-output.md.
#pragma once

#include "core/grammar/checked_constraints.h"
#include "core/protocol/chat_request.h"
#include "service/gateway/model_catalog.h"

namespace penstock::gateway {

// Sets request.constraint and what an engine's errors about it name. Precondition: the
// conversation's tools are those that may be called.
Status constrain_answer(protocol::ChatRequest& request, const ServedModel& model,
                        grammar::CheckedConstraints& checked);

}  // namespace penstock::gateway
