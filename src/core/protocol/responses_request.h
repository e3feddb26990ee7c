// OpenAI Responses request: bytes in, a checked ResponsesRequest out; the rest of the way it is a
// ChatRequest like any other.
//
// A request may go on from a stored response and may refer to stored items. What these are is the
// service's to fetch, so reading has two steps: parse_responses_request() checks everything that
// the body alone tells, and complete_conversation() puts in front what came before. When there is
// nothing to fetch the first step is enough.
//
// Declarations of hosted tools (web_search, ...), of custom tools and of namespaces are accepted
// whatever they hold, because agents send them always; the model is offered functions, those of
// namespaces included. Refused by name (kUnsupported): images and files, structured output,
// `conversation`, `prompt` templates, a tool_choice of anything but functions. Unknown fields are
// ignored, null means absent.
//
// Invariants: as ChatRequest, except that without `input` there may be no message until
// complete_conversation(); `echo` is the same for equal requests. Errors: as chat_request.h.
// Concurrency: pure. Source: facts/api.md 3.3; docs/protocol/api.md lists the test of each line.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/protocol/chat_request.h"
#include "core/protocol/json_document.h"
#include "core/protocol/responses_items.h"
#include "core/protocol/seal.h"

namespace penstock::protocol {

struct NamespacedFunction {
  std::string space;
  std::string name;
};
// By the name the model knows, for functions that a namespace declares.
using FunctionSpaces = std::map<std::string, NamespacedFunction, std::less<>>;

struct ResponsesRequest {
  ChatRequest chat;  // max_tokens is max_output_tokens
  std::string previous_response_id;
  std::vector<std::string> references;  // ids of stored items that the input names
  bool store = true;
  bool background = false;
  bool encrypted_reasoning = false;  // include: reasoning.encrypted_content
  FunctionSpaces spaces;
  // Members of the response object that repeat the request: comma-separated JSON on one line.
  std::string echo;

  bool needs_stored() const { return !previous_response_id.empty() || !references.empty(); }
};

// `body` is the whole request; it isn't needed afterwards.
Result<ResponsesRequest> read_responses_request(JsonRef body, const Seal& seal,
                                                const ChatLimits& limits = {});
// The same of its text.
Result<ResponsesRequest> parse_responses_request(std::string_view body, const Seal& seal,
                                                 const ChatLimits& limits = {});

// What came before this request: each a JSON array of items, oldest first (input of a response,
// then its output, ...); and the items that were referred to.
struct StoredContext {
  std::vector<std::string> items;
  ItemsById known;
};
// Rebuilds the conversation: instructions, what came before, the input of `body`.
Status complete_conversation(ResponsesRequest& request, JsonRef body, const Seal& seal,
                             const StoredContext& context);

// The input of a request as it is stored and listed: a JSON array of items, each with an id.
// References are replaced by what they refer to. `name` makes ids unique: "msg_<name>_i0".
// Precondition: the body was read, and completed when it had references.
std::string stored_input(JsonRef body, std::string_view name, const ItemsById& known);

}  // namespace penstock::protocol
