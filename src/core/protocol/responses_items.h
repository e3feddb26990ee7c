// The items of the Responses API: read into messages, and written as they are stored and listed.
// Internal to core/protocol; see responses_request.h.
//
// What one assistant turn consists of (reasoning, a message, calls) comes as items of its own here
// and is one Message inside, so that a conversation gives the same prompt in either API: a turn
// begins at reasoning, at a message when there is one already, or at a call that follows something
// else. Functions of a namespace are one flat list for the model: `namespace` + "__" + `name`.
//
// Errors: as json_fields.h, with the path in the item's own document. Concurrency: pure.
// Source: facts/api.md 3.3.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/protocol/json_fields.h"
#include "core/protocol/seal.h"
#include "domain/conversation.h"

namespace penstock::protocol {

// Items by id, as JSON.
using ItemsById = std::map<std::string, std::string, std::less<>>;

class ResponseItemReader {
 public:
  // Without `known` a reference is noted and skipped; with it, it is read or is an error.
  ResponseItemReader(const Seal& seal, const ItemsById* known) : seal_(seal), known_(known) {}

  Status read(JsonRef item);
  // A JSON array of items.
  Status read_all(std::string_view items);

  const std::vector<Message>& messages() const { return messages_; }
  std::vector<Message> take() { return std::move(messages_); }
  // Ids that were referred to.
  const std::vector<std::string>& references() const { return references_; }

 private:
  Message& assistant_turn(bool fresh);
  Status read_message(JsonRef item);
  Status read_reasoning(JsonRef item);
  Status read_call(JsonRef item, bool custom);
  Status read_output(JsonRef item);
  Status read_reference(JsonRef item);
  Status read_compaction(JsonRef item);

  const Seal& seal_;
  const ItemsById* known_;
  std::vector<Message> messages_;
  std::vector<std::string> references_;
  bool turn_open_ = false;  // the last message is an assistant turn that goes on
};

// What the model calls a function of a namespace.
std::string flat_function_name(std::string_view space, std::string_view name);

// The item as it is stored and listed: with type and id, a message's content as parts.
// `fallback_id` is used when it has none. Precondition: ResponseItemReader took it.
std::string listed_item(JsonRef item, std::string_view fallback_id);
// The same for `input` as a string.
std::string listed_text(std::string_view text, std::string_view fallback_id);
// "msg", "fc", ...: how ids of items of this kind begin.
std::string_view item_id_prefix(JsonRef item);

}  // namespace penstock::protocol
