#include "core/prompt/jinja/text.h"

#include <unicode/ucasemap.h>
#include <algorithm>

namespace penstock::jinja {

void Text::append(std::string_view bytes, Origin origin) {
  if (bytes.empty()) return;
  bytes_ += bytes;
  if (!runs_.empty() && runs_.back().origin == origin) {
    runs_.back().end = bytes_.size();
  } else {
    runs_.push_back({bytes_.size(), origin});
  }
}

void Text::append(const Text& other) {
  std::size_t begin = 0;
  for (const Run& run : other.runs_) {
    append(other.view().substr(begin, run.end - begin), run.origin);
    begin = run.end;
  }
}

Text Text::substr(std::size_t begin, std::size_t count) const {
  Text out;
  begin = std::min(begin, size());
  const std::size_t end = begin + std::min(count, size() - begin);
  auto run = std::ranges::upper_bound(runs_, begin, {}, &Run::end);
  while (begin < end) {
    const std::size_t stop = std::min(run->end, end);
    out.append(view().substr(begin, stop - begin), run->origin);
    begin = stop;
    ++run;
  }
  return out;
}

bool Text::is_template() const {
  return std::ranges::all_of(runs_, [](const Run& run) { return run.origin == Origin::kTemplate; });
}

Character character_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(at);
  const std::size_t length = lead < 0x80   ? 1
                             : lead < 0xc2 ? 0
                             : lead < 0xe0 ? 2
                             : lead < 0xf0 ? 3
                             : lead < 0xf5 ? 4
                                           : 0;
  if (length == 1) return {lead, 1};
  if (length == 0 || at + length > text.size()) return {0xfffd, 1};
  char32_t code = lead & (0x7fU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) return {0xfffd, 1};
    code = code << 6 | (byte(at + i) & 0x3fU);
  }
  return {code, length};
}

bool is_space(char32_t code) {
  return (code >= 0x09 && code <= 0x0d) || (code >= 0x1c && code <= 0x20) || code == 0x85 ||
         code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
         code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

std::size_t count_characters(std::string_view text) {
  std::size_t count = 0;
  for (std::size_t at = 0; at < text.size(); at += character_at(text, at).length)
    ++count;
  return count;
}

std::size_t byte_of_character(std::string_view text, std::size_t character) {
  std::size_t at = 0;
  while (character > 0 && at < text.size()) {
    at += character_at(text, at).length;
    --character;
  }
  return at;
}

Text strip(const Text& text, Ends ends, const std::string* set) {
  std::u32string wanted;
  for (std::size_t at = 0; set != nullptr && at < set->size();) {
    const Character c = character_at(*set, at);
    wanted += c.code;
    at += c.length;
  }
  const auto goes = [&](char32_t code) {
    return set == nullptr ? is_space(code) : wanted.find(code) != std::u32string::npos;
  };
  const std::string_view bytes = text.view();
  std::size_t begin = 0;
  std::size_t end = bytes.size();
  while (ends != Ends::kRight && begin < end) {
    const Character c = character_at(bytes, begin);
    if (!goes(c.code)) break;
    begin += c.length;
  }
  while (ends != Ends::kLeft && end > begin) {
    std::size_t last = end - 1;
    while (last > begin && end - last < 4 && (bytes[last] & 0xc0) == 0x80)
      --last;
    const Character c = character_at(bytes, last);
    if (last + c.length != end || !goes(c.code)) break;
    end = last;
  }
  return text.substr(begin, end - begin);
}

namespace {

std::string mapped(std::string_view text, Case to) {
  UErrorCode error = U_ZERO_ERROR;
  UCaseMap* map = ucasemap_open("", 0, &error);
  std::string out(text);
  if (U_FAILURE(error)) return out;
  const auto convert = to == Case::kUpper ? ucasemap_utf8ToUpper : ucasemap_utf8ToLower;
  const auto size = static_cast<std::int32_t>(text.size());
  std::int32_t needed = convert(map, out.data(), size, text.data(), size, &error);
  if (error == U_BUFFER_OVERFLOW_ERROR) {
    error = U_ZERO_ERROR;
    out.resize(static_cast<std::size_t>(needed));
    needed = convert(map, out.data(), needed, text.data(), size, &error);
  }
  ucasemap_close(map);
  if (U_FAILURE(error)) return std::string(text);
  out.resize(static_cast<std::size_t>(needed));
  return out;
}

}  // namespace

Text with_case(const Text& text, Case to) {
  Text out;
  std::size_t begin = 0;
  for (const Text::Run& run : text.runs()) {
    out.append(mapped(text.view().substr(begin, run.end - begin), to), run.origin);
    begin = run.end;
  }
  return out;
}

}  // namespace penstock::jinja
