// What templates may call: filters, tests, methods of strings and dictionaries.
//
// Every call is bounded by the size of its input; text that a call makes is charged to the budget
// by the evaluator. Errors: Failure without a line. Concurrency: pure.
// Source: the documentation of Jinja 3.1 and of Python's str; tojson as transformers defines it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/prompt/jinja/value.h"

namespace penstock::jinja {

struct CallArguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> keyword;
};

// What a template may use up. `bytes` counts the text and items made, thrown away or not.
struct Budget {
  std::size_t steps = 0;
  std::size_t bytes = 0;
};

bool is_filter(std::string_view name);
bool is_test(std::string_view name);
Fallible<Value> apply_filter(std::string_view name, const Value& subject,
                             const CallArguments& arguments, Budget& budget);
Fallible<bool> apply_test(std::string_view name, const Value& subject,
                          const CallArguments& arguments, Budget& budget);

// Whether `value` has a method of that name; a dictionary's methods hide its entries.
bool has_method(const Value& value, std::string_view name);
Fallible<Value> call_method(const Value& value, std::string_view name,
                            const CallArguments& arguments, Budget& budget);

// value[key]: an item, a character, an entry; undefined when there is none.
Fallible<Value> item_of(const Value& value, const Value& key);
// value.name
Fallible<Value> attribute_of(const Value& value, std::string_view name);

// Takes `bytes` of the budget.
Fallible<void> charge(Budget& budget, std::size_t bytes);

// range(...) as a list.
Fallible<Value> range_of(const CallArguments& arguments, Budget& budget);
// `contained in container`
Fallible<bool> contains(const Value& container, const Value& contained);
// A date as strftime prints it, from seconds since 1970, UTC.
Fallible<std::string> date_text(std::int64_t seconds, std::string_view format);

}  // namespace penstock::jinja
