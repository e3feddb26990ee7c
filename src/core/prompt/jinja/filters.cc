#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "core/prompt/jinja/list_filters.h"

namespace penstock::jinja {
namespace {

using Filtered = Fallible<Value>;

// A number as Python's float() reads it, but for infinity and the like.
std::optional<double> read_real(const std::string& text) {
  if (text.empty() || text.find_first_not_of("0123456789+-.eE") != std::string::npos) return {};
  char* end = nullptr;
  const double real = std::strtod(text.c_str(), &end);
  if (end != text.c_str() + text.size()) return {};
  return real;
}

Filtered length(CallInput& in) {
  TRY_STATUS(charge(in.budget, in.subject.text() != nullptr ? in.subject.text()->size() / 8 : 0));
  if (const Text* text = in.subject.text())
    return Value(static_cast<std::int64_t>(count_characters(text->view())));
  if (const List* list = in.subject.list())
    return Value(static_cast<std::int64_t>(list->items.size()));
  if (const Dict* dict = in.subject.dict())
    return Value(static_cast<std::int64_t>(dict->entries.size()));
  if (in.subject.is<Undefined>()) return Value(std::int64_t{0});
  return failure(fmt::format("a {} has no length", type_name(in.subject)));
}

Filtered absolute(CallInput& in) {
  if (const auto* integer = in.subject.integer(); integer != nullptr && *integer != INT64_MIN)
    return Value(*integer < 0 ? -*integer : *integer);
  if (const auto* real = std::get_if<double>(&in.subject.variant())) return Value(std::abs(*real));
  return failure(fmt::format("abs: a number is expected, not a {}", type_name(in.subject)));
}

Filtered default_value(CallInput& in) {
  const bool missing = in.subject.is<Undefined>() || (in.flag(1) && !truthy(in.subject));
  if (!missing) return in.subject;
  return in.has(0) ? *in.arguments[0] : Value(Text());
}

Filtered escaped(CallInput& in) {
  TRY(const Text text, in.printed_subject());
  Text out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text.view()[i];
    constexpr std::string_view kFrom = "&<>'\"";
    constexpr std::string_view kTo[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    if (const std::size_t at = kFrom.find(c); at != kFrom.npos) {
      out.append(kTo[at], Origin::kValue);
    } else {
      out.append(text.substr(i, 1));
    }
  }
  return Value(std::move(out));
}

Filtered first(CallInput& in) {
  TRY_STATUS(charge(in.budget, in.subject.dict() != nullptr ? weight_of(in.subject) : 0));
  if (in.subject.text() != nullptr) return item_of(in.subject, Value(std::int64_t{0}));
  TRY(const auto items, items_of(in.subject));
  return items.empty() ? Value(Undefined{"the first of nothing"}) : items.front();
}

Filtered last(CallInput& in) {
  TRY_STATUS(charge(in.budget, in.subject.list() == nullptr ? weight_of(in.subject) : 0));
  if (in.subject.text() != nullptr) return item_of(in.subject, Value(std::int64_t{-1}));
  TRY(const auto items, items_of(in.subject));
  return items.empty() ? Value(Undefined{"the last of nothing"}) : items.back();
}

Filtered to_float(CallInput& in) {
  if (const auto* integer = in.subject.integer()) return Value(static_cast<double>(*integer));
  if (in.subject.is<double>()) return in.subject;
  if (const bool* flag = std::get_if<bool>(&in.subject.variant())) return Value(*flag ? 1.0 : 0.0);
  if (const Text* text = in.subject.text()) {
    if (const auto real = read_real(strip(*text, Ends::kBoth, nullptr).bytes()))
      return Value(*real);
  }
  return in.has(0) ? *in.arguments[0] : Value(0.0);
}

Filtered to_int(CallInput& in) {
  TRY(const std::int64_t base, in.integer(1, 10));
  if (base < 2 || base > 36) return failure("int: the base is 2 to 36");
  if (in.subject.integer() != nullptr || in.subject.is<BigInteger>()) return in.subject;
  if (const bool* flag = std::get_if<bool>(&in.subject.variant()))
    return Value(std::int64_t{*flag ? 1 : 0});
  double real = NAN;
  if (const auto* number = std::get_if<double>(&in.subject.variant())) {
    real = *number;
  } else if (const Text* text = in.subject.text()) {
    std::string plain = strip(*text, Ends::kBoth, nullptr).bytes();
    if (plain.starts_with('+')) plain.erase(0, 1);
    std::int64_t integer = 0;
    const char* end = plain.data() + plain.size();
    const auto read = std::from_chars(plain.data(), end, integer, static_cast<int>(base));
    if (read.ec == std::errc() && read.ptr == end) return Value(integer);
    real = read_real(plain).value_or(NAN);
  }
  if (std::abs(real) < 9e18) return Value(static_cast<std::int64_t>(real));
  return in.has(0) ? *in.arguments[0] : Value(std::int64_t{0});
}

Filtered indent(CallInput& in) {
  TRY(const Text text, in.printed_subject());
  Text indentation(std::string(4, ' '), Origin::kTemplate);
  if (in.has(0) && in.arguments[0]->text() != nullptr) {
    indentation = *in.arguments[0]->text();
  } else {
    TRY(const std::int64_t width, in.integer(0, 4));
    constexpr std::int64_t kWidthMax = 1000;
    if (width > kWidthMax) return failure("indent: at most 1000 blanks");
    indentation = Text(std::string(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' '),
                       Origin::kTemplate);
  }
  const auto lines = lines_of(text);
  TRY_STATUS(charge(in.budget, text.size() + lines.size() * (indentation.size() + 1)));
  Text out;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append("\n", Origin::kTemplate);
    const bool indented = i == 0 ? in.flag(1) : in.flag(2) || !lines[i].empty();
    if (indented) out.append(indentation);
    out.append(lines[i]);
  }
  return Value(std::move(out));
}

Filtered items(CallInput& in) {
  if (in.subject.is<Undefined>()) return make_list({});
  const Dict* dict = in.subject.dict();
  if (dict == nullptr) {
    return failure(fmt::format("items: a dict is expected, not a {}", type_name(in.subject)));
  }
  return call_method(in.subject, "items", {}, in.budget);
}

Filtered join(CallInput& in) {
  Text separator;
  if (in.has(0)) {
    TRY(separator, printed(*in.arguments[0]));
  }
  TRY(auto parts, items_of(in.subject));
  for (Value& part : parts) {
    if (!in.has(1)) break;
    TRY(part, by_path(part, *in.arguments[1]));
  }
  TRY(Text text, joined(parts, separator, in.budget));
  return Value(std::move(text));
}

Filtered list(CallInput& in) {
  TRY_STATUS(charge(in.budget, in.subject.text() != nullptr ? in.subject.text()->size() * 64 : 0));
  TRY(auto parts, items_of(in.subject));
  return make_list(std::move(parts));
}

Filtered replace(CallInput& in) {
  TRY(const Text text, in.printed_subject());
  if (!in.has(0) || !in.has(1)) return failure("replace takes what to replace, and by what");
  TRY(const Text from, printed(*in.arguments[0]));
  TRY(const Text to, printed(*in.arguments[1]));
  TRY(const std::int64_t count, in.integer(2, -1));
  TRY(Text out, replaced(text, from, to, count, in.budget));
  return Value(std::move(out));
}

Filtered reverse(CallInput& in) {
  TRY(auto parts, items_of(in.subject));
  std::ranges::reverse(parts);
  if (in.subject.text() == nullptr) return make_list(std::move(parts));
  TRY(Text text, joined(parts, Text(), in.budget));
  return Value(std::move(text));
}

Filtered round(CallInput& in) {
  TRY(const std::int64_t precision, in.integer(0, 0));
  if (std::abs(precision) > 15) return failure("round: at most 15 digits");
  std::string_view method = "common";
  if (in.has(1)) {
    TRY(const Text* name, in.text(1));
    method = name->view();
  }
  double number = 0;
  if (const auto* integer = in.subject.integer()) {
    number = static_cast<double>(*integer);
  } else if (const auto* real = std::get_if<double>(&in.subject.variant())) {
    number = *real;
  } else {
    return failure(fmt::format("round: a number is expected, not a {}", type_name(in.subject)));
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil") return Value(std::ceil(number * scale) / scale);
  if (method == "floor") return Value(std::floor(number * scale) / scale);
  if (method != "common") return failure("round: the method is common, ceil or floor");
  if (in.subject.integer() != nullptr && precision >= 0) return in.subject;
  if (precision < 0) return Value(std::nearbyint(number * scale) / scale);
  // Python rounds the decimal number that the double stands for.
  return Value(std::strtod(fmt::format("{:.{}f}", number, precision).c_str(), nullptr));
}

// As the filter has it: words begin behind white space, brackets and hyphens.
Filtered title(CallInput& in) {
  TRY(const Text text, in.printed_subject());
  Text out;
  bool begins = true;
  for (std::size_t at = 0; at < text.size();) {
    const Character c = character_at(text.view(), at);
    const Text one = text.substr(at, c.length);
    out.append(with_case(one, begins ? Case::kUpper : Case::kLower));
    begins = is_space(c.code) || std::u32string_view(U"-({[<").contains(c.code);
    at += c.length;
  }
  return Value(std::move(out));
}

Filtered to_json_text(CallInput& in) {
  JsonStyle style;
  style.ascii = in.flag(0);
  style.sort_keys = in.flag(3);
  if (in.has(1) && !in.arguments[1]->is<None>()) {
    TRY(const std::int64_t indentation, in.integer(1, 0));
    constexpr std::int64_t kIndentMax = 16;
    if (indentation > kIndentMax) return failure("tojson: at most 16 blanks of indent");
    style.indent = static_cast<int>(std::max<std::int64_t>(indentation, 0));
  }
  if (in.has(2) && !in.arguments[2]->is<None>()) {
    const List* pair = in.arguments[2]->list();
    if (pair == nullptr || pair->items.size() != 2 || pair->items[0].text() == nullptr ||
        pair->items[1].text() == nullptr) {
      return failure("tojson: separators are two strings");
    }
    style.item_separator = pair->items[0].text()->bytes();
    style.key_separator = pair->items[1].text()->bytes();
  }
  const std::size_t blanks = 1 + static_cast<std::size_t>(std::max(style.indent, 0));
  TRY_STATUS(charge(in.budget, weight_of(in.subject) * blanks));
  TRY(std::string text, to_json(in.subject, style));
  return Value(Text(std::move(text), Origin::kValue));
}

Filtered trim(CallInput& in) {
  TRY(const Text text, in.printed_subject());
  if (!in.has(0) || in.arguments[0]->is<None>()) {
    return Value(strip(text, Ends::kBoth, nullptr));
  }
  TRY(const Text* set, in.text(0));
  return Value(strip(text, Ends::kBoth, &set->bytes()));
}

Filtered cased(CallInput& in, Case to) {
  TRY(const Text text, in.printed_subject());
  return Value(with_case(text, to));
}

struct Filter {
  std::string_view name;
  Parameters parameters;
  Filtered (*run)(CallInput&);
};

constexpr Filter kFilters[] = {
    {"abs", {}, absolute},
    {"capitalize",
     {},
     [](CallInput& in) -> Filtered {
       TRY(const Text text, in.printed_subject());
       return Value(capitalized(text));
     }},
    {"count", {}, length},
    {"d", {"default_value", "boolean"}, default_value},
    {"default", {"default_value", "boolean"}, default_value},
    {"dictsort", {"case_sensitive", "by", "reverse"}, sorted_entries},
    {"e", {}, escaped},
    {"escape", {}, escaped},
    {"first", {}, first},
    {"float", {"default"}, to_float},
    {"indent", {"width", "first", "blank"}, indent},
    {"int", {"default", "base"}, to_int},
    {"items", {}, items},
    {"join", {"d", "attribute"}, join},
    {"last", {}, last},
    {"length", {}, length},
    {"list", {}, list},
    {"lower", {}, [](CallInput& in) { return cased(in, Case::kLower); }},
    {"map", {"*"}, map_items},
    {"max",
     {"case_sensitive", "attribute"},
     [](CallInput& in) { return extreme_item(in, End::kLargest); }},
    {"min",
     {"case_sensitive", "attribute"},
     [](CallInput& in) { return extreme_item(in, End::kSmallest); }},
    {"reject", {"*"}, [](CallInput& in) { return choose_items(in, Keep::kFailing, Of::kItem); }},
    {"rejectattr",
     {"*"},
     [](CallInput& in) { return choose_items(in, Keep::kFailing, Of::kAttribute); }},
    {"replace", {"old", "new", "count"}, replace},
    {"reverse", {}, reverse},
    {"round", {"precision", "method"}, round},
    {"safe",
     {},
     [](CallInput& in) -> Filtered {
       TRY(Text text, in.printed_subject());
       return Value(std::move(text));
     }},
    {"select", {"*"}, [](CallInput& in) { return choose_items(in, Keep::kPassing, Of::kItem); }},
    {"selectattr",
     {"*"},
     [](CallInput& in) { return choose_items(in, Keep::kPassing, Of::kAttribute); }},
    {"sort", {"reverse", "case_sensitive", "attribute"}, sorted_items},
    {"string",
     {},
     [](CallInput& in) -> Filtered {
       TRY(Text text, in.printed_subject());
       return Value(std::move(text));
     }},
    {"sum", {"attribute", "start"}, sum_of_items},
    {"title", {}, title},
    {"tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, to_json_text},
    {"trim", {"chars"}, trim},
    {"unique", {"case_sensitive", "attribute"}, unique_items},
    {"upper", {}, [](CallInput& in) { return cased(in, Case::kUpper); }},
};

}  // namespace

bool is_filter(std::string_view name) {
  return std::ranges::find(kFilters, name, &Filter::name) != std::end(kFilters);
}

Fallible<Value> apply_filter(std::string_view name, const Value& subject,
                             const CallArguments& arguments, Budget& budget) {
  const Filter* filter = std::ranges::find(kFilters, name, &Filter::name);
  if (filter == std::end(kFilters)) {
    return failure(fmt::format("the filter '{}' isn't supported", name));
  }
  CallInput input{name, subject, {}, arguments, budget};
  TRY_STATUS(bind(filter->parameters, input));
  TRY(Value out, filter->run(input));
  const std::size_t made = out.list() != nullptr ? out.list()->items.size() * sizeof(Value) : 0;
  TRY_STATUS(charge(budget, made));
  return out;
}

}  // namespace penstock::jinja
