// libFuzzer entry: a gateway's view of a hostile worker, bytes to checked outputs.
//
// The input is a stream as FramedSocket reads it (length, message, ...). Two requests are open and
// one of them forgotten. Whatever is accepted must satisfy what FrameChecker promises.
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>

#include "base/check.h"
#include "io/control/frame_checker.h"

namespace {

using namespace penstock;           // NOLINT: a fuzzer has one file
using namespace penstock::control;  // NOLINT

EngineRequest request(std::uint64_t id, std::uint32_t choices, std::int32_t top_logprobs) {
  EngineRequest r;
  r.id = RequestId(id);
  r.model = "m";
  r.prompt = std::make_shared<const std::vector<TokenId>>(std::vector<TokenId>{1, 2});
  r.sampling.choices = choices;
  r.sampling.top_logprobs = top_logprobs;
  r.sampling.max_tokens = 8;
  return r;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FrameChecker checker;
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::size_t> tokens;
  bool opened = false;
  while (size >= 4) {
    const std::size_t length = std::min<std::size_t>(data[0] | std::size_t{data[1]} << 8, size - 4);
    wire::WorkerFrame frame;
    const bool parsed = frame.ParseFromArray(data + 4, static_cast<int>(length));
    data += 4 + length;
    size -= 4 + length;
    if (!parsed) return 0;
    const auto outputs = checker.check(frame);
    if (!outputs) return 0;
    for (const EngineOutput& output : *outputs) {
      ENSURE(output.request.value == 1 && output.choice < 2);
      for (const OutputToken& token : output.tokens) {
        ENSURE(token.token < checker.description().models[0].vocab_size);
        ENSURE(token.top.size() <= 2);
      }
      auto& sum = tokens[{output.request.value, output.choice}];
      sum += output.tokens.size();
      ENSURE(sum <= 8);
    }
    if (std::exchange(opened, true)) continue;
    checker.asked(1);
    for (std::uint64_t id = 1; id <= 2; ++id) {
      if (!checker.opened(request(id, 2, id == 1 ? 2 : -1))) return 0;
    }
    checker.forgotten(RequestId(2));
  }
  return 0;
}
