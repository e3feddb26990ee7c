// Questions to a daemon, as `penstock kv` asks them.
#pragma once

#include <string>

#include <boost/json.hpp>

#include "io/kv/kv_session.h"
#include "tests/faults/driver.h"

namespace penstock::faults {

inline boost::json::value ask(const std::string& socket, const std::string& command,
                              const std::string& arguments = "{}") {
  constexpr Duration kAnswerTime = std::chrono::seconds(30);
  const auto session = kv::KvSession::connect(socket, "tool", "faults", BlockKey{}, kAnswerTime);
  require(session.has_value(), "no session: {}", session ? "" : session.error().message);
  const auto answer = (*session)->admin(command, arguments, kAnswerTime);
  require(answer.has_value(), "{}: {}", command, answer ? "" : answer.error().message);
  return boost::json::parse(*answer);
}

inline std::uint64_t ask_number(const std::string& socket, const char* path) {
  return ask(socket, "stat").at_pointer(path).to_number<std::uint64_t>();
}

}  // namespace penstock::faults
