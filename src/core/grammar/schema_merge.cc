#include "core/grammar/schema_merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <utility>

#include "core/grammar/grammar.h"

namespace penstock::grammar {
namespace {

namespace json = boost::json;

constexpr std::array<std::string_view, 24> kConstraints{
    "$ref",
    "type",
    "enum",
    "const",
    "anyOf",
    "oneOf",
    "allOf",
    "required",
    "properties",
    "additionalProperties",
    "items",
    "prefixItems",
    "minItems",
    "maxItems",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "multipleOf",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "",
};
constexpr std::array<std::string_view, 22> kRefused{
    "not",
    "if",
    "then",
    "else",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "patternProperties",
    "propertyNames",
    "unevaluatedProperties",
    "unevaluatedItems",
    "additionalItems",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "minProperties",
    "maxProperties",
    "$dynamicRef",
    "$recursiveRef",
    "$dynamicAnchor",
    "$recursiveAnchor",
};

std::string_view view(const json::string& text) {
  return {text.data(), text.size()};
}

// A word of the standard's that is harmless in this use.
bool harmless(std::string_view word, const json::value& value) {
  return word == "uniqueItems" && value.is_bool() && !value.get_bool();
}

bool same_value(const json::value& a, const json::value& b) {
  if (a.is_number() && b.is_number()) return a.to_number<double>() == b.to_number<double>();
  return a == b;
}

}  // namespace

bool SchemaTypes::allow(const json::value& value) const {
  switch (value.kind()) {
    case json::kind::null:
      return null;
    case json::kind::bool_:
      return boolean;
    case json::kind::string:
      return string;
    case json::kind::array:
      return array;
    case json::kind::object:
      return object;
    case json::kind::double_:
      return number || (integer && std::floor(value.get_double()) == value.get_double());
    default:
      return number || integer;
  }
}

std::unexpected<Error> SchemaMerger::wrong(const std::string& path, std::string_view why) {
  return fail(ErrorCode::kInvalidArgument, fmt::format("the schema is wrong at {}: {}", path, why),
              path);
}

bool SchemaMerger::is_constraint(std::string_view word) {
  return !word.empty() && std::ranges::find(kConstraints, word) != kConstraints.end();
}

bool SchemaMerger::constrains(const json::object& words,
                              std::initializer_list<std::string_view> but) {
  return std::ranges::any_of(words, [&](const auto& pair) {
    const std::string_view word = pair.key();
    return is_constraint(word) && std::ranges::find(but, word) == but.end();
  });
}

Status SchemaMerger::check_words(const json::object& words, const std::string& path) const {
  for (const auto& [key, value] : words) {
    const std::string_view word = key;
    const bool base = word == "$id" && &words != document_.if_object();
    if (harmless(word, value)) continue;
    if (base || std::ranges::find(kRefused, word) != kRefused.end()) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("\"{}\" at {} isn't supported in a schema for structured output; "
                              "leave it out, or say it with other words",
                              word, path),
                  fmt::format("{}/{}", path, word));
    }
  }
  return {};
}

Result<SchemaMerger::Target> SchemaMerger::resolve(const json::value& ref,
                                                   const std::string& path) const {
  if (!ref.is_string()) return wrong(path, "a $ref must be a string");
  std::string_view target = view(ref.get_string());
  if (const json::object* root = document_.if_object()) {
    const json::value* id = root->if_contains("$id");
    if (id != nullptr && id->is_string() && target.starts_with(view(id->get_string())))
      target.remove_prefix(id->get_string().size());
  }
  if (target.empty()) return resolve_pointer("", path);
  if (!target.starts_with("#/") && target != "#") {
    return fail(ErrorCode::kUnsupported,
                fmt::format("the $ref \"{}\" at {} leads out of the schema or to an anchor; only "
                            "\"#\" and \"#/...\" are supported",
                            view(ref.get_string()), path),
                path);
  }
  std::string pointer;
  for (std::size_t i = 1; i < target.size(); ++i) {
    unsigned code = 0;
    if (target[i] == '%' && i + 2 < target.size() &&
        std::sscanf(std::string(target.substr(i + 1, 2)).c_str(), "%2x", &code) == 1) {
      pointer += static_cast<char>(code);
      i += 2;
    } else {
      pointer += target[i];
    }
  }
  return resolve_pointer(pointer, path);
}

Result<SchemaMerger::Target> SchemaMerger::resolve_pointer(std::string_view pointer,
                                                           const std::string& path) const {
  const json::value* at = &document_;
  std::string_view rest = pointer;
  while (!rest.empty()) {
    rest.remove_prefix(1);
    const std::string_view part = rest.substr(0, rest.find('/'));
    rest.remove_prefix(part.size());
    std::string name;
    for (std::size_t i = 0; i < part.size(); ++i) {
      if (part[i] == '~' && i + 1 < part.size()) {
        name += part[++i] == '1' ? '/' : '~';
      } else {
        name += part[i];
      }
    }
    const json::value* next = nullptr;
    if (const json::object* object = at->if_object()) {
      next = object->if_contains(name);
    } else if (const json::array* array = at->if_array()) {
      std::size_t index = 0;
      const bool number = !name.empty() && name.size() < 8 &&
                          name.find_first_not_of("0123456789") == std::string::npos;
      if (number) index = std::stoul(name);
      next = number ? array->if_contains(index) : nullptr;
    }
    if (next == nullptr) return wrong(path, fmt::format("there is nothing at \"#{}\"", pointer));
    at = next;
    if (const json::object* object = at->if_object();
        object != nullptr && !rest.empty() && object->contains("$id")) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("the $ref at {} leads into a schema with an $id of its own, which "
                              "isn't supported",
                              path),
                  path);
    }
  }
  return Target{at, "#" + std::string(pointer)};
}

Result<SchemaTypes> SchemaMerger::types_of(const json::object& words, const std::string& path) {
  const json::value* type = words.if_contains("type");
  SchemaTypes types;
  const auto set = [&](const json::value& name) {
    if (!name.is_string()) return false;
    const std::string_view text = view(name.get_string());
    if (text == "null") {
      types.null = true;
    } else if (text == "boolean") {
      types.boolean = true;
    } else if (text == "integer") {
      types.integer = true;
    } else if (text == "number") {
      types.number = types.integer = true;
    } else if (text == "string") {
      types.string = true;
    } else if (text == "array") {
      types.array = true;
    } else if (text == "object") {
      types.object = true;
    } else {
      return false;
    }
    return true;
  };
  if (type == nullptr) return SchemaTypes{true, true, true, true, true, true, true};
  bool good = false;
  if (const json::array* list = type->if_array()) {
    good = std::ranges::all_of(*list, set);
  } else {
    good = set(*type);
  }
  if (!good) {
    return wrong(path + "/type",
                 "it must be null, boolean, integer, number, string, array or object, or a list "
                 "of them");
  }
  return types;
}

Result<std::vector<json::value>> SchemaMerger::values_of(const json::object& words,
                                                         const std::string& path) {
  std::vector<json::value> values;
  const json::value* list = words.if_contains("enum");
  if (list != nullptr) {
    if (!list->is_array()) return wrong(path + "/enum", "it must be a list of values");
    values.assign(list->get_array().begin(), list->get_array().end());
  }
  if (const json::value* value = words.if_contains("const")) {
    const bool listed = list == nullptr || std::ranges::any_of(values, [&](const json::value& v) {
                          return same_value(v, *value);
                        });
    values.clear();
    if (listed) values.push_back(*value);
  }
  return values;
}

Result<std::vector<std::string_view>> SchemaMerger::required(const json::object& words,
                                                             const std::string& path) {
  std::vector<std::string_view> names;
  const json::value* list = words.if_contains("required");
  if (list == nullptr) return names;
  if (!list->is_array()) return wrong(path + "/required", "it must be a list of names");
  for (const json::value& name : list->get_array()) {
    if (!name.is_string()) return wrong(path + "/required", "it must be a list of names");
    names.push_back(view(name.get_string()));
  }
  return names;
}

Result<std::uint32_t> SchemaMerger::count(const json::object& words, std::string_view word,
                                          std::uint32_t otherwise, const std::string& path) {
  const json::value* value = words.if_contains(word);
  if (value == nullptr) return otherwise;
  const double number = value->is_number() ? value->to_number<double>() : -1;
  if (number < 0 || number != std::floor(number) || number > 1e9) {
    return wrong(fmt::format("{}/{}", path, word), "it must be a whole number from 0 to 1e9");
  }
  return static_cast<std::uint32_t>(number);
}

// --------------------------------------------------------------------------------- merging

Result<json::value> SchemaMerger::with_reference(const json::object& words,
                                                 const std::string& path) const {
  TRY(const Target target, resolve(words.at("$ref"), path + "/$ref"));
  json::object rest = words;
  rest.erase("$ref");
  return merge(*target.schema, rest, path);
}

Result<json::value> SchemaMerger::with_all_of(const json::object& words,
                                              const std::string& path) const {
  const json::value& list = words.at("allOf");
  if (!list.is_array() || list.get_array().empty())
    return wrong(path + "/allOf", "it must be a list of schemas");
  json::object rest = words;
  rest.erase("allOf");
  json::value out = std::move(rest);
  for (const json::value& part : list.get_array()) {
    TRY(out, merge(out, part, path));
  }
  return out;
}

Result<std::vector<json::value>> SchemaMerger::branches(const json::object& words,
                                                        std::string_view word,
                                                        const std::string& path) const {
  const std::string place = fmt::format("{}/{}", path, word);
  const json::value& list = words.at(word);
  if (!list.is_array() || list.get_array().empty())
    return wrong(place, "it must be a list of schemas");
  const json::array& parts = list.get_array();
  if (word == "oneOf") {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (exclude(parts[i], parts[j], 0)) continue;
        return fail(
            ErrorCode::kUnsupported,
            fmt::format("oneOf at {}: it isn't evident that branches {} and {} exclude each "
                        "other; give them different types or a required property with "
                        "different const values, or use anyOf",
                        path, j, i),
            place);
      }
    }
  }
  json::object rest = words;
  rest.erase(word);
  const bool alone = !constrains(rest, {});
  std::vector<json::value> out;
  for (const json::value& part : parts) {
    if (alone) {
      out.push_back(part);
      continue;
    }
    TRY(json::value merged, merge(rest, part, path));
    out.push_back(std::move(merged));
  }
  return out;
}

Result<json::value> SchemaMerger::merge(const json::value& a, const json::value& b,
                                        const std::string& path) const {
  for (const json::value* side : {&a, &b}) {
    if (side->is_bool()) return side->get_bool() ? (side == &a ? b : a) : json::value(false);
    if (!side->is_object()) return wrong(path, "a schema must be an object, true or false");
    TRY_STATUS(check_words(side->get_object(), path));
  }
  json::object out = a.get_object();
  const json::object& other = b.get_object();
  // additionalProperties speaks of what its own properties leave over.
  const auto closed_against = [](const json::object& x, const json::object& y) {
    const json::value* rest = x.if_contains("additionalProperties");
    if (rest == nullptr || (rest->is_bool() && rest->get_bool())) return false;
    const json::value* more = y.if_contains("properties");
    if (more == nullptr || !more->is_object()) return false;
    const json::value* own = x.if_contains("properties");
    return std::ranges::any_of(more->get_object(), [&](const auto& pair) {
      return own == nullptr || !own->is_object() || !own->get_object().contains(pair.key());
    });
  };
  if (closed_against(out, other) || closed_against(other, out)) {
    return fail(ErrorCode::kUnsupported,
                fmt::format("\"additionalProperties\" at {} beside properties from another schema "
                            "isn't supported; declare all properties in one place",
                            path),
                path + "/additionalProperties");
  }
  for (const auto& [word, value] : other)
    TRY_STATUS(merge_word(out, word, value, path));
  return out;
}

Status SchemaMerger::merge_word(json::object& out, std::string_view word, const json::value& b,
                                const std::string& path) const {
  json::value* a = out.if_contains(word);
  if (a == nullptr) {
    out.emplace(word, b);
    return {};
  }
  if (!is_constraint(word) || *a == b) return {};
  const bool numbers = a->is_number() && b.is_number();
  if (word == "allOf" && a->is_array() && b.is_array()) {
    a->get_array().insert(a->get_array().end(), b.get_array().begin(), b.get_array().end());
  } else if (word == "$ref") {
    // Two references: both hold.
    json::array both{{{"$ref", *a}}, {{"$ref", b}}};
    out.erase("$ref");
    return merge_word(out, "allOf", both, path);
  } else if (word == "required" && a->is_array() && b.is_array()) {
    for (const json::value& name : b.get_array()) {
      if (std::ranges::find(a->get_array(), name) == a->get_array().end())
        a->get_array().push_back(name);
    }
  } else if (word == "properties" && a->is_object() && b.is_object()) {
    for (const auto& [name, schema] : b.get_object()) {
      json::value* known = a->get_object().if_contains(name);
      if (known == nullptr) {
        a->get_object().emplace(name, schema);
      } else if (*known != schema) {
        *known = json::object{{"allOf", json::array{*known, schema}}};
      }
    }
  } else if (numbers && (word.starts_with("min") || word == "exclusiveMinimum")) {
    if (b.to_number<double>() > a->to_number<double>()) *a = b;
  } else if (numbers && (word.starts_with("max") || word == "exclusiveMaximum")) {
    if (b.to_number<double>() < a->to_number<double>()) *a = b;
  } else if (word == "type") {
    TRY(const SchemaTypes left, types_of({{"type", *a}}, path));
    TRY(const SchemaTypes right, types_of({{"type", b}}, path));
    json::array both;
    if (left.null && right.null) both.emplace_back("null");
    if (left.boolean && right.boolean) both.emplace_back("boolean");
    if (left.number && right.number) {
      both.emplace_back("number");
    } else if (left.integer && right.integer) {
      both.emplace_back("integer");
    }
    if (left.string && right.string) both.emplace_back("string");
    if (left.array && right.array) both.emplace_back("array");
    if (left.object && right.object) both.emplace_back("object");
    *a = std::move(both);
  } else if (word == "enum" && a->is_array() && b.is_array()) {
    json::array both;
    for (const json::value& value : a->get_array()) {
      if (std::ranges::any_of(b.get_array(),
                              [&](const json::value& v) { return same_value(v, value); }))
        both.push_back(value);
    }
    *a = std::move(both);
  } else if (word == "const") {
    *a = nullptr;
    out.insert_or_assign("enum", json::array{});  // two different values: none
  } else {
    return fail(ErrorCode::kUnsupported,
                fmt::format("two different \"{}\" that both hold, at {}, aren't supported; say it "
                            "with one",
                            word, path),
                fmt::format("{}/{}", path, word));
  }
  return {};
}

// ---------------------------------------------------------------------------- disjointness

const json::value& SchemaMerger::looked_through(const json::value& schema) const {
  const json::value* at = &schema;
  for (int i = 0; i < 8; ++i) {
    const json::object* words = at->if_object();
    if (words == nullptr || !words->contains("$ref") || constrains(*words, {"$ref"})) break;
    const auto target = resolve(words->at("$ref"), "");
    if (!target) break;
    at = target->schema;
  }
  return *at;
}

bool SchemaMerger::exclude(const json::value& left, const json::value& right,
                           std::uint32_t depth) const {
  const json::value& a = looked_through(left);
  const json::value& b = looked_through(right);
  for (const json::value* side : {&a, &b}) {
    if (side->is_bool() && !side->get_bool()) return true;
  }
  if (!a.is_object() || !b.is_object() || depth > 4) return false;
  const json::object& x = a.get_object();
  const json::object& y = b.get_object();
  const auto types_x = types_of(x, "");
  const auto types_y = types_of(y, "");
  const auto values_x = values_of(x, "");
  const auto values_y = values_of(y, "");
  if (!types_x || !types_y || !values_x || !values_y) return false;
  const bool fixed_x = x.contains("enum") || x.contains("const");
  const bool fixed_y = y.contains("enum") || y.contains("const");
  if (fixed_x && fixed_y) {
    return std::ranges::none_of(*values_x, [&](const json::value& v) {
      return types_x->allow(v) && types_y->allow(v) &&
             std::ranges::any_of(*values_y, [&](const json::value& w) { return same_value(v, w); });
    });
  }
  if (fixed_x || fixed_y) {
    const auto& values = fixed_x ? *values_x : *values_y;
    if (std::ranges::none_of(
            values, [&](const json::value& v) { return types_x->allow(v) && types_y->allow(v); }))
      return true;
  }
  const bool numbers = (types_x->integer && types_y->integer);
  const bool others = (types_x->null && types_y->null) || (types_x->boolean && types_y->boolean) ||
                      numbers || (types_x->string && types_y->string) ||
                      (types_x->array && types_y->array);
  if (others) return false;
  if (!(types_x->object && types_y->object)) return true;
  const auto required_x = required(x, "");
  const auto required_y = required(y, "");
  const json::value* properties_x = x.if_contains("properties");
  const json::value* properties_y = y.if_contains("properties");
  if (!required_x || !required_y || properties_x == nullptr || properties_y == nullptr ||
      !properties_x->is_object() || !properties_y->is_object())
    return false;
  return std::ranges::any_of(*required_x, [&](std::string_view name) {
    if (std::ranges::find(*required_y, name) == required_y->end()) return false;
    const json::value* p = properties_x->get_object().if_contains(name);
    const json::value* q = properties_y->get_object().if_contains(name);
    return p != nullptr && q != nullptr && exclude(*p, *q, depth + 1);
  });
}

}  // namespace penstock::grammar
