#include "core/prompt/jinja/value.h"

#include <fmt/format.h>
#include <unicode/uchar.h>
#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/result.h"

namespace penstock::jinja {
namespace {

// From here on a dictionary keeps an index.
constexpr std::size_t kIndexFrom = 16;

int depth_of(const Value& value) {
  if (const List* list = value.list()) return list->depth;
  if (const Dict* dict = value.dict()) return dict->depth;
  return 0;
}

std::string number_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  std::string text = fmt::format("{}", number);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

bool is_printable(char32_t code) {
  if (code < 0x7f) return code >= 0x20;
  constexpr std::uint32_t kHidden = U_GC_CC_MASK | U_GC_CF_MASK | U_GC_CS_MASK | U_GC_CO_MASK |
                                    U_GC_CN_MASK | U_GC_ZL_MASK | U_GC_ZP_MASK | U_GC_ZS_MASK;
  return (U_MASK(u_charType(static_cast<UChar32>(code))) & kHidden) == 0;
}

// A text as repr() prints it.
void append_quoted(std::string_view text, std::string& out) {
  const bool single = text.find('\'') == std::string_view::npos;
  const char quote = !single && text.find('"') == std::string_view::npos ? '"' : '\'';
  out += quote;
  for (std::size_t at = 0; at < text.size();) {
    const Character c = character_at(text, at);
    if (c.code == static_cast<unsigned char>(quote) || c.code == '\\') {
      out += '\\';
      out += static_cast<char>(c.code);
    } else if (c.code == '\n' || c.code == '\r' || c.code == '\t') {
      out += c.code == '\n' ? "\\n" : c.code == '\r' ? "\\r" : "\\t";
    } else if (is_printable(c.code)) {
      out += text.substr(at, c.length);
    } else {
      const auto code = static_cast<std::uint32_t>(c.code);
      out += code < 0x100     ? fmt::format("\\x{:02x}", code)
             : code < 0x10000 ? fmt::format("\\u{:04x}", code)
                              : fmt::format("\\U{:08x}", code);
    }
    at += c.length;
  }
  out += quote;
}

// As repr() prints it; what has no print of its own is a failure.
Fallible<void> append_repr(const Value& value, std::string& out) {
  if (value.is<None>()) {
    out += "None";
  } else if (const bool* flag = std::get_if<bool>(&value.variant())) {
    out += *flag ? "True" : "False";
  } else if (const auto* integer = value.integer()) {
    out += std::to_string(*integer);
  } else if (const auto* number = std::get_if<double>(&value.variant())) {
    out += number_text(*number);
  } else if (const auto* big = std::get_if<BigInteger>(&value.variant())) {
    out += *big->digits;
  } else if (const Text* text = value.text()) {
    append_quoted(text->view(), out);
  } else if (const List* list = value.list()) {
    out += list->tuple ? '(' : '[';
    for (std::size_t i = 0; i < list->items.size(); ++i) {
      if (i > 0) out += ", ";
      if (auto done = append_repr(list->items[i], out); !done) return done;
    }
    if (list->tuple && list->items.size() == 1) out += ',';
    out += list->tuple ? ')' : ']';
  } else if (const Dict* dict = value.dict()) {
    out += '{';
    for (std::size_t i = 0; i < dict->entries.size(); ++i) {
      if (i > 0) out += ", ";
      append_quoted(dict->entries[i].first->view(), out);
      out += ": ";
      if (auto done = append_repr(dict->entries[i].second, out); !done) return done;
    }
    out += '}';
  } else if (value.is<Undefined>()) {
    out += "Undefined";
  } else {
    return failure(fmt::format("a {} can't be printed", type_name(value)));
  }
  return {};
}

// Numbers as Python compares them: true and false are 1 and 0.
bool as_number(const Value& value, double& number) {
  if (const bool* flag = std::get_if<bool>(&value.variant())) {
    number = *flag ? 1 : 0;
  } else if (const auto* integer = value.integer()) {
    number = static_cast<double>(*integer);
  } else if (const auto* real = std::get_if<double>(&value.variant())) {
    number = *real;
  } else {
    return false;
  }
  return true;
}

int sign(auto a, auto b) {
  return a < b ? -1 : a > b ? 1 : 0;
}

}  // namespace

const Value* Dict::find(std::string_view key) const {
  if (!index.empty()) {
    const auto it = index.find(key);
    return it == index.end() ? nullptr : &entries[it->second].second;
  }
  for (const auto& [name, value] : entries) {
    if (name->view() == key) return &value;
  }
  return nullptr;
}

void Dict::set(TextPointer key, Value value) {
  if (const Value* found = find(key->view())) {
    *const_cast<Value*>(found) = std::move(value);  // NOLINT: it is in our own entries
    return;
  }
  entries.emplace_back(std::move(key), std::move(value));
  if (entries.size() == kIndexFrom) {
    for (std::size_t i = 0; i < entries.size(); ++i)
      index.emplace(entries[i].first->view(), i);
  } else if (entries.size() > kIndexFrom) {
    index.emplace(entries.back().first->view(), entries.size() - 1);
  }
}

std::size_t weight_of(const Value& value) {
  constexpr std::size_t kPlain = 16;
  if (const Text* text = value.text()) return kPlain + text->size();
  if (const List* list = value.list()) return list->weight;
  if (const Dict* dict = value.dict()) return dict->weight;
  return kPlain;
}

namespace {

struct Measure {
  int depth = 1;
  std::size_t weight = 16;

  // Parts weigh at most kWeightMax, so the sum can't overflow before it is looked at.
  Fallible<void> add(std::size_t key_size, const Value& part) {
    depth = std::max(depth, 1 + depth_of(part));
    weight += key_size + weight_of(part);
    if (weight > kWeightMax) return failure("a list or dictionary is too large");
    if (depth <= kDepthMax) return {};
    return failure(
        fmt::format("lists and dictionaries stand in one another more than {} deep", kDepthMax));
  }
};

}  // namespace

Fallible<Value> make_list(std::vector<Value> items, bool tuple) {
  Measure measure;
  for (const Value& item : items)
    TRY_STATUS(measure.add(0, item));
  return Value(
      std::make_shared<const List>(List{std::move(items), tuple, measure.depth, measure.weight}));
}

Fallible<Value> make_dict(Dict dict) {
  Measure measure;
  for (const auto& entry : dict.entries)
    TRY_STATUS(measure.add(entry.first->size(), entry.second));
  dict.depth = measure.depth;
  dict.weight = measure.weight;
  return Value(std::make_shared<const Dict>(std::move(dict)));
}

bool truthy(const Value& value) {
  if (const bool* flag = std::get_if<bool>(&value.variant())) return *flag;
  if (const auto* integer = value.integer()) return *integer != 0;
  if (const auto* number = std::get_if<double>(&value.variant())) return *number != 0;
  if (const Text* text = value.text()) return !text->empty();
  if (const List* list = value.list()) return !list->items.empty();
  if (const Dict* dict = value.dict()) return !dict->entries.empty();
  return !value.is<None>() && !value.is<Undefined>();
}

std::string_view type_name(const Value& value) {
  constexpr std::string_view kNames[] = {"value that is undefined",
                                         "none value",
                                         "boolean",
                                         "number",
                                         "number",
                                         "number",
                                         "string",
                                         "list",
                                         "dict",
                                         "namespace",
                                         "macro",
                                         "function"};
  static_assert(std::size(kNames) == std::variant_size_v<Value::Variant>);
  return kNames[value.variant().index()];
}

bool equal(const Value& a, const Value& b) {
  if (a.integer() != nullptr && b.integer() != nullptr) return *a.integer() == *b.integer();
  double x = 0;
  double y = 0;
  if (as_number(a, x)) return as_number(b, y) && x == y;
  if (a.variant().index() != b.variant().index()) return false;
  if (const Text* text = a.text()) return text->bytes() == b.text()->bytes();
  if (const auto* big = std::get_if<BigInteger>(&a.variant()))
    return *big->digits == *std::get<BigInteger>(b.variant()).digits;
  if (const List* list = a.list()) {
    return list->tuple == b.list()->tuple &&
           std::ranges::equal(list->items, b.list()->items, equal);
  }
  if (const Dict* dict = a.dict()) {
    if (dict->entries.size() != b.dict()->entries.size()) return false;
    return std::ranges::all_of(dict->entries, [&](const auto& entry) {
      const Value* other = b.dict()->find(entry.first->view());
      return other != nullptr && equal(entry.second, *other);
    });
  }
  if (a.space() != nullptr) return a.space() == b.space();
  return a.is<None>() || a.is<Undefined>();
}

Fallible<int> compare(const Value& a, const Value& b) {
  if (a.integer() != nullptr && b.integer() != nullptr) return sign(*a.integer(), *b.integer());
  double x = 0;
  double y = 0;
  if (as_number(a, x) && as_number(b, y)) return sign(x, y);
  if (a.text() != nullptr && b.text() != nullptr) return sign(a.text()->view(), b.text()->view());
  const List* left = a.list();
  const List* right = b.list();
  if (left != nullptr && right != nullptr) {
    for (std::size_t i = 0; i < std::min(left->items.size(), right->items.size()); ++i) {
      if (equal(left->items[i], right->items[i])) continue;
      return compare(left->items[i], right->items[i]);
    }
    return sign(left->items.size(), right->items.size());
  }
  return failure(fmt::format("a {} and a {} have no order", type_name(a), type_name(b)));
}

Fallible<Text> printed(const Value& value) {
  if (const Text* text = value.text()) return *text;
  if (value.is<Undefined>()) return Text();
  std::string out;
  if (auto done = append_repr(value, out); !done) return std::unexpected(done.error());
  return Text(std::move(out), Origin::kValue);
}

Fallible<std::vector<Value>> items_of(const Value& value) {
  std::vector<Value> items;
  if (const List* list = value.list()) return list->items;
  if (const Dict* dict = value.dict()) {
    for (const auto& entry : dict->entries)
      items.emplace_back(entry.first);
    return items;
  }
  if (const Text* text = value.text()) {
    for (std::size_t at = 0; at < text->size();) {
      const std::size_t length = character_at(text->view(), at).length;
      items.emplace_back(text->substr(at, length));
      at += length;
    }
    return items;
  }
  if (value.is<Undefined>()) return items;
  return failure(fmt::format("a {} has no items", type_name(value)));
}

}  // namespace penstock::jinja
