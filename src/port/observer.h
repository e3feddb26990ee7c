// RequestObserver: where finished requests are reported: log, metrics, ledger.
// Concurrency: shard thread only; calls must not block.
#pragma once

#include "domain/request_record.h"

namespace penstock {

class RequestObserver {
 public:
  virtual ~RequestObserver() = default;
  virtual void request_started() = 0;
  virtual void request_finished(const RequestRecord& record) = 0;
};

}  // namespace penstock
