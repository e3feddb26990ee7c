#include "io/control/engine_codec.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

namespace penstock::control {
namespace {

constexpr std::uint64_t kKvTokensMax = std::uint64_t{1} << 48;
constexpr std::uint32_t kRequestsMax = 1U << 24;
constexpr std::size_t kIdBytes = sizeof(TokenId);
static_assert(std::endian::native == std::endian::little, "ids are little-endian on the wire");
// A logprob is at most 0; the slack is for an engine that sums in single precision.
constexpr float kLogprobMax = 0.01F;

// Seconds that a model of cost may hold: finite, not negative, below a day.
bool is_cost(double seconds) {
  return seconds >= 0 && seconds < 86400;  // NaN is not
}

std::unexpected<Error> broken(std::string message) {
  return fail(ErrorCode::kDataLoss, std::move(message));
}

void encode(const SamplingParams& in, wire::Sampling& out) {
  out.set_temperature(in.temperature);
  out.set_top_p(in.top_p);
  out.set_top_k(in.top_k);
  out.set_min_p(in.min_p);
  out.set_presence_penalty(in.presence_penalty);
  out.set_frequency_penalty(in.frequency_penalty);
  out.set_repetition_penalty(in.repetition_penalty);
  out.set_seed(in.seed);
  for (const auto& [token, bias] : in.logit_bias) {
    wire::LogitBias& entry = *out.add_logit_bias();
    entry.set_token(token);
    entry.set_bias(bias);
  }
  out.mutable_stop_token_ids()->Add(in.stop_token_ids.begin(), in.stop_token_ids.end());
  out.set_ignore_eos(in.ignore_eos);
  out.set_top_logprobs(in.top_logprobs);
  out.set_choices(in.choices);
  out.set_max_tokens(in.max_tokens);
}

SamplingParams decode(const wire::Sampling& in) {
  SamplingParams out;
  out.temperature = in.temperature();
  out.top_p = in.top_p();
  out.top_k = in.top_k();
  out.min_p = in.min_p();
  out.presence_penalty = in.presence_penalty();
  out.frequency_penalty = in.frequency_penalty();
  out.repetition_penalty = in.repetition_penalty();
  out.seed = in.seed();
  out.logit_bias.reserve(static_cast<std::size_t>(in.logit_bias_size()));
  for (const wire::LogitBias& entry : in.logit_bias()) {
    out.logit_bias.emplace_back(entry.token(), entry.bias());
  }
  out.stop_token_ids.assign(in.stop_token_ids().begin(), in.stop_token_ids().end());
  out.ignore_eos = in.ignore_eos();
  out.top_logprobs = in.top_logprobs();
  out.choices = in.choices();
  out.max_tokens = in.max_tokens();
  return out;
}

wire::Finish to_wire(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return wire::FINISH_STOP;
    case FinishReason::kLength:
      return wire::FINISH_LENGTH;
    case FinishReason::kCancelled:
      return wire::FINISH_CANCELLED;
    case FinishReason::kHandedOff:
      return wire::FINISH_HANDED_OFF;
    case FinishReason::kError:
      return wire::FINISH_ERROR;
  }
  return wire::FINISH_ERROR;
}

wire::Role to_wire(WorkerRole role) {
  switch (role) {
    case WorkerRole::kMixed:
      return wire::ROLE_MIXED;
    case WorkerRole::kPrefill:
      return wire::ROLE_PREFILL;
    case WorkerRole::kDecode:
      return wire::ROLE_DECODE;
  }
  return wire::ROLE_MIXED;
}

Status decode_place(const wire::WorkerHello& hello, WorkerDescription& worker) {
  if (hello.zone().size() > kErrorTextMax || hello.transport().size() > kErrorTextMax ||
      hello.step_group().size() > kErrorTextMax) {
    return broken("the worker's zone, transport address or step group is too long");
  }
  if (hello.role() < wire::ROLE_MIXED || hello.role() > wire::ROLE_DECODE) {
    return broken(fmt::format("unknown role {}", static_cast<int>(hello.role())));
  }
  worker.role = hello.role() == wire::ROLE_PREFILL  ? WorkerRole::kPrefill
                : hello.role() == wire::ROLE_DECODE ? WorkerRole::kDecode
                                                    : WorkerRole::kMixed;
  if (worker.role != WorkerRole::kMixed && hello.transport().empty()) {
    return broken("a prefill or decode worker without a transport");
  }
  worker.zone = hello.zone();
  worker.transport = hello.transport();
  worker.step_group = hello.step_group();
  return {};
}

Status decode_finish(const wire::Output& in, EngineOutput& out) {
  switch (in.finish()) {
    case wire::FINISH_NONE:
      break;
    case wire::FINISH_STOP:
      out.finish = FinishReason::kStop;
      break;
    case wire::FINISH_LENGTH:
      out.finish = FinishReason::kLength;
      break;
    case wire::FINISH_CANCELLED:
      out.finish = FinishReason::kCancelled;
      break;
    case wire::FINISH_HANDED_OFF:
      out.finish = FinishReason::kHandedOff;
      break;
    case wire::FINISH_ERROR: {
      if (in.error_code() > static_cast<std::uint32_t>(ErrorCode::kInternal)) {
        return broken(fmt::format("unknown error code {}", in.error_code()));
      }
      if (in.error_message().size() > kErrorTextMax || in.error_field().size() > kErrorTextMax) {
        return broken("error text is too long");
      }
      out.finish = FinishReason::kError;
      out.error =
          Error{static_cast<ErrorCode>(in.error_code()), in.error_message(), in.error_field(), {}};
      break;
    }
    default:
      return broken(fmt::format("unknown finish reason {}", static_cast<int>(in.finish())));
  }
  return {};
}

// Checks that the logprob arrays fit the tokens; after this they can be walked without looking.
Status check_logprob_counts(const wire::Output& in, const OutputShape& shape) {
  if (shape.top_logprobs < 0) {
    if (in.logprobs_size() + in.top_counts_size() + in.top_tokens_size() + in.top_logprobs_size() !=
        0) {
      return broken("logprobs that nobody asked for");
    }
    return {};
  }
  if (in.logprobs_size() != in.tokens_size() || in.top_counts_size() != in.tokens_size()) {
    return broken(fmt::format("{} tokens with {} logprobs and {} counts", in.tokens_size(),
                              in.logprobs_size(), in.top_counts_size()));
  }
  std::uint64_t sum = 0;
  for (const std::uint32_t count : in.top_counts()) {
    if (count > static_cast<std::uint32_t>(shape.top_logprobs)) {
      return broken(fmt::format("{} alternatives, {} asked for", count, shape.top_logprobs));
    }
    sum += count;
  }
  if (sum != static_cast<std::uint64_t>(in.top_tokens_size()) ||
      sum != static_cast<std::uint64_t>(in.top_logprobs_size())) {
    return broken(fmt::format("alternatives: counts say {}, there are {} tokens and {} logprobs",
                              sum, in.top_tokens_size(), in.top_logprobs_size()));
  }
  return {};
}

Status check_values(const wire::Output& in, std::uint32_t vocab_size) {
  const auto is_token = [&](std::uint32_t token) { return token < vocab_size; };
  const auto is_logprob = [](float logprob) { return logprob <= kLogprobMax; };  // NaN is not
  if (!std::ranges::all_of(in.tokens(), is_token) ||
      !std::ranges::all_of(in.top_tokens(), is_token)) {
    return broken(fmt::format("a token id outside the vocabulary of {}", vocab_size));
  }
  if (!std::ranges::all_of(in.logprobs(), is_logprob) ||
      !std::ranges::all_of(in.top_logprobs(), is_logprob)) {
    return broken("a logprob that is positive or not a number");
  }
  return {};
}

std::string_view prompt_bytes(const TokenIds& prompt) {
  if (prompt == nullptr) return {};
  return {reinterpret_cast<const char*>(prompt->data()), prompt->size() * kIdBytes};
}

// The tag of a field of bytes, and how many follow.
void append_length(int field, std::size_t size, std::string& out) {
  using google::protobuf::internal::WireFormatLite;
  google::protobuf::uint8 bytes[10];
  google::protobuf::uint8* end = google::protobuf::io::CodedOutputStream::WriteTagToArray(
      WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED), bytes);
  end = google::protobuf::io::CodedOutputStream::WriteVarint32ToArray(
      static_cast<std::uint32_t>(size), end);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(end - bytes));
}

Result<TokenIds> decode_prompt(std::string_view bytes) {
  if (bytes.size() % kIdBytes != 0) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the prompt has {} bytes, ids of {} bytes each don't fill them",
                            bytes.size(), kIdBytes),
                "prompt");
  }
  std::vector<TokenId> ids(bytes.size() / kIdBytes);
  if (!ids.empty()) std::memcpy(ids.data(), bytes.data(), bytes.size());
  return std::make_shared<const std::vector<TokenId>>(std::move(ids));
}

// The length of the valid UTF-8 character at the start of `text`; 0 when there is none.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  const unsigned second = byte(1);
  if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
      (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F)) {
    return 0;
  }
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return 0;
  }
  return length;
}

}  // namespace

std::string clean_utf8(std::string_view text, std::size_t bytes_max) {
  std::string out;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (out.size() + std::max<std::size_t>(length, 1) > bytes_max) break;
    if (length == 0) {
      out.push_back('?');
    } else {
      out.append(text.substr(0, length));
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return out;
}

void encode(const EngineRequest& request, wire::Submit& submit) {
  encode_without_prompt(request, submit);
  submit.mutable_prompt()->assign(prompt_bytes(request.prompt));
}

std::size_t submit_bytes(const wire::Submit& submit, const TokenIds& prompt) {
  constexpr std::size_t kTagsAndLengths = 16;
  return submit.ByteSizeLong() + prompt_bytes(prompt).size() + kTagsAndLengths;
}

void append_submit(const wire::Submit& submit, const TokenIds& prompt, std::string& frame) {
  const std::string_view ids = prompt_bytes(prompt);
  std::string inside;  // of the message, up to the ids
  submit.SerializeToString(&inside);
  if (!ids.empty()) append_length(wire::Submit::kPromptFieldNumber, ids.size(), inside);
  append_length(wire::GatewayFrame::kSubmitsFieldNumber, inside.size() + ids.size(), frame);
  frame.append(inside);
  frame.append(ids);
}

void encode_without_prompt(const EngineRequest& request, wire::Submit& submit) {
  submit.set_request_id(request.id.value);
  submit.set_model(request.model);
  encode(request.sampling, *submit.mutable_sampling());
  submit.mutable_emitted()->Add(request.emitted.begin(), request.emitted.end());
  submit.set_cache_scope(clean_utf8(request.cache.scope, kErrorTextMax));
  submit.set_cache_tenant(clean_utf8(request.cache.tenant, kErrorTextMax));
  submit.set_cache_class(clean_utf8(request.cache.ttl_class, kErrorTextMax));
  submit.set_cache_request(clean_utf8(request.cache.request, kErrorTextMax));
  submit.set_rank(request.rank);
  if (request.constraint) {
    wire::Constraint& out = *submit.mutable_constraint();
    out.set_kind(static_cast<wire::Constraint::Kind>(request.constraint.kind));
    out.set_text(request.constraint.text);
    if (request.constraint.after) out.set_after(*request.constraint.after);
  }
  const HandoffRef& handoff = request.handoff;
  if (handoff.leg == Leg::kWhole) return;
  wire::Handoff& out = *submit.mutable_handoff();
  out.set_decode(handoff.leg == Leg::kDecode);
  out.set_id_high(handoff.id.high);
  out.set_id_low(handoff.id.low);
  out.set_source(clean_utf8(handoff.source, kErrorTextMax));
  out.set_source_epoch(handoff.source_epoch.value);
}

Result<EngineRequest> decode(const wire::Submit& submit) {
  if (submit.model().size() > kErrorTextMax) {
    return fail(ErrorCode::kInvalidArgument, "the model's name is too long", "model");
  }
  EngineRequest request;
  request.id = RequestId(submit.request_id());
  request.model = submit.model();
  TRY(request.prompt, decode_prompt(submit.prompt()));
  request.sampling = decode(submit.sampling());
  request.emitted.assign(submit.emitted().begin(), submit.emitted().end());
  request.cache = {submit.cache_scope(), submit.cache_tenant(), submit.cache_class(),
                   submit.cache_request()};
  request.rank = submit.rank();
  if (submit.has_constraint()) {
    const wire::Constraint& in = submit.constraint();
    if (!wire::Constraint::Kind_IsValid(in.kind()) || in.kind() == wire::Constraint::NONE) {
      return fail(ErrorCode::kUnsupported,
                  "the constraint is of a kind that this worker doesn't know", "response_format");
    }
    request.constraint = {static_cast<Constraint::Kind>(in.kind()), in.text(), std::nullopt};
    if (in.has_after()) request.constraint.after = in.after();
  }
  if (!submit.has_handoff()) return request;
  const wire::Handoff& in = submit.handoff();
  if (in.source().size() > kErrorTextMax || in.decode() == in.source().empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "a decode leg names its prefill worker, and only a decode leg does", "handoff");
  }
  request.handoff = {in.decode() ? Leg::kDecode : Leg::kPrefill,
                     {in.id_high(), in.id_low()},
                     in.source(),
                     Epoch(in.source_epoch())};
  return request;
}

void encode(const WorkerDescription& worker, wire::WorkerHello& hello) {
  hello.set_worker_epoch(worker.epoch.value);
  hello.set_name(clean_utf8(worker.name, kErrorTextMax));
  hello.set_engine(clean_utf8(worker.engine, kErrorTextMax));
  hello.set_protocol_version(kProtocolVersion);
  hello.set_role(to_wire(worker.role));
  hello.set_zone(clean_utf8(worker.zone, kErrorTextMax));
  hello.set_step_group(clean_utf8(worker.step_group, kErrorTextMax));
  hello.set_transport(clean_utf8(worker.transport, kErrorTextMax));
  for (const ModelDescription& model : worker.models) {
    wire::Model& out = *hello.add_models();
    out.set_name(model.name);
    out.set_checkpoint_dir(model.checkpoint_dir);
    out.set_context_length(model.context_length);
    out.set_vocab_size(model.vocab_size);
    out.set_bit_exact(model.bit_exact);
    wire::KvIdentity& kv = *out.mutable_kv();
    kv.set_weights_digest(model.kv.weights_digest);
    kv.set_engine_build(model.kv.engine_build);
    kv.set_kv_format(model.kv.kv_format);
    kv.set_block_tokens(model.kv.block_tokens);
    kv.set_window_tokens(model.kv.window_tokens);
    out.set_kv_token_bytes(model.kv_token_bytes);
  }
}

Result<WorkerDescription> decode(const wire::WorkerHello& hello) {
  if (hello.protocol_version() != kProtocolVersion) {
    return broken(fmt::format("protocol version {}, this build speaks {}", hello.protocol_version(),
                              kProtocolVersion));
  }
  if (static_cast<std::size_t>(hello.models_size()) > kModelsMax) {
    return broken(fmt::format("{} models, more than {}", hello.models_size(), kModelsMax));
  }
  if (hello.name().size() > kErrorTextMax || hello.engine().size() > kErrorTextMax) {
    return broken("the worker's name is too long");
  }
  WorkerDescription worker;
  worker.epoch = Epoch(hello.worker_epoch());
  worker.name = hello.name();
  worker.engine = hello.engine();
  TRY_STATUS(decode_place(hello, worker));
  std::unordered_set<std::string_view> names;
  for (const wire::Model& model : hello.models()) {
    if (model.name().empty() || model.name().size() > kErrorTextMax ||
        model.checkpoint_dir().size() > kErrorTextMax || !names.insert(model.name()).second) {
      return broken("a model whose name is empty, too long or given twice");
    }
    if (model.vocab_size() == 0 || model.vocab_size() > kVocabMax || model.context_length() == 0 ||
        model.context_length() > kContextMax) {
      return broken(fmt::format("model {} with a vocabulary of {} and a context of {}",
                                model.name(), model.vocab_size(), model.context_length()));
    }
    const wire::KvIdentity& kv = model.kv();
    if (kv.block_tokens() > kContextMax || kv.window_tokens() > kContextMax ||
        kv.ByteSizeLong() > kErrorTextMax) {
      return broken(fmt::format("model {} with an absurd identity of its KV", model.name()));
    }
    worker.models.push_back({model.name(),
                             model.checkpoint_dir(),
                             model.context_length(),
                             model.vocab_size(),
                             model.bit_exact(),
                             {kv.weights_digest(), kv.engine_build(), kv.kv_format(),
                              kv.block_tokens(), kv.window_tokens()},
                             model.kv_token_bytes()});
  }
  return worker;
}

void encode(const EngineLoad& load, std::uint32_t rank, wire::RankLoad& out) {
  out.set_rank(rank);
  out.set_running(load.running);
  out.set_waiting(load.waiting);
  out.set_kv_tokens_used(static_cast<std::uint64_t>(load.kv_tokens_used.value));
  out.set_kv_tokens_total(static_cast<std::uint64_t>(load.kv_tokens_total.value));
  out.set_step(load.step);
  out.set_model(load.model);
  wire::CacheUse& cache = *out.mutable_cache();
  cache.set_loads(load.cache.loads);
  cache.set_loads_overlapped(load.cache.loads_overlapped);
  cache.set_hit_tokens(load.cache.hit_tokens);
  cache.set_offers(load.cache.offers);
  cache.set_offers_dropped(load.cache.offers_dropped);
  cache.set_scopes_refused(load.cache.scopes_refused);
  out.set_prompt_tokens_waiting(load.prompt_tokens_waiting);
  out.set_prefill_base(load.prefill.base);
  out.set_prefill_token(load.prefill.per_token);
  out.set_prefill_pair(load.prefill.per_pair);
}

Result<std::vector<EngineLoad>> decode(
    const google::protobuf::RepeatedPtrField<wire::RankLoad>& loads, std::size_t models) {
  if (static_cast<std::size_t>(loads.size()) > kRanksMax) {
    return broken(fmt::format("{} ranks, more than {}", loads.size(), kRanksMax));
  }
  std::vector<EngineLoad> out;
  out.reserve(static_cast<std::size_t>(loads.size()));
  for (const wire::RankLoad& load : loads) {
    if (load.rank() != out.size() || load.model() >= models) {
      return broken(fmt::format("load of rank {} (model {}) at place {}", load.rank(), load.model(),
                                out.size()));
    }
    if (load.running() > kRequestsMax || load.waiting() > kRequestsMax ||
        load.kv_tokens_total() > kKvTokensMax || load.kv_tokens_used() > load.kv_tokens_total()) {
      return broken(fmt::format("absurd load: {} running, {} waiting, {} of {} KV tokens",
                                load.running(), load.waiting(), load.kv_tokens_used(),
                                load.kv_tokens_total()));
    }
    const PrefillCoefficients cost{load.prefill_base(), load.prefill_token(), load.prefill_pair()};
    if (load.prompt_tokens_waiting() > kKvTokensMax || !is_cost(cost.base) ||
        !is_cost(cost.per_token) || !is_cost(cost.per_pair)) {
      return broken(fmt::format("absurd load: {} prompt tokens waiting, prefill {} + {} + {}",
                                load.prompt_tokens_waiting(), cost.base, cost.per_token,
                                cost.per_pair));
    }
    out.push_back(
        {load.step(),
         load.running(),
         load.waiting(),
         Tokens(static_cast<std::int64_t>(load.kv_tokens_used())),
         Tokens(static_cast<std::int64_t>(load.kv_tokens_total())),
         load.model(),
         {load.cache().loads(), load.cache().loads_overlapped(), load.cache().hit_tokens(),
          load.cache().offers(), load.cache().offers_dropped(), load.cache().scopes_refused()},
         load.prompt_tokens_waiting(),
         cost});
  }
  return out;
}

void encode(const HandoffUse& use, wire::HandoffUse& out) {
  out.set_open(use.open);
  out.set_blocks_held(use.blocks_held);
  out.set_pulls_running(use.pulls_running);
  out.set_released(use.released);
  out.set_expired(use.expired);
  out.set_withdrawn(use.withdrawn);
  out.set_pulls_done(use.pulls_done);
  out.set_pulls_failed(use.pulls_failed);
  out.set_bytes_pulled(use.bytes_pulled);
  out.set_slices_corrupt(use.slices_corrupt);
  out.mutable_edges()->Add(use.edges.begin(), use.edges.end());
}

Result<HandoffUse> decode(const wire::HandoffUse& in) {
  if (static_cast<std::size_t>(in.edges_size()) > kHandoffEdgesMax)
    return broken(
        fmt::format("{} edges of handoffs, more than {}", in.edges_size(), kHandoffEdgesMax));
  return HandoffUse{in.open(),
                    in.blocks_held(),
                    in.pulls_running(),
                    in.released(),
                    in.expired(),
                    in.withdrawn(),
                    in.pulls_done(),
                    in.pulls_failed(),
                    in.bytes_pulled(),
                    in.slices_corrupt(),
                    {in.edges().begin(), in.edges().end()}};
}

void append(const EngineOutput& output, bool has_logprobs, wire::Output& out) {
  out.set_request_id(output.request.value);
  out.set_choice(output.choice);
  if (out.tokens().empty()) out.set_index(output.index);
  for (const OutputToken& token : output.tokens) {
    out.add_tokens(token.token);
    if (!has_logprobs) continue;
    out.add_logprobs(token.logprob);
    out.add_top_counts(static_cast<std::uint32_t>(token.top.size()));
    for (const TokenLogprob& alternative : token.top) {
      out.add_top_tokens(alternative.token);
      out.add_top_logprobs(alternative.logprob);
    }
  }
  if (output.cached_tokens != 0) out.set_cached_tokens(output.cached_tokens);
  if (!output.finish) return;
  out.set_finish(to_wire(*output.finish));
  if (!output.error) return;
  out.set_error_code(static_cast<std::uint32_t>(output.error->code));
  out.set_error_message(clean_utf8(output.error->message, kErrorTextMax));
  out.set_error_field(clean_utf8(output.error->field, kErrorTextMax));
}

Result<EngineOutput> decode(const wire::Output& in, const OutputShape& shape) {
  if (in.choice() >= shape.choices) {
    return broken(fmt::format("choice {} of {}", in.choice(), shape.choices));
  }
  if (in.cached_tokens() > shape.prompt_tokens) {
    return broken(
        fmt::format("{} cached tokens of a prompt of {}", in.cached_tokens(), shape.prompt_tokens));
  }
  TRY_STATUS(check_logprob_counts(in, shape));
  TRY_STATUS(check_values(in, shape.vocab_size));
  EngineOutput out;
  out.request = RequestId(in.request_id());
  out.choice = in.choice();
  out.index = in.index();
  out.cached_tokens = in.cached_tokens();
  TRY_STATUS(decode_finish(in, out));
  out.tokens.reserve(static_cast<std::size_t>(in.tokens_size()));
  int next_top = 0;
  for (int i = 0; i < in.tokens_size(); ++i) {
    OutputToken token{in.tokens(i), 0.0F, {}};
    if (shape.top_logprobs >= 0) {
      token.logprob = in.logprobs(i);
      const int end = next_top + static_cast<int>(in.top_counts(i));
      token.top.reserve(in.top_counts(i));
      for (; next_top < end; ++next_top) {
        token.top.push_back({in.top_tokens(next_top), in.top_logprobs(next_top)});
      }
    }
    out.tokens.push_back(std::move(token));
  }
  return out;
}

}  // namespace penstock::control
