// Domain values <-> proto/engine.proto: pure conversions, one message each.
//
// Encoding never fails. Decoding takes what a peer sent and checks the shape of the one message;
// what depends on earlier messages (steps, finishes, open requests) is FrameChecker's business.
//
// Invariants: decode(encode(x)) equals x for every value within its documented ranges. Strings that
// go out are valid UTF-8 (protobuf refuses to parse others): stray bytes become '?'.
// Errors: kDataLoss for what a worker may not send, kInvalidArgument for what a gateway may not.
// Concurrency: pure. Source: docs/protocol/engine.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "domain/engine.h"
#include "domain/experts.h"
#include "engine.pb.h"

namespace penstock::control {

namespace wire = ::penstock::engine::v1;

inline constexpr std::uint32_t kProtocolVersion = 2;
// Both ways; a prompt of 1M tokens takes 4 MB, so a much smaller limit would refuse it.
inline constexpr std::size_t kMessageBytesMax = std::size_t{32} << 20;
inline constexpr std::size_t kModelsMax = 1024;
inline constexpr std::size_t kRanksMax = 4096;
inline constexpr std::size_t kHandoffEdgesMax = 256;
inline constexpr std::size_t kErrorTextMax = 4096;  // bytes of an error message on the wire
inline constexpr std::uint32_t kVocabMax = 1U << 24;
inline constexpr std::uint32_t kContextMax = 1U << 28;

void encode(const EngineRequest& request, wire::Submit& submit);
// All but the prompt, which append_submit() writes.
void encode_without_prompt(const EngineRequest& request, wire::Submit& submit);
// Appends a Submit with that prompt to the bytes of a GatewayFrame, as protobuf would: an agent's
// prompt of 140 KB is copied once, not twice. Precondition: `submit` has no prompt of its own.
void append_submit(const wire::Submit& submit, const TokenIds& prompt, std::string& frame);
// What append_submit() appends, at most.
std::size_t submit_bytes(const wire::Submit& submit, const TokenIds& prompt);
Result<EngineRequest> decode(const wire::Submit& submit);

void encode(const WorkerDescription& worker, wire::WorkerHello& hello);
// The id is the gateway's own name for the worker and is left for the caller.
Result<WorkerDescription> decode(const wire::WorkerHello& hello);

void encode(const EngineLoad& load, std::uint32_t rank, wire::RankLoad& out);
// Checks ranks 0..n-1 in order, models in range, used <= total and no absurd counts.
Result<std::vector<EngineLoad>> decode(
    const google::protobuf::RepeatedPtrField<wire::RankLoad>& loads, std::size_t models);

void encode(const HandoffUse& use, wire::HandoffUse& out);
Result<HandoffUse> decode(const wire::HandoffUse& in);

inline constexpr std::size_t kExpertLayersMax = 1024;
inline constexpr std::size_t kExpertsMax = 16'384;                  // of a layer
inline constexpr std::size_t kExpertSlotsMax = 65'536;              // of a layer
inline constexpr std::size_t kExpertMapMax = std::size_t{1} << 22;  // slots of a map
void encode(const ExpertMap& map, wire::ExpertMap& out);
// Checks that the sizes are possible and fit each other, and that all experts exist.
Result<ExpertMap> decode(const wire::ExpertMap& in);
void encode(const ExpertUse& use, wire::ExpertUse& out);
Result<std::vector<ExpertUse>> decode(
    const google::protobuf::RepeatedPtrField<wire::ExpertUse>& uses);
// All of an answer but its number.
void encode(const Result<ExpertReport>& report, wire::ExpertAnswer& out);
// The worker's refusal is the inner error.
Result<Result<ExpertReport>> decode(const wire::ExpertAnswer& in);

// Adds `output` to `out`, which is new or holds earlier tokens of the same request and choice.
void append(const EngineOutput& output, bool has_logprobs, wire::Output& out);

// What the outputs of a request must look like.
struct OutputShape {
  std::uint32_t choices = 1;
  std::uint32_t vocab_size = 0;
  std::int32_t top_logprobs = -1;
  std::uint64_t prompt_tokens = 0;  // with those emitted elsewhere
};
Result<EngineOutput> decode(const wire::Output& output, const OutputShape& shape);

// `text` with every byte that is not part of valid UTF-8 replaced by '?', cut to `bytes_max`.
std::string clean_utf8(std::string_view text, std::size_t bytes_max);

}  // namespace penstock::control
