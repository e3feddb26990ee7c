#include "io/transport/copier.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

namespace penstock::transport {
namespace {

constexpr std::size_t kPartBytes = std::size_t{2} << 20;

}  // namespace

PoolImage::PoolImage(Mapping mapping, PoolView view)
    : mapping_(std::move(mapping)),
      view_(view),
      present_((view.memory.size() + kPartBytes - 1) / kPartBytes) {}

void PoolImage::populate(std::span<const std::byte> bytes) {
  const std::span<std::byte> memory = mapping_.memory();
  const auto begin = static_cast<std::size_t>(bytes.data() - memory.data());
  const std::size_t last = (begin + bytes.size() - 1) / kPartBytes;
  for (std::size_t part = begin / kPartBytes; part <= last; ++part) {
    if (present_[part]) continue;
    present_[part] = true;
    const std::size_t at = part * kPartBytes;
    // Where it fails, the pages are faulted in as they are touched.
    ::madvise(memory.data() + at, std::min(kPartBytes, memory.size() - at), MADV_POPULATE_READ);
  }
}

Copier::Copier(EventLoop& loop, std::function<void()> between_looks,
               std::function<void(std::uint64_t, ReadEnd)> ended)
    : loop_(loop), between_looks_(std::move(between_looks)), ended_(std::move(ended)) {
  loop_.add_work([this] { return work(); });
}

void Copier::add(Job job) {
  jobs_.push_back(std::move(job));
  loop_.wake_work();
}

void Copier::remove(std::uint64_t read) {
  const auto at = std::ranges::find(jobs_, read, &Job::read);
  if (at == jobs_.end()) return;
  if (at == jobs_.begin()) done_bytes_ = 0;
  jobs_.erase(at);
}

void Copier::remove_all(const void* owner) {
  if (!jobs_.empty() && jobs_.front().owner == owner) done_bytes_ = 0;
  std::erase_if(jobs_, [owner](const Job& job) { return job.owner == owner; });
}

bool Copier::work() {
  std::size_t budget = kTurnBytes;
  while (!jobs_.empty() && budget > 0) {
    const auto end = step(budget);
    if (!end) continue;
    const std::uint64_t read = jobs_.front().read;
    jobs_.pop_front();
    done_bytes_ = 0;
    ended_(read, *end);
  }
  return !jobs_.empty();
}

std::optional<ReadEnd> Copier::step(std::size_t& budget) {
  const Job& job = jobs_.front();
  const PoolView& view = job.image->view();
  const auto bytes = view.place(job.slice);
  if (!bytes) return ReadEnd::kRefused;
  if (done_bytes_ == 0) {
    if (view.generation(job.slice.block) != job.slice.generation) return ReadEnd::kStale;
    copy_.begin();
  }
  const std::size_t piece = std::min({kPieceBytes, budget, bytes->size() - done_bytes_});
  const auto part = bytes->subspan(done_bytes_, piece);
  job.image->populate(part);
  copy_.add(job.into + done_bytes_, part);
  const bool first = done_bytes_ == 0;
  done_bytes_ += piece;
  budget -= piece;
  if (first && between_looks_) between_looks_();
  if (done_bytes_ < bytes->size()) return std::nullopt;
  const std::uint64_t checksum = copy_.checksum();
  if (view.generation_after_reading(job.slice.block) != job.slice.generation)
    return ReadEnd::kStale;
  return checksum == job.slice.checksum ? ReadEnd::kDone : ReadEnd::kCorrupt;
}

}  // namespace penstock::transport
