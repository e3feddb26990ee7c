#include "core/prompt/jinja/builtins.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <chrono>

#include "base/result.h"

namespace penstock::jinja {

Fallible<void> charge(Budget& budget, std::size_t bytes) {
  if (bytes > budget.bytes) {
    budget.bytes = 0;
    return failure("the template makes too much text; is there a loop that grows something?");
  }
  budget.bytes -= bytes;
  return {};
}

Fallible<Value> item_of(const Value& value, const Value& key) {
  if (value.is<Undefined>()) {
    return failure(fmt::format("'{}' is undefined and has no items",
                               std::get<Undefined>(value.variant()).name));
  }
  const Text* name = key.text();
  if (const Dict* dict = value.dict()) {
    if (name == nullptr) return Value(Undefined{"an entry whose key is no string"});
    if (const Value* found = dict->find(name->view())) return *found;
    if (has_method(value, name->view())) return Value(Function{"a method"});
    return Value(Undefined{name->bytes()});
  }
  if (Namespace* space = value.space(); space != nullptr && name != nullptr) {
    const Value* found = space->values.find(name->view());
    return found != nullptr ? *found : Value(Undefined{name->bytes()});
  }
  std::int64_t index = 0;
  if (const auto* integer = key.integer()) {
    index = *integer;
  } else if (const bool* flag = std::get_if<bool>(&key.variant())) {
    index = *flag ? 1 : 0;
  } else {
    return Value(Undefined{name != nullptr ? name->bytes() : "an item"});
  }
  const List* list = value.list();
  const Text* text = value.text();
  if (list == nullptr && text == nullptr) return Value(Undefined{"an item"});
  const auto size = static_cast<std::int64_t>(list != nullptr ? list->items.size()
                                                              : count_characters(text->view()));
  if (index < 0) index += size;
  if (index < 0 || index >= size) return Value(Undefined{fmt::format("item {}", index)});
  const auto at = static_cast<std::size_t>(index);
  if (list != nullptr) return list->items[at];
  const std::size_t byte = byte_of_character(text->view(), at);
  return Value(text->substr(byte, character_at(text->view(), byte).length));
}

Fallible<Value> attribute_of(const Value& value, std::string_view name) {
  if (const auto* undefined = std::get_if<Undefined>(&value.variant())) {
    return failure(
        fmt::format("'{}' is undefined and has no attribute '{}'", undefined->name, name));
  }
  if (has_method(value, name)) return Value(Function{"a method"});
  if (value.dict() != nullptr || value.space() != nullptr) {
    return item_of(value, Value::of(name, Origin::kTemplate));
  }
  return Value(Undefined{std::string(name)});
}

Fallible<Value> range_of(const CallArguments& arguments, Budget& budget) {
  std::array<std::int64_t, 3> parts = {0, 0, 1};
  const std::size_t count = arguments.positional.size();
  if (count == 0 || count > 3 || !arguments.keyword.empty()) {
    return failure("range takes one to three integers");
  }
  for (std::size_t i = 0; i < count; ++i) {
    const auto* integer = arguments.positional[i].integer();
    if (integer == nullptr) return failure("range takes one to three integers");
    parts[count == 1 ? 1 : i] = *integer;
  }
  const auto [start, stop, step] = parts;
  if (step == 0) return failure("the step of a range can't be 0");
  std::vector<Value> items;
  for (std::int64_t i = start; step > 0 ? i < stop : i > stop;) {
    TRY_STATUS(charge(budget, sizeof(Value)));
    items.emplace_back(i);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return make_list(std::move(items));
}

Fallible<bool> contains(const Value& container, const Value& contained) {
  if (const Text* text = container.text()) {
    if (contained.text() == nullptr) {
      return failure(fmt::format("a string holds strings, not a {}", type_name(contained)));
    }
    return text->view().contains(contained.text()->view());
  }
  if (const List* list = container.list()) {
    return std::ranges::any_of(list->items,
                               [&](const Value& item) { return equal(item, contained); });
  }
  if (const Dict* dict = container.dict()) {
    return contained.text() != nullptr && dict->find(contained.text()->view()) != nullptr;
  }
  if (container.is<Undefined>()) return false;
  return failure(fmt::format("nothing can be in a {}", type_name(container)));
}

Fallible<std::string> date_text(std::int64_t seconds, std::string_view format) {
  namespace chrono = std::chrono;
  const chrono::sys_seconds time{chrono::seconds(seconds)};
  const auto day = chrono::floor<chrono::days>(time);
  const chrono::year_month_day date(day);
  const chrono::hh_mm_ss clock(time - day);
  const chrono::weekday weekday(day);
  constexpr std::array<std::string_view, 12> kMonths = {
      "January", "February", "March",     "April",   "May",      "June",
      "July",    "August",   "September", "October", "November", "December"};
  constexpr std::array<std::string_view, 7> kDays = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                                     "Thursday", "Friday", "Saturday"};
  const auto month = kMonths[static_cast<unsigned>(date.month()) - 1];
  const auto day_name = kDays[weekday.c_encoding()];
  const auto hour = clock.hours().count();
  const auto yearday = (day - chrono::sys_days(date.year() / 1 / 1)).count() + 1;
  std::string out;
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    switch (++i < format.size() ? format[i] : '\0') {
      case 'Y':
        out += fmt::format("{}", static_cast<int>(date.year()));
        break;
      case 'y':
        out += fmt::format("{:02}", static_cast<int>(date.year()) % 100);
        break;
      case 'm':
        out += fmt::format("{:02}", static_cast<unsigned>(date.month()));
        break;
      case 'd':
        out += fmt::format("{:02}", static_cast<unsigned>(date.day()));
        break;
      case 'e':
        out += fmt::format("{:2}", static_cast<unsigned>(date.day()));
        break;
      case 'j':
        out += fmt::format("{:03}", yearday);
        break;
      case 'B':
        out += month;
        break;
      case 'b':
        out += month.substr(0, 3);
        break;
      case 'A':
        out += day_name;
        break;
      case 'a':
        out += day_name.substr(0, 3);
        break;
      case 'H':
        out += fmt::format("{:02}", hour);
        break;
      case 'I':
        out += fmt::format("{:02}", hour % 12 == 0 ? 12 : hour % 12);
        break;
      case 'p':
        out += hour < 12 ? "AM" : "PM";
        break;
      case 'M':
        out += fmt::format("{:02}", clock.minutes().count());
        break;
      case 'S':
        out += fmt::format("{:02}", clock.seconds().count());
        break;
      case 'F':
        out += fmt::format("{}-{:02}-{:02}", static_cast<int>(date.year()),
                           static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()));
        break;
      case 'Z':
        out += "UTC";
        break;
      case '%':
        out += '%';
        break;
      default:
        return failure(fmt::format("strftime_now: '%{}' in a format isn't supported",
                                   i < format.size() ? format.substr(i, 1) : ""));
    }
  }
  return out;
}

}  // namespace penstock::jinja
