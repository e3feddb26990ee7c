// JSON text to values and back, as Python's json module has it.
#include <fmt/format.h>
#include <algorithm>
#include <boost/json/basic_parser_impl.hpp>
#include <charconv>
#include <cmath>

#include "core/prompt/jinja/value.h"

namespace penstock::jinja {
namespace {

namespace json = boost::json;

// What boost's parser calls: a stack of containers that are being filled.
struct Builder {
  static constexpr std::size_t max_object_size = std::size_t(-1);
  static constexpr std::size_t max_array_size = std::size_t(-1);
  static constexpr std::size_t max_key_size = std::size_t(-1);
  static constexpr std::size_t max_string_size = std::size_t(-1);

  struct Open {
    bool object = false;
    std::vector<Value> items;
    Dict dict;
    TextPointer key;
  };
  std::vector<Open> open;
  Value result;
  std::string part;  // of a text or number that came in pieces

  bool add(Value value) {
    part.clear();
    if (open.empty()) {
      result = std::move(value);
    } else if (open.back().object) {
      open.back().dict.set(std::move(open.back().key), std::move(value));
    } else {
      open.back().items.push_back(std::move(value));
    }
    return true;
  }
  // A failure of make_list or make_dict can't be: the parser limits the depth.
  bool close() {
    Open closed = std::move(open.back());
    open.pop_back();
    return add(
        *(closed.object ? make_dict(std::move(closed.dict)) : make_list(std::move(closed.items))));
  }
  bool number(json::string_view last) {
    part.append(last.data(), last.size());
    if (part.find_first_of(".eE") != std::string::npos) {
      double real = 0;
      const auto read = std::from_chars(part.data(), part.data() + part.size(), real);
      // from_chars leaves the value alone when it is out of range: infinite, or nothing.
      if (read.ec == std::errc::result_out_of_range) real = std::strtod(part.c_str(), nullptr);
      return add(real);
    }
    std::int64_t integer = 0;
    const auto read = std::from_chars(part.data(), part.data() + part.size(), integer);
    if (read.ec == std::errc()) return add(integer);
    return add(BigInteger{std::make_shared<const std::string>(part)});
  }

  using Error = json::error_code;
  bool on_document_begin(Error&) { return true; }
  bool on_document_end(Error&) { return true; }
  bool on_object_begin(Error&) {
    open.push_back({.object = true, .items = {}, .dict = {}, .key = {}});
    return true;
  }
  bool on_object_end(std::size_t, Error&) { return close(); }
  bool on_array_begin(Error&) {
    open.emplace_back();
    return true;
  }
  bool on_array_end(std::size_t, Error&) { return close(); }
  bool on_key_part(json::string_view text, std::size_t, Error&) {
    part.append(text.data(), text.size());
    return true;
  }
  bool on_key(json::string_view text, std::size_t, Error&) {
    part.append(text.data(), text.size());
    open.back().key = std::make_shared<const Text>(std::move(part), Origin::kValue);
    part.clear();
    return true;
  }
  bool on_string_part(json::string_view text, std::size_t, Error&) {
    part.append(text.data(), text.size());
    return true;
  }
  bool on_string(json::string_view text, std::size_t, Error&) {
    part.append(text.data(), text.size());
    return add(Text(std::move(part), Origin::kValue));
  }
  bool on_number_part(json::string_view text, Error&) {
    part.append(text.data(), text.size());
    return true;
  }
  bool on_int64(std::int64_t, json::string_view text, Error&) { return number(text); }
  bool on_uint64(std::uint64_t, json::string_view text, Error&) { return number(text); }
  bool on_double(double, json::string_view text, Error&) { return number(text); }
  bool on_bool(bool flag, Error&) { return add(flag); }
  bool on_null(Error&) { return add(None{}); }
  bool on_comment_part(json::string_view, Error&) { return true; }
  bool on_comment(json::string_view, Error&) { return true; }
};

void append_string(std::string_view text, bool ascii, std::string& out) {
  out += '"';
  for (std::size_t at = 0; at < text.size();) {
    const Character c = character_at(text, at);
    const auto code = static_cast<std::uint32_t>(c.code);
    constexpr std::string_view kShort = "\"\\\b\f\n\r\t";
    const std::size_t escape = code < 0x80 ? kShort.find(static_cast<char>(code)) : kShort.npos;
    if (escape != kShort.npos) {
      out += '\\';
      out += "\"\\bfnrt"[escape];
    } else if (code < 0x20) {
      out += fmt::format("\\u{:04x}", code);
    } else if (ascii && code >= 0x10000) {
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xd7c0 + (code >> 10), 0xdc00 + (code & 0x3ff));
    } else if (ascii && code >= 0x7f) {
      out += code == 0x7f ? std::string(1, '\x7f') : fmt::format("\\u{:04x}", code);
    } else {
      out += text.substr(at, c.length);
    }
    at += c.length;
  }
  out += '"';
}

class Printer {
 public:
  explicit Printer(const JsonStyle& style)
      : style_(style),
        item_(style.item_separator.empty() ? (style.indent < 0 ? ", " : ",")
                                           : style.item_separator),
        key_(style.key_separator.empty() ? ": " : style.key_separator) {}

  Fallible<void> print(const Value& value, int level) {
    if (const Text* text = value.text()) {
      append_string(text->view(), style_.ascii, out);
      return {};
    }
    if (const List* list = value.list()) return print_list(*list, level);
    if (const Dict* dict = value.dict()) return print_dict(*dict, level);
    if (value.is<None>()) {
      out += "null";
    } else if (const bool* flag = std::get_if<bool>(&value.variant())) {
      out += *flag ? "true" : "false";
    } else if (const auto* real = std::get_if<double>(&value.variant());
               real != nullptr && !std::isfinite(*real)) {
      out += std::isnan(*real) ? "NaN" : *real < 0 ? "-Infinity" : "Infinity";
    } else if (value.integer() != nullptr || value.is<double>() || value.is<BigInteger>()) {
      out += printed(value)->bytes();
    } else {
      return failure(fmt::format("tojson: a {} is no JSON", type_name(value)));
    }
    return {};
  }

  std::string out;

 private:
  void new_line(int level) {
    if (style_.indent < 0) return;
    out += '\n';
    out.append(static_cast<std::size_t>(style_.indent) * static_cast<std::size_t>(level), ' ');
  }
  Fallible<void> print_list(const List& list, int level) {
    out += '[';
    for (std::size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out += item_;
      new_line(level + 1);
      if (auto done = print(list.items[i], level + 1); !done) return done;
    }
    if (!list.items.empty()) new_line(level);
    out += ']';
    return {};
  }
  Fallible<void> print_dict(const Dict& dict, int level) {
    std::vector<const std::pair<TextPointer, Value>*> entries;
    for (const auto& entry : dict.entries)
      entries.push_back(&entry);
    if (style_.sort_keys) {
      std::ranges::sort(entries, {}, [](const auto* entry) { return entry->first->view(); });
    }
    out += '{';
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out += item_;
      new_line(level + 1);
      append_string(entries[i]->first->view(), style_.ascii, out);
      out += key_;
      if (auto done = print(entries[i]->second, level + 1); !done) return done;
    }
    if (!entries.empty()) new_line(level);
    out += '}';
    return {};
  }

  const JsonStyle& style_;
  std::string item_;
  std::string key_;
};

}  // namespace

Fallible<Value> from_json(std::string_view text) {
  json::parse_options options;
  options.max_depth = static_cast<std::size_t>(kDepthMax) - 8;  // room for what stands around it
  json::basic_parser<Builder> parser(options);
  json::error_code error;
  const std::size_t read = parser.write_some(false, text.data(), text.size(), error);
  if (!error && read < text.size()) error = json::error::extra_data;
  if (error) return failure(fmt::format("not JSON: {}", error.message()));
  return std::move(parser.handler().result);
}

Fallible<std::string> to_json(const Value& value, const JsonStyle& style) {
  Printer printer(style);
  if (auto done = printer.print(value, 0); !done) return std::unexpected(done.error());
  return std::move(printer.out);
}

}  // namespace penstock::jinja
