// One answer of an emulator: its legs, its timing, its shape on the wire.
// Internal to service/emulate. Concurrency: shard thread only.
#pragma once

#include <string>
#include <vector>

#include "service/emulate/emulator.h"

namespace penstock::emulate {

class Emulator::Answer {
 public:
  struct Setting {
    Faults faults;
    std::size_t rank = 0;
  };
  Answer(Emulator& emulator, HttpExchange& exchange, const dialects::JsonBody& body,
         dialects::WireApi api, const Setting& setting, bool& gone);
  ~Answer();
  Answer(const Answer&) = delete;
  Answer& operator=(const Answer&) = delete;
  Task<void> run();

 private:
  // Reads what it is told of another leg; false when they are wrong, and then refusal_ is the
  // answer.
  bool read_legs();
  bool read_mooncake(std::string_view params);
  void read_room();
  bool read_media();
  // From the prefill leg; not: it did not come.
  Task<bool> fetch();
  Task<bool> fetch_from(Upstream& peer, Instant until);
  Task<void> fetch_blocks();
  // For the decode leg, which SGLang's prefill waits for.
  Task<bool> offer();
  Task<void> refuse(int status);
  void use_cache();
  std::string hold_blocks();
  Task<void> whole();
  Task<void> stream();
  // The text so far of a whole answer, and the events of a stream.
  std::string whole_body(const std::string& text) const;
  std::string first_events();
  std::string word_event(const std::string& word);
  std::string last_events(const std::string& text);
  static std::string tool_of(const dialects::JsonBody& body);
  std::string name(std::string_view prefix) const;
  std::string piece(const std::string& word) const;
  std::string finish() const;
  std::string item(std::string_view status, std::string_view text) const;
  std::string response(std::string_view status, std::string_view output,
                       std::string_view usage) const;
  std::string chat_event(std::string_view delta, std::string_view finish) const;
  std::string response_event(std::string_view type, const std::string& rest);
  std::string at_item() const;
  std::string usage_json() const;
  std::string word_ids(std::uint32_t from, std::uint32_t count) const;
  // Sends what the cut leaves; false when the answer ends here.
  Task<bool> send(std::string bytes);

  Emulator& emulator_;
  HttpExchange& exchange_;
  const dialects::JsonBody& body_;
  const dialects::WireApi api_;
  const Faults faults_;
  const std::size_t rank_;
  bool& gone_;  // the client
  const std::uint64_t answer_id_;
  const std::string tool_;  // that the answer calls; empty: it is text
  std::uint64_t prompt_ = 0;
  std::vector<TokenId> prompt_ids_;
  std::uint64_t prompt_tokens_ = 1;
  std::uint64_t cached_tokens_ = 0;
  std::uint32_t tokens_ = 1;
  std::uint32_t words_sent_ = 0;
  std::uint32_t sequence_ = 0;  // of the events of a response
  bool cut_short_ = false;      // by the client's limit
  bool prefill_leg_ = false;
  std::string refusal_;
  std::string encoded_;   // ec_transfer_params of its reply; empty: it is no encode leg
  std::string peer_url_;  // where the prompt's KV comes from; empty: it is computed here
  std::string transfer_;  // its name between the legs; empty: there is one leg
  std::string blocks_;    // instead: those that NIXL's params name
  bool offered_ = false;
  UpstreamCall* peer_call_ = nullptr;
  std::size_t sent_ = 0;
  bool began_ = false;
};

}  // namespace penstock::emulate
