#include "engine/tensor.h"

#include <algorithm>
#include <bit>

#include <fmt/format.h>

namespace penstock::engine {
namespace {

// IEEE half to single, exactly; subnormal halves become normal singles.
std::uint32_t widen_half(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t exponent = half >> 10 & 0x1FU;
  const std::uint32_t fraction = half & 0x3FFU;
  if (exponent == 31) return sign | 0x7F800000U | fraction << 13;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return sign | std::bit_cast<std::uint32_t>(magnitude);
  }
  return sign | (exponent + 112) << 23 | fraction << 13;
}

}  // namespace

Status TensorReader::expect(const std::string& name, std::initializer_list<std::uint64_t> shape) {
  const auto found = file_.index().find(name);
  if (found == file_.index().end()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: tensor \"{}\" of shape {} is missing", file_.path(), name,
                            shape_text({shape.begin(), shape.size()})),
                name);
  }
  const TensorInfo& info = found->second;
  if (!std::ranges::equal(info.shape, shape)) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: tensor \"{}\" has shape {}, config.json implies {}", file_.path(), name,
                    shape_text(info.shape), shape_text({shape.begin(), shape.size()})),
        name);
  }
  if (info.dtype != "F32" && info.dtype != "BF16" && info.dtype != "F16") {
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: tensor \"{}\" has dtype {}, supported are F32, BF16 and F16",
                            file_.path(), name, info.dtype),
                name);
  }
  used_.insert(name);
  return {};
}

Result<Tensor> TensorReader::read(const std::string& name,
                                  std::initializer_list<std::uint64_t> shape) {
  TRY_STATUS(expect(name, shape));
  const TensorInfo& info = file_.index().find(name)->second;
  Tensor tensor;
  TRY(tensor.bytes, file_.read(info));
  if (info.dtype == "BF16") return tensor;
  tensor.type = WeightType::kF32;
  if (info.dtype == "F16") {
    std::vector<std::byte> wide(tensor.bytes.size() * 2);
    for (std::size_t i = 0; i < wide.size() / 4; ++i) {
      std::uint16_t half = 0;
      std::memcpy(&half, tensor.bytes.data() + i * 2, 2);
      const std::uint32_t word = widen_half(half);
      std::memcpy(wide.data() + i * 4, &word, 4);
    }
    tensor.bytes = std::move(wide);
  }
  return tensor;
}

Result<std::vector<float>> TensorReader::read_floats(const std::string& name, std::uint64_t count) {
  TRY(const Tensor tensor, read(name, {count}));
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; ++i)
    out[i] = std::bit_cast<float>(tensor.wide_bits(i));
  return out;
}

Status TensorReader::check_all_used(const std::vector<std::string>& ignored) const {
  for (const auto& [name, info] : file_.index()) {
    if (used_.contains(name)) continue;
    if (std::ranges::any_of(ignored, [&](const auto& p) { return name.starts_with(p); })) continue;
    return fail(ErrorCode::kUnsupported,
                fmt::format("{}: tensor \"{}\" has no place in the model that config.json "
                            "describes",
                            file_.path(), std::string_view(name).substr(0, 120)),
                name.substr(0, 120));
  }
  return {};
}

}  // namespace penstock::engine
