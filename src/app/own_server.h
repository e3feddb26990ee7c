// A `penstock serve` of our own for the life of an object: on a free port, in a temporary folder.
//
// Errors: the reason why serve did not start. Concurrency: start it from the main thread; it dies
// with that thread.
#pragma once

#include <memory>
#include <string>

#include "app/options.h"
#include "base/result.h"

namespace penstock {

class OwnServer {
 public:
  // Serves the models of `options` with its engine settings.
  static Result<OwnServer> start(const Options& options);
  ~OwnServer();  // drains it
  OwnServer(OwnServer&&) noexcept;
  OwnServer& operator=(OwnServer&&) noexcept;

  const std::string& url() const;

 private:
  struct State;
  explicit OwnServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace penstock
