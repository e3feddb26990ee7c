// Seal: how text of ours travels through a client that must neither read nor change it.
//
// Reasoning goes out as `encrypted_content` and comes back with the next turn, a compaction
// likewise. The service gives the functions, bound to the deployment's key and to the owner of the
// request, so nobody opens what another was given. `purpose` names what the text is; it opens for
// the same purpose only. Concurrency: as the functions given.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace penstock::protocol {

inline constexpr std::string_view kSealedReasoning = "reasoning";
inline constexpr std::string_view kSealedCompaction = "compaction";

struct Seal {
  std::function<std::string(std::string_view purpose, std::string_view text)> close;
  // Nothing when it was sealed elsewhere, for somebody else, for another purpose, or changed.
  std::function<std::optional<std::string>(std::string_view purpose, std::string_view sealed)> open;
};

}  // namespace penstock::protocol
