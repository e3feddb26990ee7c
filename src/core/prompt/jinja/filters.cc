#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <list>
#include <optional>

#include "core/prompt/jinja/call_input.h"

namespace penstock::jinja {
namespace {

using Filtered = Fallible<Value>;

// The lower-case form of a text, anything else as it is: what ignores case compares by it.
Value folded(const Value& value, bool case_sensitive) {
  if (case_sensitive || value.text() == nullptr) return value;
  return with_case(*value.text(), Case::kLower);
}

// value's attribute "a.b.0", each part an item or an attribute; an undefined part ends it.
Filtered by_path(const Value& value, const Value& path) {
  if (path.text() == nullptr) return item_of(value, path);
  Value current = value;
  std::string_view rest = path.text()->view();
  while (true) {
    const std::string_view part = rest.substr(0, rest.find('.'));
    std::int64_t index = 0;
    const auto read = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number = !part.empty() && read.ec == std::errc() && read.ptr == part.end();
    TRY(Value next, item_of(current, number ? Value(index) : Value::of(part, Origin::kTemplate)));
    current = std::move(next);
    if (part.size() == rest.size()) return current;
    rest.remove_prefix(part.size() + 1);
  }
}

// Sorts and reports what has no order. A merge sort, which no odd order can lead astray.
Fallible<void> sort_by(std::vector<Value>& items, const std::function<Filtered(const Value&)>& key,
                       bool descending) {
  std::list<std::pair<Value, Value>> keyed;
  for (Value& item : items) {
    TRY(Value of_item, key(item));
    keyed.emplace_back(std::move(of_item), std::move(item));
  }
  Fallible<void> outcome;
  keyed.sort([&](const auto& a, const auto& b) {
    const auto order = descending ? compare(b.first, a.first) : compare(a.first, b.first);
    if (!order && outcome) outcome = std::unexpected(order.error());
    return order.value_or(0) < 0;
  });
  std::size_t next = 0;
  for (auto& entry : keyed)
    items[next++] = std::move(entry.second);
  return outcome;
}

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

Filtered dictsort(CallInput& in) {
  const Dict* dict = in.subject.dict();
  if (dict == nullptr) {
    return failure(fmt::format("dictsort: a dict is expected, not a {}", type_name(in.subject)));
  }
  std::int64_t column = 0;
  if (in.has(1)) {
    TRY(const Text* by, in.text(1));
    if (by->view() != "key" && by->view() != "value")
      return failure("dictsort: 'by' is 'key' or 'value'");
    column = by->view() == "value" ? 1 : 0;
  }
  std::vector<Value> items;
  for (const auto& [key, value] : dict->entries) {
    TRY(Value pair, make_list({key, value}, true));
    items.push_back(std::move(pair));
  }
  const auto key = [&](const Value& pair) -> Filtered {
    return folded(pair.list()->items[static_cast<std::size_t>(column)], in.flag(0));
  };
  TRY_STATUS(sort_by(items, key, in.flag(2)));
  return make_list(std::move(items));
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

// map(attribute="a", default=...) or map("filter", arguments...)
Filtered map(CallInput& in) {
  TRY(auto parts, items_of(in.subject));
  const CallArguments& all = in.all;
  if (all.positional.empty()) {
    const Value* path = nullptr;
    const Value* fallback = nullptr;
    for (const auto& [name, value] : all.keyword) {
      if (name == "attribute") {
        path = &value;
      } else if (name == "default") {
        fallback = &value;
      } else {
        return failure(fmt::format("map has no argument '{}'", name));
      }
    }
    if (path == nullptr) return failure("map takes the name of a filter, or attribute=...");
    for (Value& part : parts) {
      TRY(Value found, by_path(part, *path));
      part = fallback != nullptr && found.is<Undefined>() ? *fallback : std::move(found);
    }
    return make_list(std::move(parts));
  }
  const Text* name = all.positional[0].text();
  if (name == nullptr || !is_filter(name->view())) return failure("map: no such filter");
  CallArguments rest{{all.positional.begin() + 1, all.positional.end()}, all.keyword};
  for (Value& part : parts) {
    TRY(part, apply_filter(name->view(), part, rest, in.budget));
  }
  return make_list(std::move(parts));
}

enum class Keep : bool { kPassing, kFailing };
enum class Of : bool { kItem, kAttribute };

Filtered choose(CallInput& in, Keep keep, Of of) {
  TRY(const auto parts, items_of(in.subject));
  const auto& positional = in.all.positional;
  const std::size_t skip = of == Of::kAttribute ? 1 : 0;
  if (positional.size() < skip) {
    return failure(fmt::format("{} takes the name of an attribute", in.name));
  }
  const Text* test = positional.size() > skip ? positional[skip].text() : nullptr;
  if (positional.size() > skip && (test == nullptr || !is_test(test->view()))) {
    return failure(fmt::format("{}: no such test", in.name));
  }
  CallArguments rest;
  rest.keyword = in.all.keyword;
  if (test != nullptr) {
    rest.positional.assign(positional.begin() + static_cast<std::ptrdiff_t>(skip) + 1,
                           positional.end());
  }
  std::vector<Value> out;
  for (const Value& part : parts) {
    TRY_STATUS(charge(in.budget, sizeof(Value)));
    Value looked_at = part;
    if (of == Of::kAttribute) {
      TRY(looked_at, by_path(part, positional[0]));
    }
    bool passes = truthy(looked_at);
    if (test != nullptr) {
      TRY(passes, apply_test(test->view(), looked_at, rest, in.budget));
    }
    if (passes == (keep == Keep::kPassing)) out.push_back(part);
  }
  return make_list(std::move(out));
}

enum class End : bool { kSmallest, kLargest };

Filtered extreme(CallInput& in, End end) {
  TRY(const auto parts, items_of(in.subject));
  if (parts.empty()) return Value(Undefined{"the extreme of nothing"});
  const auto key = [&](const Value& part) -> Filtered {
    if (!in.has(1)) return folded(part, in.flag(0));
    TRY(const Value found, by_path(part, *in.arguments[1]));
    return folded(found, in.flag(0));
  };
  const Value* best = &parts[0];
  for (const Value& part : parts) {
    TRY(const Value a, key(part));
    TRY(const Value b, key(*best));
    TRY(const int order, compare(a, b));
    if (end == End::kSmallest ? order < 0 : order > 0) best = &part;
  }
  return *best;
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

Filtered sort(CallInput& in) {
  TRY(auto parts, items_of(in.subject));
  TRY_STATUS(charge(in.budget, 4 * weight_of(in.subject)));
  const auto key = [&](const Value& part) -> Filtered {
    if (!in.has(2)) return folded(part, in.flag(1));
    TRY(const Value found, by_path(part, *in.arguments[2]));
    return folded(found, in.flag(1));
  };
  TRY_STATUS(sort_by(parts, key, in.flag(0)));
  return make_list(std::move(parts));
}

Filtered sum(CallInput& in) {
  TRY(const auto parts, items_of(in.subject));
  std::int64_t integers = 0;
  double reals = 0;
  bool real = false;
  const auto add = [&](const Value& value) -> Fallible<void> {
    if (const auto* integer = value.integer()) {
      if (__builtin_add_overflow(integers, *integer, &integers)) {
        return failure("sum: beyond 64 bits");
      }
    } else if (const auto* number = std::get_if<double>(&value.variant())) {
      reals += *number;
      real = true;
    } else {
      return failure(fmt::format("sum: a number is expected, not a {}", type_name(value)));
    }
    return {};
  };
  if (in.has(1)) TRY_STATUS(add(*in.arguments[1]));
  for (const Value& part : parts) {
    if (in.has(0)) {
      TRY(const Value found, by_path(part, *in.arguments[0]));
      TRY_STATUS(add(found));
    } else {
      TRY_STATUS(add(part));
    }
  }
  if (real) return Value(reals + static_cast<double>(integers));
  return Value(integers);
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

Filtered unique(CallInput& in) {
  TRY(const auto parts, items_of(in.subject));
  std::vector<Value> seen;
  std::vector<Value> out;
  for (const Value& part : parts) {
    Value key = part;
    if (in.has(1)) {
      TRY(key, by_path(part, *in.arguments[1]));
    }
    key = folded(key, in.flag(0));
    TRY_STATUS(charge(in.budget, seen.size() * sizeof(Value) + weight_of(key)));
    if (std::ranges::any_of(seen, [&](const Value& other) { return equal(other, key); })) continue;
    seen.push_back(std::move(key));
    out.push_back(part);
  }
  return make_list(std::move(out));
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
    {"dictsort", {"case_sensitive", "by", "reverse"}, dictsort},
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
    {"map", {"*"}, map},
    {"max",
     {"case_sensitive", "attribute"},
     [](CallInput& in) { return extreme(in, End::kLargest); }},
    {"min",
     {"case_sensitive", "attribute"},
     [](CallInput& in) { return extreme(in, End::kSmallest); }},
    {"reject", {"*"}, [](CallInput& in) { return choose(in, Keep::kFailing, Of::kItem); }},
    {"rejectattr", {"*"}, [](CallInput& in) { return choose(in, Keep::kFailing, Of::kAttribute); }},
    {"replace", {"old", "new", "count"}, replace},
    {"reverse", {}, reverse},
    {"round", {"precision", "method"}, round},
    {"safe",
     {},
     [](CallInput& in) -> Filtered {
       TRY(Text text, in.printed_subject());
       return Value(std::move(text));
     }},
    {"select", {"*"}, [](CallInput& in) { return choose(in, Keep::kPassing, Of::kItem); }},
    {"selectattr", {"*"}, [](CallInput& in) { return choose(in, Keep::kPassing, Of::kAttribute); }},
    {"sort", {"reverse", "case_sensitive", "attribute"}, sort},
    {"string",
     {},
     [](CallInput& in) -> Filtered {
       TRY(Text text, in.printed_subject());
       return Value(std::move(text));
     }},
    {"sum", {"attribute", "start"}, sum},
    {"title", {}, title},
    {"tojson", {"ensure_ascii", "indent", "separators", "sort_keys"}, to_json_text},
    {"trim", {"chars"}, trim},
    {"unique", {"case_sensitive", "attribute"}, unique},
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
