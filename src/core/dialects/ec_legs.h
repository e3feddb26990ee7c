// The encoder legs of a multimodal request: vLLM's encoder disaggregation (EC connector).
//
// Each media item of a chat goes alone to an encode engine, which computes its embeddings and says
// in its reply where they are, by the item's hash; what all replies say, merged, goes into the body
// of the engine that computes the prompt. An encode engine that says nothing shares its storage
// with that one, which finds them by the hash. Items that stand twice are encoded once.
//
// Invariants: an item is passed in its own bytes; what replies say is opaque: no byte changes.
// Errors: none; what is not as expected has no media, or says nothing. Concurrency: pure.
// Source: facts/engines.md 4.6.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dialects/json_body.h"

namespace penstock::dialects {

// The media of a chat's messages (images, videos, audio), as they stand, each once, in their order.
std::vector<std::string_view> media_items(const JsonBody& body);
// Of the body for one item's encode leg.
std::vector<Edit> encode_edits(const JsonBody& body, std::string_view item);
// Takes what a reply says into `merged`, the members of an object without its braces. False: the
// reply is none.
bool merge_encoded(std::string_view reply, std::string& merged);
// What the engine that computes the prompt is told; nothing when no reply said anything.
std::optional<Edit> encoded_edit(std::string_view merged);

}  // namespace penstock::dialects
