#include <unicode/uchar.h>
#include <algorithm>
#include <span>

#include "core/prompt/jinja/call_input.h"

namespace penstock::jinja {
namespace {

using Called = Fallible<Value>;

// Where pieces are cut: from the left or the right, at most `limit` times.
Called split(CallInput& in, bool from_right) {
  const Text& text = *in.subject.text();
  TRY(const std::int64_t asked, in.integer(1, -1));
  const std::size_t limit = asked < 0 ? std::string::npos : static_cast<std::size_t>(asked);
  const bool at_space = !in.has(0) || in.arguments[0]->is<None>();
  TRY_STATUS(charge(in.budget, text.size()));
  std::vector<Value> parts;
  if (at_space) {
    if (from_right && limit != std::string::npos) {
      return failure("rsplit at white space with a limit isn't supported");
    }
    Text rest = strip(text, Ends::kLeft, nullptr);
    while (!rest.empty()) {
      std::size_t end = 0;
      while (end < rest.size() && !is_space(character_at(rest.view(), end).code))
        end += character_at(rest.view(), end).length;
      if (parts.size() == limit) end = rest.size();
      TRY_STATUS(charge(in.budget, rest.size() / 64 + sizeof(Value)));
      parts.emplace_back(rest.substr(0, end));
      rest = strip(rest.substr(end), Ends::kLeft, nullptr);
    }
    return make_list(std::move(parts));
  }
  TRY(const Text* separator, in.text(0));
  if (separator->empty()) return failure("split: an empty separator");
  std::size_t begin = 0;
  std::size_t end = text.size();
  while (parts.size() < limit) {
    const std::size_t found =
        from_right ? (end < separator->size()
                          ? std::string::npos
                          : text.view().rfind(separator->view(), end - separator->size()))
                   : text.view().find(separator->view(), begin);
    if (found == std::string::npos) break;
    TRY_STATUS(charge(in.budget, sizeof(Value)));
    if (from_right) {
      parts.emplace_back(text.substr(found + separator->size(), end - found - separator->size()));
      end = found;
    } else {
      parts.emplace_back(text.substr(begin, found - begin));
      begin = found + separator->size();
    }
  }
  parts.emplace_back(text.substr(begin, end - begin));
  if (from_right) std::ranges::reverse(parts);
  return make_list(std::move(parts));
}

// A prefix or suffix, or one of a tuple of them.
Called has_end(CallInput& in, bool front) {
  const std::string_view text = in.subject.text()->view();
  const auto fits = [&](const Text& end) {
    return front ? text.starts_with(end.view()) : text.ends_with(end.view());
  };
  if (in.has(0) && in.arguments[0]->list() != nullptr && in.arguments[0]->list()->tuple) {
    for (const Value& end : in.arguments[0]->list()->items) {
      if (end.text() != nullptr && fits(*end.text())) return Value(true);
    }
    return Value(false);
  }
  TRY(const Text* end, in.text(0));
  return Value(fits(*end));
}

Called stripped(CallInput& in, Ends ends) {
  const Text& text = *in.subject.text();
  TRY_STATUS(charge(in.budget, text.size()));
  if (!in.has(0) || in.arguments[0]->is<None>()) return Value(strip(text, ends, nullptr));
  TRY(const Text* set, in.text(0));
  return Value(strip(text, ends, &set->bytes()));
}

Called without_end(CallInput& in, bool front) {
  const Text& text = *in.subject.text();
  TRY(const Text* end, in.text(0));
  TRY_STATUS(charge(in.budget, text.size()));
  if (front && text.view().starts_with(end->view())) return Value(text.substr(end->size()));
  if (!front && text.view().ends_with(end->view())) {
    return Value(text.substr(0, text.size() - end->size()));
  }
  return in.subject;
}

Called find(CallInput& in, bool from_right) {
  const std::string_view text = in.subject.text()->view();
  TRY(const Text* wanted, in.text(0));
  TRY_STATUS(charge(in.budget, text.size() / 8));
  const std::size_t at = from_right ? text.rfind(wanted->view()) : text.find(wanted->view());
  if (at == std::string_view::npos) return Value(std::int64_t{-1});
  return Value(static_cast<std::int64_t>(count_characters(text.substr(0, at))));
}

Called count(CallInput& in) {
  const std::string_view text = in.subject.text()->view();
  TRY(const Text* wanted, in.text(0));
  TRY_STATUS(charge(in.budget, text.size() / 8));
  if (wanted->empty()) return Value(static_cast<std::int64_t>(count_characters(text) + 1));
  std::int64_t found = 0;
  for (std::size_t at = 0; (at = text.find(wanted->view(), at)) != std::string_view::npos;
       at += wanted->size())
    ++found;
  return Value(found);
}

Called all_are(CallInput& in, bool (*fits)(char32_t)) {
  const std::string_view text = in.subject.text()->view();
  TRY_STATUS(charge(in.budget, text.size() / 8));
  for (std::size_t at = 0; at < text.size();) {
    const Character c = character_at(text, at);
    if (!fits(c.code)) return Value(false);
    at += c.length;
  }
  return Value(!text.empty());
}

Called title(CallInput& in) {
  const Text& text = *in.subject.text();
  TRY_STATUS(charge(in.budget, text.size() * 2));
  Text out;
  bool inside = false;
  for (std::size_t at = 0; at < text.size();) {
    const Character c = character_at(text.view(), at);
    out.append(with_case(text.substr(at, c.length), inside ? Case::kLower : Case::kUpper));
    const auto code = static_cast<UChar32>(c.code);
    inside = u_isUUppercase(code) != 0 || u_isULowercase(code) != 0 || u_istitle(code) != 0;
    at += c.length;
  }
  return Value(std::move(out));
}

struct Method {
  std::string_view name;
  Parameters parameters;
  Called (*run)(CallInput&);
};

constexpr Method kTextMethods[] = {
    {"strip", {"chars"}, [](CallInput& in) { return stripped(in, Ends::kBoth); }},
    {"lstrip", {"chars"}, [](CallInput& in) { return stripped(in, Ends::kLeft); }},
    {"rstrip", {"chars"}, [](CallInput& in) { return stripped(in, Ends::kRight); }},
    {"split", {"sep", "maxsplit"}, [](CallInput& in) { return split(in, false); }},
    {"rsplit", {"sep", "maxsplit"}, [](CallInput& in) { return split(in, true); }},
    {"splitlines",
     {},
     [](CallInput& in) -> Called {
       TRY_STATUS(charge(in.budget, 2 * in.subject.text()->size()));
       std::vector<Value> lines;
       for (Text& line : lines_of(*in.subject.text()))
         lines.emplace_back(std::move(line));
       if (!lines.empty() && lines.back().text()->empty()) lines.pop_back();
       return make_list(std::move(lines));
     }},
    {"startswith", {"prefix"}, [](CallInput& in) { return has_end(in, true); }},
    {"endswith", {"suffix"}, [](CallInput& in) { return has_end(in, false); }},
    {"removeprefix", {"prefix"}, [](CallInput& in) { return without_end(in, true); }},
    {"removesuffix", {"suffix"}, [](CallInput& in) { return without_end(in, false); }},
    {"replace",
     {"old", "new", "count"},
     [](CallInput& in) -> Called {
       TRY(const Text* from, in.text(0));
       TRY(const Text* to, in.text(1));
       TRY(const std::int64_t limit, in.integer(2, -1));
       TRY(Text out, replaced(*in.subject.text(), *from, *to, limit, in.budget));
       return Value(std::move(out));
     }},
    {"upper",
     {},
     [](CallInput& in) -> Called {
       TRY_STATUS(charge(in.budget, in.subject.text()->size()));
       return Value(with_case(*in.subject.text(), Case::kUpper));
     }},
    {"lower",
     {},
     [](CallInput& in) -> Called {
       TRY_STATUS(charge(in.budget, in.subject.text()->size()));
       return Value(with_case(*in.subject.text(), Case::kLower));
     }},
    {"title", {}, title},
    {"capitalize",
     {},
     [](CallInput& in) -> Called {
       TRY_STATUS(charge(in.budget, in.subject.text()->size()));
       return Value(capitalized(*in.subject.text()));
     }},
    {"find", {"sub"}, [](CallInput& in) { return find(in, false); }},
    {"rfind", {"sub"}, [](CallInput& in) { return find(in, true); }},
    {"count", {"sub"}, count},
    {"join",
     {"iterable"},
     [](CallInput& in) -> Called {
       if (!in.has(0)) return failure("join takes a list");
       TRY(const auto items, items_of(*in.arguments[0]));
       for (const Value& item : items) {
         if (item.text() == nullptr) {
           return failure(fmt::format("join: a string is expected, not a {}", type_name(item)));
         }
       }
       TRY(Text out, joined(items, *in.subject.text(), in.budget));
       return Value(std::move(out));
     }},
    {"isdigit",
     {},
     [](CallInput& in) {
       return all_are(in, [](char32_t code) { return u_isdigit(static_cast<UChar32>(code)) != 0; });
     }},
    {"isalpha",
     {},
     [](CallInput& in) {
       return all_are(in, [](char32_t code) { return u_isalpha(static_cast<UChar32>(code)) != 0; });
     }},
    {"isspace", {}, [](CallInput& in) { return all_are(in, is_space); }},
};

Called entries(CallInput& in, bool keys, bool values) {
  const Dict& dict = *in.subject.dict();
  TRY_STATUS(charge(in.budget, dict.entries.size() * 4 * sizeof(Value)));
  std::vector<Value> out;
  for (const auto& [key, value] : dict.entries) {
    if (keys && values) {
      TRY(Value pair, make_list({key, value}, true));
      out.push_back(std::move(pair));
    } else {
      out.push_back(keys ? Value(key) : value);
    }
  }
  return make_list(std::move(out));
}

Called get(CallInput& in) {
  if (!in.has(0)) return failure("get takes a key");
  const Text* key = in.arguments[0]->text();
  const Value* found = key == nullptr ? nullptr : in.subject.dict()->find(key->view());
  if (found != nullptr) return *found;
  return in.has(1) ? *in.arguments[1] : Value(None{});
}

constexpr Method kDictMethods[] = {
    {"get", {"key", "default"}, get},
    {"items", {}, [](CallInput& in) { return entries(in, true, true); }},
    {"keys", {}, [](CallInput& in) { return entries(in, true, false); }},
    {"values", {}, [](CallInput& in) { return entries(in, false, true); }},
    {"copy", {}, [](CallInput& in) -> Called { return in.subject; }},
};

constexpr Method kListMethods[] = {
    {"index",
     {"value"},
     [](CallInput& in) -> Called {
       if (!in.has(0)) return failure("index takes a value");
       TRY_STATUS(charge(in.budget, weight_of(in.subject)));
       const auto& items = in.subject.list()->items;
       for (std::size_t i = 0; i < items.size(); ++i) {
         if (equal(items[i], *in.arguments[0])) return Value(static_cast<std::int64_t>(i));
       }
       return failure("index: the value isn't in the list");
     }},
    {"count",
     {"value"},
     [](CallInput& in) -> Called {
       if (!in.has(0)) return failure("count takes a value");
       TRY_STATUS(charge(in.budget, weight_of(in.subject)));
       return Value(static_cast<std::int64_t>(std::ranges::count_if(
           in.subject.list()->items,
           [&](const Value& item) { return equal(item, *in.arguments[0]); })));
     }},
};

// What Python has and templates may not call: they hide a dictionary's entries all the same.
constexpr std::string_view kChangingDict[] = {"clear",   "fromkeys",   "pop",
                                              "popitem", "setdefault", "update"};
constexpr std::string_view kChangingList[] = {"append", "clear",  "copy",    "extend", "insert",
                                              "pop",    "remove", "reverse", "sort"};

struct Methods {
  std::span<const Method> known;
  std::span<const std::string_view> refused;
};
Methods methods_of(const Value& value) {
  if (value.text() != nullptr) return {kTextMethods, {}};
  if (value.dict() != nullptr) return {kDictMethods, kChangingDict};
  if (value.list() != nullptr) return {kListMethods, kChangingList};
  return {};
}

}  // namespace

bool has_method(const Value& value, std::string_view name) {
  const Methods methods = methods_of(value);
  return std::ranges::find(methods.known, name, &Method::name) != methods.known.end() ||
         std::ranges::find(methods.refused, name) != methods.refused.end();
}

Fallible<Value> call_method(const Value& value, std::string_view name,
                            const CallArguments& arguments, Budget& budget) {
  const Methods methods = methods_of(value);
  const auto method = std::ranges::find(methods.known, name, &Method::name);
  if (method == methods.known.end()) {
    if (std::ranges::find(methods.refused, name) != methods.refused.end()) {
      return failure(
          fmt::format("'{}' would change a {}, which templates may not", name, type_name(value)));
    }
    return failure(fmt::format("a {} has no method '{}' here", type_name(value), name));
  }
  CallInput input{name, value, {}, arguments, budget};
  TRY_STATUS(bind(method->parameters, input));
  return method->run(input);
}

Fallible<Text> replaced(const Text& text, const Text& from, const Text& to, std::int64_t count,
                        Budget& budget) {
  const std::size_t limit = count < 0 ? std::string::npos : static_cast<std::size_t>(count);
  TRY_STATUS(charge(budget, text.size()));
  Text out;
  std::size_t begin = 0;
  for (std::size_t done = 0; done < limit; ++done) {
    std::size_t found = 0;
    if (from.empty()) {  // before every character, and at the end
      if (begin > text.size() || (done > 0 && begin == text.size())) break;
      found = done == 0 ? 0 : begin + character_at(text.view(), begin).length;
    } else {
      found = text.view().find(from.view(), begin);
    }
    if (found == std::string::npos) break;
    TRY_STATUS(charge(budget, to.size()));
    out.append(text.substr(begin, found - begin));
    out.append(to);
    begin = found + from.size();
  }
  out.append(text.substr(begin));
  return out;
}

Text capitalized(const Text& text) {
  if (text.empty()) return text;
  const std::size_t first = character_at(text.view(), 0).length;
  Text out = with_case(text.substr(0, first), Case::kUpper);
  out.append(with_case(text.substr(first), Case::kLower));
  return out;
}

Fallible<Text> joined(const std::vector<Value>& items, const Text& separator, Budget& budget) {
  Text out;
  for (std::size_t i = 0; i < items.size(); ++i) {
    TRY_STATUS(charge(budget, weight_of(items[i]) + separator.size()));
    TRY(const Text part, printed(items[i]));
    if (i > 0) out.append(separator);
    out.append(part);
  }
  return out;
}

std::vector<Text> lines_of(const Text& text) {
  std::vector<Text> lines;
  const std::string_view bytes = text.view();
  std::size_t begin = 0;
  for (std::size_t at = 0; at < bytes.size();) {
    const Character c = character_at(bytes, at);
    const bool ends = (c.code >= 0x0a && c.code <= 0x0d) || (c.code >= 0x1c && c.code <= 0x1e) ||
                      c.code == 0x85 || c.code == 0x2028 || c.code == 0x2029;
    const std::size_t end = at;
    at += c.length;
    if (!ends) continue;
    if (c.code == '\r' && at < bytes.size() && bytes[at] == '\n') ++at;
    lines.push_back(text.substr(begin, end - begin));
    begin = at;
  }
  lines.push_back(text.substr(begin));
  return lines;
}

}  // namespace penstock::jinja
