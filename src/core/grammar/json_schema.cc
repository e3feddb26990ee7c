#include "core/grammar/json_schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/grammar/formats.h"
#include "core/grammar/number_range.h"
#include "core/grammar/schema_merge.h"

namespace penstock::grammar {
namespace {

namespace json = boost::json;
using State = GrammarBuilder::State;

// The number as written in a document: 1, not 1.0 or 1E0.
std::string number_text(const json::value& value) {
  if (value.is_int64()) return fmt::format("{}", value.get_int64());
  if (value.is_uint64()) return fmt::format("{}", value.get_uint64());
  const double number = value.get_double();
  if (number == static_cast<double>(static_cast<std::int64_t>(number)) && number < 9e15 &&
      number > -9e15)
    return fmt::format("{}", static_cast<std::int64_t>(number));
  return fmt::format("{}", number);
}

class SchemaCompiler {
 public:
  SchemaCompiler(CommonRules& rules, const json::value& document, const GrammarLimits& limits)
      : rules_(rules), b_(rules.builder()), merger_(document), limits_(limits) {}

  Status run(const json::value& schema, const std::string& path, State from, State to) {
    TRY_STATUS(this->schema(schema, path, from, to, 0));
    while (!waiting_.empty()) {
      const Waiting next = waiting_.front();
      waiting_.pop_front();
      TRY_STATUS(this->schema(*next.schema, next.path, b_.start(next.rule), b_.end(next.rule), 0));
    }
    return {};
  }

 private:
  struct Waiting {
    const json::value* schema;
    std::string path;
    GrammarBuilder::RuleId rule;
  };

  Status schema(const json::value& schema, const std::string& path, State from, State to,
                std::uint32_t depth) {
    if (depth > limits_.depth_max || ++visited_ > limits_.nodes_max || !b_.within_limits()) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("the schema is too large, nested too deeply, or refers to itself "
                              "without end, at {}",
                              path),
                  path);
    }
    if (schema.is_bool()) {
      if (schema.get_bool()) rules_.value(from, to);
      return {};
    }
    if (!schema.is_object())
      return SchemaMerger::wrong(path, "a schema must be an object, true or false");
    const json::object& words = schema.get_object();
    TRY_STATUS(merger_.check_words(words, path));
    if (const json::value* ref = words.if_contains("$ref")) {
      if (!SchemaMerger::constrains(words, {"$ref"})) return reference(*ref, path, from, to);
      TRY(const json::value merged, merger_.with_reference(words, path));
      return this->schema(merged, path, from, to, depth + 1);
    }
    if (words.contains("allOf")) {
      TRY(const json::value merged, merger_.with_all_of(words, path));
      return this->schema(merged, path, from, to, depth + 1);
    }
    for (const char* word : {"anyOf", "oneOf"}) {
      if (!words.contains(word)) continue;
      TRY(const std::vector<json::value> branches, merger_.branches(words, word, path));
      for (std::size_t i = 0; i < branches.size(); ++i) {
        TRY_STATUS(
            this->schema(branches[i], fmt::format("{}/{}/{}", path, word, i), from, to, depth + 1));
      }
      return {};
    }
    TRY(const SchemaTypes types, SchemaMerger::types_of(words, path));
    if (words.contains("const") || words.contains("enum"))
      return fixed_values(words, types, path, from, to);
    if (!SchemaMerger::constrains(words, {})) {
      rules_.value(from, to);
      return {};
    }
    if (types.null) b_.literal(from, "null", to);
    if (types.boolean) {
      b_.literal(from, "true", to);
      b_.literal(from, "false", to);
    }
    if (types.integer || types.number) TRY_STATUS(number(words, !types.number, path, from, to));
    if (types.string) TRY_STATUS(string(words, path, from, to));
    if (types.array) TRY_STATUS(array(words, path, from, to, depth));
    if (types.object) TRY_STATUS(object(words, path, from, to, depth));
    return {};
  }

  Status reference(const json::value& ref, const std::string& path, State from, State to) {
    TRY(const SchemaMerger::Target target, merger_.resolve(ref, path + "/$ref"));
    const auto found = references_.find(target.path);
    if (found != references_.end()) {
      b_.call(from, found->second, to);
      return {};
    }
    const auto rule = b_.rule("the schema at " + target.path);
    references_.emplace(target.path, rule);
    waiting_.push_back({target.schema, target.path, rule});
    b_.call(from, rule, to);
    return {};
  }

  Status fixed_values(const json::object& words, const SchemaTypes& types, const std::string& path,
                      State from, State to) {
    for (const auto& [word, value] : words) {
      const std::string_view name = word;
      if (name != "type" && name != "const" && name != "enum" &&
          SchemaMerger::is_constraint(name)) {
        return fail(
            ErrorCode::kUnsupported,
            fmt::format("\"{}\" beside enum or const, at {}, isn't supported; leave out the "
                        "values that it forbids",
                        name, path),
            path + "/" + std::string(name));
      }
    }
    TRY(const std::vector<json::value> values, SchemaMerger::values_of(words, path));
    for (const json::value& value : values) {
      if (types.allow(value)) fixed(value, from, to);
    }
    return {};
  }

  void fixed(const json::value& value, State from, State to) {
    if (value.is_object() && !value.get_object().empty()) {
      State at = b_.state();
      b_.edge(from, '{', '{', at);
      bool first = true;
      for (const auto& [key, member] : value.get_object()) {
        at = member_begin(at, first, key);
        first = false;
        const State next = b_.state();
        fixed(member, at, next);
        at = next;
      }
      rules_.close(at, '}', to);
    } else if (value.is_array() && !value.get_array().empty()) {
      State at = b_.state();
      b_.edge(from, '[', '[', at);
      bool first = true;
      for (const json::value& item : value.get_array()) {
        at = separated(at, first);
        first = false;
        const State next = b_.state();
        fixed(item, at, next);
        at = next;
      }
      rules_.close(at, ']', to);
    } else if (value.is_object() || value.is_array()) {
      b_.literal(from, value.is_object() ? "{}" : "[]", to);
    } else if (value.is_string()) {
      b_.literal(from, "\"" + json_escaped(std::string_view(value.get_string())) + "\"", to);
    } else if (value.is_null()) {
      b_.literal(from, "null", to);
    } else if (value.is_bool()) {
      b_.literal(from, value.get_bool() ? "true" : "false", to);
    } else {
      b_.literal(from, number_text(value), to);
    }
  }
  // After "{", "[" or an element: where the next one begins.
  State separated(State at, bool first) {
    if (!first) {
      const State comma = b_.state();
      b_.edge(at, ',', ',', comma);
      at = comma;
    }
    const State out = b_.state();
    rules_.gap(at, out);
    return out;
  }
  State member_begin(State at, bool first, std::string_view key) {
    return after_key(separated(at, first), key);
  }
  State after_key(State at, std::string_view key) {
    const State colon = b_.state();
    const State value = b_.state();
    b_.literal(at, "\"" + json_escaped(key) + "\"", colon);
    rules_.colon(colon, value);
    return value;
  }

  Result<std::optional<Decimal>> decimal(const json::object& words, std::string_view word,
                                         const std::string& path) {
    const json::value* value = words.if_contains(word);
    if (value == nullptr) return std::nullopt;
    const auto out = value->is_number() ? Decimal::parse(number_text(*value)) : std::nullopt;
    if (!out) {
      return SchemaMerger::wrong(fmt::format("{}/{}", path, word),
                                 "it must be a number of at most 40 digits");
    }
    return out;
  }

  Status number(const json::object& words, bool whole, const std::string& path, State from,
                State to) {
    NumberRange range;
    range.whole = whole;
    const auto tighter = [](const Decimal& a, const Decimal& b, bool larger) {
      return compare(a, b) == (larger ? 1 : -1);
    };
    for (const bool lower : {true, false}) {
      auto& bound = lower ? range.min : range.max;
      TRY(const auto inclusive, decimal(words, lower ? "minimum" : "maximum", path));
      TRY(const auto exclusive,
          decimal(words, lower ? "exclusiveMinimum" : "exclusiveMaximum", path));
      if (inclusive) bound = NumberBound{*inclusive, true};
      if (exclusive && (!inclusive || !tighter(*inclusive, *exclusive, lower)))
        bound = NumberBound{*exclusive, false};
    }
    TRY(range.multiple_of, decimal(words, "multipleOf", path));
    if (range.multiple_of && (range.multiple_of->zero() || range.multiple_of->negative))
      return SchemaMerger::wrong(path + "/multipleOf", "it must be greater than 0");
    if (!range.min && !range.max && !range.multiple_of) {
      whole ? rules_.integer(from, to) : rules_.number(from, to);
      return {};
    }
    auto automaton = number_automaton(range, limits_);
    if (!automaton) return at(std::move(automaton).error(), path);
    b_.text(from, *automaton, Spelling::kRaw, to);
    return {};
  }
  static int compare(const Decimal& a, const Decimal& b) {
    if (a.negative != b.negative) return a.negative ? -1 : 1;
    const int sign = a.negative ? -1 : 1;
    if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -sign : sign;
    const int order = (a.whole + a.fraction).compare(b.whole + b.fraction);
    return order == 0 ? 0 : order < 0 ? -sign : sign;
  }
  static std::unexpected<Error> at(Error error, const std::string& path) {
    error.message += fmt::format(" (at {})", path);
    error.field = path;
    return std::unexpected(std::move(error));
  }

  Status string(const json::object& words, const std::string& path, State from, State to) {
    TRY(const std::uint32_t min, SchemaMerger::count(words, "minLength", 0, path));
    TRY(const std::uint32_t max, SchemaMerger::count(words, "maxLength", kUnbounded, path));
    std::optional<TextAutomaton> all;
    const auto narrow = [&](std::string_view pattern, PatternMatch match,
                            std::string_view word) -> Status {
      const std::string place = fmt::format("{}/{}", path, word);
      auto part = pattern_automaton(pattern, match, limits_);
      if (!part) return at(std::move(part).error(), place);
      if (all) part = intersect(*all, *part, limits_);
      if (!part) return at(std::move(part).error(), place);
      all = std::move(*part);
      return {};
    };
    if (const json::value* pattern = words.if_contains("pattern")) {
      if (!pattern->is_string())
        return SchemaMerger::wrong(path + "/pattern", "it must be a string");
      TRY_STATUS(narrow(std::string_view(pattern->get_string()), PatternMatch::kSearch, "pattern"));
    }
    if (const json::value* format = words.if_contains("format")) {
      if (!format->is_string()) return SchemaMerger::wrong(path + "/format", "it must be a string");
      const std::string_view name = format->get_string();
      const auto pattern = format_pattern(name);
      if (!pattern) {
        return fail(ErrorCode::kUnsupported,
                    fmt::format("the format \"{}\" at {} isn't supported; leave it out, or use one "
                                "of: {}",
                                name, path, format_names()),
                    path + "/format");
      }
      TRY_STATUS(narrow(*pattern, PatternMatch::kWhole, "format"));
    }
    if (!all) {
      rules_.string(from, min, max, to);
      return {};
    }
    if (min > 0 || max != kUnbounded) {
      auto length = length_automaton(min, max, limits_);
      if (length) length = intersect(*all, *length, limits_);
      if (!length) return at(std::move(length).error(), path);
      all = std::move(*length);
    }
    const State open = b_.state();
    const State close = b_.state();
    b_.edge(from, '"', '"', open);
    b_.text(open, *all, Spelling::kJson, close);
    b_.edge(close, '"', '"', to);
    return {};
  }

  Status array(const json::object& words, const std::string& path, State from, State to,
               std::uint32_t depth) {
    TRY(const std::uint32_t min, SchemaMerger::count(words, "minItems", 0, path));
    TRY(const std::uint32_t max, SchemaMerger::count(words, "maxItems", kUnbounded, path));
    const json::value any = true;
    const json::value* items = words.if_contains("items");
    if (items == nullptr) items = &any;
    static const json::array kNone;
    const json::value* prefix_value = words.if_contains("prefixItems");
    if (prefix_value != nullptr && !prefix_value->is_array())
      return SchemaMerger::wrong(path + "/prefixItems", "it must be a list of schemas");
    const json::array& prefix = prefix_value != nullptr ? prefix_value->get_array() : kNone;
    if (min > max) return {};
    // The rule counts the elements behind the prefix, by the commas before them. An element that is
    // the first of all has none, so then there is one comma less.
    const bool headless = prefix.empty();
    const auto past = [&](std::uint32_t bound) {
      const auto before = static_cast<std::uint32_t>(headless ? 1 : prefix.size());
      return bound == kUnbounded ? kUnbounded : bound - std::min(bound, before);
    };
    const bool counts = past(min) > 0 || max != kUnbounded;
    const auto rule = b_.rule("an array", {.min = past(min), .max = past(max), .counts = counts});
    b_.call(from, rule, to);
    const State end = b_.end(rule);
    State at = b_.state();
    b_.edge(b_.start(rule), '[', '[', at);
    if (min == 0) {
      const State inner = b_.state();
      rules_.gap(at, inner);
      b_.edge(inner, ']', ']', end);
    }
    for (std::uint32_t i = 0; i < prefix.size() && i < max; ++i) {
      const State begin = separated(at, i == 0);
      at = b_.state();
      TRY_STATUS(
          schema(prefix[i], fmt::format("{}/prefixItems/{}", path, i), begin, at, depth + 1));
      if (i + 1 < prefix.size() && i + 1 >= min) rules_.close(at, ']', end);
    }
    if (max == 0) return {};
    if (!headless && max < prefix.size()) {
      rules_.close(at, ']', end);
      return {};
    }
    // `at` is behind the prefix, or behind "[".
    const State item = b_.state();
    const State after = headless ? b_.state() : at;
    if (headless) rules_.gap(at, item);
    TRY_STATUS(schema(*items, path + "/items", item, after, depth + 1));
    const State comma = b_.state();
    b_.edge(after, ',', ',', comma, counts ? EdgeOp::kTick : EdgeOp::kNone);
    rules_.gap(comma, item);
    rules_.close(after, ']', end, counts ? EdgeOp::kClose : EdgeOp::kNone);
    return {};
  }

  Status object(const json::object& words, const std::string& path, State from, State to,
                std::uint32_t depth) {
    TRY(const auto required_list, SchemaMerger::required(words, path));
    std::set<std::string_view> required(required_list.begin(), required_list.end());
    static const json::object kNone;
    const json::value* properties_value = words.if_contains("properties");
    if (properties_value != nullptr && !properties_value->is_object())
      return SchemaMerger::wrong(path + "/properties", "it must be an object of schemas");
    const json::object& properties =
        properties_value != nullptr ? properties_value->get_object() : kNone;
    const json::value any = true;
    const json::value* additional = words.if_contains("additionalProperties");
    if (additional == nullptr) additional = &any;
    const std::string additional_path = path + "/additionalProperties";

    State none = b_.state();  // no member so far
    State some = b_.state();
    {
      const State open = b_.state();
      b_.edge(from, '{', '{', open);
      rules_.gap(open, none);
    }
    std::vector<std::string> names;
    const auto next_key = [&] {
      const State key = b_.state();
      const State comma = b_.state();
      b_.empty(none, key);
      b_.edge(some, ',', ',', comma);
      rules_.gap(comma, key);
      return key;
    };
    const auto member = [&](std::string_view name, const json::value& value,
                            const std::string& place, bool optional) -> Status {
      const State key = next_key();
      const State after = b_.state();
      TRY_STATUS(schema(value, place, after_key(key, name), after, depth + 1));
      const State no_member = b_.state();  // and can't have one, when this one is required
      if (optional) {
        b_.empty(none, no_member);
        b_.empty(some, after);
      }
      none = no_member;
      some = after;
      names.emplace_back(name);
      return {};
    };
    for (const auto& [name, value] : properties) {
      TRY_STATUS(member(name, value, fmt::format("{}/properties/{}", path, std::string_view(name)),
                        !required.contains(name)));
    }
    for (const std::string_view name : required_list) {
      if (properties.contains(name) || std::ranges::find(names, name) != names.end()) continue;
      TRY_STATUS(member(name, *additional, additional_path, false));
    }
    if (!(additional->is_bool() && !additional->get_bool())) {
      const State key = next_key();
      const State colon = b_.state();
      const State value = b_.state();
      if (names.empty()) {
        rules_.string(key, colon);
      } else {
        const State open = b_.state();
        const State close = b_.state();
        b_.edge(key, '"', '"', open);
        b_.text(open, all_but(names), Spelling::kJson, close);
        b_.edge(close, '"', '"', colon);
      }
      rules_.colon(colon, value);
      const State after = b_.state();
      TRY_STATUS(schema(*additional, additional_path, value, after, depth + 1));
      b_.empty(after, some);
    }
    b_.edge(none, '}', '}', to);
    rules_.close(some, '}', to);
    return {};
  }

  CommonRules& rules_;
  GrammarBuilder& b_;
  SchemaMerger merger_;
  const GrammarLimits& limits_;
  std::map<std::string, GrammarBuilder::RuleId> references_;
  std::deque<Waiting> waiting_;
  std::uint32_t visited_ = 0;
};

}  // namespace

Status add_json_schema(CommonRules& rules, std::string_view schema, std::string_view pointer,
                       const GrammarLimits& limits, State from, State to) {
  if (schema.size() > limits.source_bytes_max) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the schema has {} bytes, more than the {} that are taken",
                            schema.size(), limits.source_bytes_max));
  }
  json::error_code error;
  json::parse_options options;
  options.max_depth = 200;
  const json::value document = json::parse(schema, error, {}, options);
  if (error) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the schema isn't valid JSON: {}", error.message()));
  }
  const SchemaMerger merger(document);
  TRY(const SchemaMerger::Target root, merger.resolve_pointer(pointer, "#"));
  return SchemaCompiler(rules, document, limits).run(*root.schema, root.path, from, to);
}

Result<std::shared_ptr<const Grammar>> json_schema_grammar(std::string_view schema,
                                                           Whitespace whitespace,
                                                           const GrammarLimits& limits) {
  GrammarBuilder builder(limits);
  const auto root = builder.rule("the schema");
  CommonRules rules(builder, whitespace);
  TRY_STATUS(add_json_schema(rules, schema, "", limits, builder.start(root), builder.end(root)));
  return builder.build();
}

Result<std::shared_ptr<const Grammar>> json_object_grammar(Whitespace whitespace,
                                                           const GrammarLimits& limits) {
  GrammarBuilder builder(limits);
  const auto root = builder.rule("a JSON object");
  CommonRules rules(builder, whitespace);
  rules.object(builder.start(root), builder.end(root));
  return builder.build();
}

}  // namespace penstock::grammar
