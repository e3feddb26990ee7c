// Normalization form C, as the reference's normaliser does it.
//
// The reference composes by the tables of Unicode 9, so characters assigned later are left alone,
// as are two whose combining class was corrected since. ICU is told so by a filter; a text that
// passes ICU's quick check is in the reference's form too: a mark that the older tables take for a
// base only stops compositions. ICU rather than utf8proc, because it works on UTF-8 without a
// detour, has a quick check, and can be told to stop at an older Unicode version.
//
// Errors: none for well-formed UTF-8.
// Concurrency: immutable.
// Source: UAX #15; ICU's Normalizer2.
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace penstock::unicode {

class Nfc {
 public:
  Nfc();
  ~Nfc();
  Nfc(Nfc&&) noexcept;
  Nfc& operator=(Nfc&&) noexcept;

  // Returns the normalised form of well-formed text: `text` itself when it is already, else a view
  // of `storage`. Text below U+0300 costs a look at its bytes.
  std::string_view normalize(std::string_view text, std::string& storage) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock::unicode
