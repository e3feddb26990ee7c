// Any bytes as a tokenizer.json: an error or a tokenizer that works.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "core/prompt/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace penstock;
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = Tokenizer::from_json(json);
  if (!tokenizer) {
    ENSURE(!tokenizer.error().message.empty());
    return 0;
  }
  // The file itself, and a text that the usual patterns cut in many ways.
  const std::string_view texts[] = {json.substr(0, 64),
                                    "It's 12345 \xE4\xB8\xAD\xE6\x96\x87\r\n  e\xCC\x81 <s>"};
  for (const std::string_view text : texts) {
    std::vector<TokenId> ids;
    if (!(*tokenizer)->encode(text, ids)) continue;
    for (const TokenId id : ids)
      ENSURE(id < (*tokenizer)->vocab_size());
    (void)(*tokenizer)->decode(ids, Tokenizer::Special::kSkip);
    (void)(*tokenizer)->encode_with_added_tokens(text, ids);
  }
  return 0;
}
