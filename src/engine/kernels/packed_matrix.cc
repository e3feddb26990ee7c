#include "engine/kernels/packed_matrix.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/check.h"

namespace penstock::engine {
namespace {

constexpr std::align_val_t kAlignment{64};
// Rows of one work item: enough to reuse a panel from the L1 cache, few enough to spread.
constexpr std::uint32_t kRowsPerItem = 126;
// Multiply-adds that are worth handing to another thread (a few microseconds).
constexpr std::uint64_t kWorkPerItem = 1U << 17;

// How a product is cut: row groups x panel groups.
struct Cut {
  std::uint32_t row_groups;
  std::uint32_t panels_per_item;
  std::uint32_t panel_groups;

  std::uint32_t items() const { return row_groups * panel_groups; }
};

Cut cut(const Product& p) {
  const std::uint32_t row_groups = (p.rows + kRowsPerItem - 1) / kRowsPerItem;
  const std::uint64_t rows = std::min(p.rows, kRowsPerItem);
  const std::uint64_t panel_work = rows * p.weights->inputs() * kPanelWidth;
  const std::uint32_t panels = p.weights->panels();
  // The kernels take a single row through four panels at a time.
  const std::uint32_t least = std::min(p.rows == 1 ? 4U : 1U, panels);
  const auto wanted = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
      kWorkPerItem / std::max<std::uint64_t>(panel_work, 1), least, panels));
  return {row_groups, wanted, (panels + wanted - 1) / wanted};
}

void run_item(const Kernels& kernels, const Product& p, const Cut& c, std::uint32_t item) {
  const std::uint32_t rows_each = (p.rows + c.row_groups - 1) / c.row_groups;
  const std::uint32_t row = item % c.row_groups * rows_each;
  const std::uint32_t panel = item / c.row_groups * c.panels_per_item;
  const std::uint32_t column = panel * kPanelWidth;
  const std::uint32_t columns =
      std::min(c.panels_per_item * kPanelWidth, p.weights->outputs() - column);
  if (row >= p.rows) return;
  kernels.matmul({.a = p.a + row * p.lda,
                  .lda = p.lda,
                  .panels = p.weights->panel(panel),
                  .type = p.weights->type(),
                  .c = p.c + row * p.ldc + column,
                  .ldc = p.ldc,
                  .rows = std::min(rows_each, p.rows - row),
                  .k = p.weights->inputs(),
                  .columns = columns,
                  .add = p.accumulate == Accumulate::kAdd});
}

}  // namespace

void AlignedBuffer::Free::operator()(std::byte* p) const {
  ::operator delete(p, kAlignment);
}

AlignedBuffer::AlignedBuffer(std::size_t bytes)
    : data_(static_cast<std::byte*>(::operator new(std::max<std::size_t>(bytes, 1), kAlignment))),
      size_(bytes) {
  std::memset(data_.get(), 0, bytes);
}

PackedMatrix::PackedMatrix(std::uint32_t outputs, std::uint32_t inputs, WeightType type)
    : outputs_(outputs), inputs_(inputs), type_(type) {
  data_ = AlignedBuffer(std::size_t{panels()} * inputs * kPanelWidth * element_bytes());
}

void PackedMatrix::set(std::uint32_t output, std::uint32_t input, std::uint32_t bits) {
  const std::size_t index =
      (std::size_t{output / kPanelWidth} * inputs_ + input) * kPanelWidth + output % kPanelWidth;
  if (type_ == WeightType::kBf16) {
    const auto half = static_cast<std::uint16_t>(bits);
    std::memcpy(data_.data() + index * 2, &half, 2);
  } else {
    std::memcpy(data_.data() + index * 4, &bits, 4);
  }
}

void multiply(const Kernels& kernels, ThreadPool& pool, std::span<const Product> products) {
  std::uint32_t items = 0;
  for (const Product& p : products)
    items += p.rows == 0 ? 0 : cut(p).items();
  pool.parallel_for(items, [&](std::uint32_t item, std::uint32_t) {
    // A region has at most some hundred products; walking them costs less than an index of them.
    for (const Product& p : products) {
      if (p.rows == 0) continue;
      const Cut c = cut(p);
      if (item < c.items()) return run_item(kernels, p, c, item);
      item -= c.items();
    }
  });
}

}  // namespace penstock::engine
