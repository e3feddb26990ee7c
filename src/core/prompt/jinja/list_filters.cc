#include "core/prompt/jinja/list_filters.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <list>

namespace penstock::jinja {
namespace {

using Filtered = Fallible<Value>;

// The lower-case form of a text, anything else as it is: what ignores case compares by it.
Value folded(const Value& value, bool case_sensitive) {
  if (case_sensitive || value.text() == nullptr) return value;
  return with_case(*value.text(), Case::kLower);
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

}  // namespace

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

Filtered sorted_entries(CallInput& in) {
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

// map(attribute="a", default=...) or map("filter", arguments...)
Filtered map_items(CallInput& in) {
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

Filtered choose_items(CallInput& in, Keep keep, Of of) {
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

Filtered extreme_item(CallInput& in, End end) {
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

Filtered sorted_items(CallInput& in) {
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

Filtered sum_of_items(CallInput& in) {
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

Filtered unique_items(CallInput& in) {
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

}  // namespace penstock::jinja
