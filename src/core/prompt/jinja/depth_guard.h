// DepthGuard: counts how deep a recursion is, for as long as it lives. Concurrency: one owner.
#pragma once

namespace penstock::jinja {

class DepthGuard {
 public:
  explicit DepthGuard(int& depth) : depth_(depth) { ++depth_; }
  ~DepthGuard() { --depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;

 private:
  int& depth_;
};

}  // namespace penstock::jinja
