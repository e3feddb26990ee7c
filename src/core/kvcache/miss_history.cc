#include "core/kvcache/miss_history.h"

#include <algorithm>
#include <utility>

namespace penstock::kvcache {

void MissHistory::note(const BlockName& name, MissReason reason, UnixSeconds when) {
  noted_.at(name) = {reason, when};
}

void MissHistory::describe(const BlockKey& root, std::string scope, std::string build) {
  roots_.at(root) = {std::move(scope), std::move(build)};
}

void MissHistory::first_block(std::uint64_t content_tag, const BlockKey& root,
                              const BlockKey& key) {
  auto& known = tags_.at(content_tag);
  std::erase_if(known, [&](const FirstBlock& first) { return first.root == root; });
  if (known.size() >= limits_.roots_of_tag_max) known.erase(known.begin());
  known.push_back({root, key});
}

std::optional<MissHistory::Noted> MissHistory::find(const BlockName& name) const {
  const Noted* const noted = noted_.find(name);
  return noted == nullptr ? std::nullopt : std::optional(*noted);
}

MissHistory::Explained MissHistory::elsewhere(const BlockKey& root, std::uint64_t content_tag,
                                              const Present& present) const {
  Explained result{MissReason::kNeverStored, {}, {}};
  const auto* const known = tags_.find(content_tag);
  const Root* const own = roots_.find(root);
  if (known == nullptr || own == nullptr) return result;
  for (const FirstBlock& first : *known) {
    const Root* const other = roots_.find(first.root);
    if (first.root == root || other == nullptr || !present({first.key, KvGroup::kHistory}))
      continue;
    // The own scope's blocks of another build are the nearer cause.
    if (other->scope == own->scope) return {MissReason::kOtherBuild, {}, first.root};
    result = {MissReason::kOtherScope, {}, first.root};
  }
  return result;
}

std::vector<MissHistory::Explained> MissHistory::explain(const BlockKey& root,
                                                         std::span<const BlockKey> keys,
                                                         std::uint64_t content_tag,
                                                         const Present& present) const {
  std::vector<Explained> result;
  result.reserve(keys.size());
  Explained unknown{MissReason::kNeverStored, {}, {}};
  for (const BlockKey& key : keys) {
    const BlockName name{key, KvGroup::kHistory};
    if (present(name)) {
      result.emplace_back();
    } else if (const Noted* const noted = noted_.find(name)) {
      result.push_back({noted->reason, noted->when, {}});
    } else {
      // Only a chain that this root never began can be somebody else's.
      if (result.empty()) unknown = elsewhere(root, content_tag, present);
      result.push_back(unknown);
    }
  }
  return result;
}

}  // namespace penstock::kvcache
