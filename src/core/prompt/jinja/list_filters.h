// Filters that look into lists and dictionaries: what items are chosen, how they are ordered.
// Errors, concurrency: as builtins.h.
#pragma once

#include "core/prompt/jinja/call_input.h"

namespace penstock::jinja {

// value's attribute "a.b.0", each part an item or an attribute; an undefined part ends it.
Fallible<Value> by_path(const Value& value, const Value& path);

enum class Keep : bool { kPassing, kFailing };
enum class Of : bool { kItem, kAttribute };
enum class End : bool { kSmallest, kLargest };

Fallible<Value> map_items(CallInput& in);
Fallible<Value> choose_items(CallInput& in, Keep keep, Of of);
Fallible<Value> extreme_item(CallInput& in, End end);
Fallible<Value> sorted_items(CallInput& in);
Fallible<Value> sorted_entries(CallInput& in);
Fallible<Value> sum_of_items(CallInput& in);
Fallible<Value> unique_items(CallInput& in);

}  // namespace penstock::jinja
