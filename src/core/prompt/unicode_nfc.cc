#include "core/prompt/unicode_nfc.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uniset.h>

#include "base/check.h"

namespace penstock::unicode {
namespace {

// The first byte of U+0300, before which nothing composes or decomposes.
constexpr unsigned char kFirstLead = 0xCC;

bool is_below_marks(std::string_view text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= kFirstLead) return false;
  }
  return true;
}

}  // namespace

struct Nfc::State {
  const icu::Normalizer2* current = nullptr;  // owned by ICU
  icu::UnicodeSet known;
  std::unique_ptr<icu::FilteredNormalizer2> as_reference;
};

Nfc::Nfc() : state_(std::make_unique<State>()) {
  UErrorCode status = U_ZERO_ERROR;
  state_->current = icu::Normalizer2::getNFCInstance(status);
  state_->known.applyPattern(u"[[:age=9.0:]-[\\u0EBA\\u1715]]", status);
  // ICU carries its data in a library of its own; if that is broken, nothing works.
  ENSURE(U_SUCCESS(status) && state_->current != nullptr);
  state_->known.freeze();
  state_->as_reference =
      std::make_unique<icu::FilteredNormalizer2>(*state_->current, state_->known);
}
Nfc::~Nfc() = default;
Nfc::Nfc(Nfc&&) noexcept = default;
Nfc& Nfc::operator=(Nfc&&) noexcept = default;

std::string_view Nfc::normalize(std::string_view text, std::string& storage) const {
  if (is_below_marks(text)) return text;
  const icu::StringPiece piece(text.data(), static_cast<std::int32_t>(text.size()));
  UErrorCode status = U_ZERO_ERROR;
  if (state_->current->isNormalizedUTF8(piece, status) && U_SUCCESS(status)) return text;
  status = U_ZERO_ERROR;
  storage.clear();
  storage.reserve(text.size() + text.size() / 8);
  icu::StringByteSink<std::string> sink(&storage);
  state_->as_reference->normalizeUTF8(0, piece, sink, nullptr, status);
  ENSURE(U_SUCCESS(status));
  return storage;
}

}  // namespace penstock::unicode
