// Values of a template's run, with Python's notions of truth, equality, order and printing.
//
// Lists and dictionaries are immutable once made, so values share them; a namespace, which `set`
// may change, is owned by the run (evaluator.h).
//
// Invariants: dictionaries have text keys in the order in which they first came. At most
// kDepthMax containers stand in one another, so recursion over a value is safe.
// Errors: Failure, a sentence without a place; the evaluator adds the line.
// Concurrency: values; what they share is immutable but for namespaces, which one run owns.
// Source: the Jinja 3.1 template designer documentation; json.dumps of Python.
#pragma once

#include <cstdint>
#include <expected>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "core/prompt/jinja/text.h"

namespace penstock::jinja {

inline constexpr int kDepthMax = 128;

// Why something can't be parsed or evaluated.
struct Failure {
  std::string why;
  int line = 0;          // of the template; 0: not known yet
  bool refused = false;  // the template itself refused, by raise_exception
};
template <typename T>
using Fallible = std::expected<T, Failure>;
inline std::unexpected<Failure> failure(std::string why) {
  return std::unexpected(Failure{std::move(why)});
}

struct List;
struct Dict;
struct Namespace;
struct MacroStatement;

struct Undefined {
  std::string name;  // what was looked for
};
struct None {};
// An integer beyond 64 bits, as JSON may have: it can be printed.
struct BigInteger {
  std::shared_ptr<const std::string> digits;
};
// A function of the language, or a method that was named and not called.
struct Function {
  std::string_view name;
};

using TextPointer = std::shared_ptr<const Text>;
using ListPointer = std::shared_ptr<const List>;
using DictPointer = std::shared_ptr<const Dict>;

class Value {
 public:
  using Variant =
      std::variant<Undefined, None, bool, std::int64_t, double, BigInteger, TextPointer,
                   ListPointer, DictPointer, Namespace*, const MacroStatement*, Function>;

  Value() = default;
  template <typename T>
    requires std::constructible_from<Variant, T&&> && (!std::same_as<std::decay_t<T>, Value>)
  Value(T&& value) : value_(std::forward<T>(value)) {}  // NOLINT: a value is what it holds
  Value(Text text) : value_(std::make_shared<const Text>(std::move(text))) {}  // NOLINT
  static Value of(std::string_view text, Origin origin) { return Text(std::string(text), origin); }

  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(value_);
  }
  // Null when it is something else.
  const Text* text() const { return pointee<TextPointer>(); }
  const List* list() const { return pointee<ListPointer>(); }
  const Dict* dict() const { return pointee<DictPointer>(); }
  Namespace* space() const {
    const auto* pointer = std::get_if<Namespace*>(&value_);
    return pointer == nullptr ? nullptr : *pointer;
  }
  // An integer, true and false being 1 and 0; null when it is something else.
  const std::int64_t* integer() const { return std::get_if<std::int64_t>(&value_); }
  const Variant& variant() const { return value_; }

 private:
  template <typename Pointer>
  auto pointee() const -> decltype(std::declval<Pointer>().get()) {
    const auto* pointer = std::get_if<Pointer>(&value_);
    return pointer == nullptr ? nullptr : pointer->get();
  }
  Variant value_;
};

struct List {
  std::vector<Value> items;
  bool tuple = false;  // prints in round brackets
  int depth = 1;
  std::size_t weight = 0;
};

struct Dict {
  std::vector<std::pair<TextPointer, Value>> entries;
  std::unordered_map<std::string_view, std::size_t> index;  // of the keys, when there are many
  int depth = 1;
  std::size_t weight = 0;

  const Value* find(std::string_view key) const;
  // Replaces the value of a key that is there.
  void set(TextPointer key, Value value);
};

struct Namespace {
  Dict values;
};

// About the bytes that a value's print has: what work on all of it costs, however its parts are
// shared. At most kWeightMax for a container.
inline constexpr std::size_t kWeightMax = std::size_t{1} << 32;
std::size_t weight_of(const Value& value);

// Makes a container; a failure when it stands too deep or is too heavy.
Fallible<Value> make_list(std::vector<Value> items, bool tuple = false);
Fallible<Value> make_dict(Dict dict);

// The value that a JSON text stands for; its strings are of kValue. The text is checked.
Fallible<Value> from_json(std::string_view json);

bool truthy(const Value& value);
// "string", "number", ...: for messages.
std::string_view type_name(const Value& value);
bool equal(const Value& a, const Value& b);
// Negative, zero or positive; a failure when Python knows no order of the two.
Fallible<int> compare(const Value& a, const Value& b);
// As str() prints it.
Fallible<Text> printed(const Value& value);

struct JsonStyle {
  int indent = -1;  // below 0: one line
  bool sort_keys = false;
  bool ascii = false;
  std::string item_separator;  // both empty: as json.dumps has them
  std::string key_separator;
};
// As json.dumps prints it.
Fallible<std::string> to_json(const Value& value, const JsonStyle& style);

// The items of what a loop can run over: a list, a dictionary's keys, a text's characters.
Fallible<std::vector<Value>> items_of(const Value& value);

}  // namespace penstock::jinja
