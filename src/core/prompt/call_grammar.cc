#include "core/prompt/call_grammar.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "core/prompt/deepseek_tokens.h"

namespace penstock::prompt {
namespace {

namespace json = boost::json;

using Arguments = AnswerRules::Arguments;

constexpr std::size_t kSchemaDepthMax = 128;
// With it a closing tag begins, so no raw value holds it.
const std::string kClosing = "</" + std::string(kDsml);

// The words of JSON Schema that say which values are instances; all others are remarks.
constexpr std::array<std::string_view, 40> kConditions = {
    "$dynamicRef",
    "$recursiveRef",
    "$ref",
    "additionalItems",
    "additionalProperties",
    "allOf",
    "anyOf",
    "const",
    "contains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "else",
    "enum",
    "exclusiveMaximum",
    "exclusiveMinimum",
    "format",
    "if",
    "items",
    "maxContains",
    "maxItems",
    "maxLength",
    "maxProperties",
    "maximum",
    "minContains",
    "minItems",
    "minLength",
    "minProperties",
    "minimum",
    "multipleOf",
    "not",
    "oneOf",
    "pattern",
    "patternProperties",
    "prefixItems",
    "properties",
    "propertyNames",
    "required",
    "then",
    "type",
};

// The first condition of the schema that is none of `words`; "" if none.
std::string_view other_condition(const json::object& schema,
                                 std::initializer_list<std::string_view> words) {
  for (const auto& member : schema) {
    const std::string_view key = member.key();
    const bool condition =
        std::ranges::binary_search(kConditions, key) || key.starts_with("unevaluated");
    if (condition && std::ranges::find(words, key) == words.end()) return key;
  }
  return {};
}

bool has_reference(const json::value& schema) {
  if (const auto* items = schema.if_array()) return std::ranges::any_of(*items, has_reference);
  const auto* object = schema.if_object();
  return object != nullptr && std::ranges::any_of(*object, [](const auto& member) {
           return member.key() == "$ref" || has_reference(member.value());
         });
}

// `name` as a step of a JSON pointer.
std::string pointer_step(std::string_view name) {
  std::string out = "/";
  for (const char c : name)
    out += c == '~' ? std::string("~0") : c == '/' ? std::string("~1") : std::string(1, c);
  return out;
}

// The schema of a tool's arguments; one that takes no argument when the tool has none.
Result<json::object> parameters_of(const ToolDefinition& tool) {
  json::error_code error;
  json::parse_options options;
  options.max_depth = kSchemaDepthMax;
  const json::value function = json::parse(tool.schema, error, {}, options);
  if (error || !function.is_object())
    return fail(ErrorCode::kInvalidArgument, "its definition can't be read: " + error.message());
  const auto* parameters = function.get_object().if_contains("parameters");
  if (parameters == nullptr || parameters->is_null())
    return json::object{
        {"type", "object"}, {"properties", json::object{}}, {"additionalProperties", false}};
  if (!parameters->is_object())
    return fail(ErrorCode::kInvalidArgument, "its parameters must be an object");
  return parameters->get_object();
}

// Arguments are an object, whatever else the schema leaves open.
Status make_object_schema(json::object& parameters) {
  json::value& type = parameters["type"];
  const auto* several = type.if_array();
  const bool takes_objects =
      type.is_null() || type == "object" ||
      (several != nullptr && std::ranges::find(*several, "object") != several->end());
  if (!takes_objects) {
    return fail(ErrorCode::kInvalidArgument,
                "its parameters are of type " + json::serialize(type) + ", not \"object\"");
  }
  type = "object";
  return {};
}

std::unexpected<Error> about_tool(const ToolDefinition& tool, Error error) {
  error.message = fmt::format("the tool '{}': {}", tool.name, error.message);
  return std::unexpected(std::move(error));
}

// One tool's parameters as a rule of what stands between the tags of its call.
class DsmlTool {
 public:
  DsmlTool(std::string open, std::string close, std::string prefix, std::string rule)
      : open_(std::move(open)),
        close_(std::move(close)),
        prefix_(std::move(prefix)),
        rule_(std::move(rule)) {}

  // Appends the rule and those it uses to `rules`.
  Status add(const ToolDefinition& tool, std::string& rules) {
    TRY(parameters_, parameters_of(tool));
    TRY_STATUS(make_object_schema(parameters_));
    const std::string_view other =
        other_condition(parameters_, {"type", "properties", "required", "additionalProperties"});
    if (!other.empty()) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("its parameters have \"{}\" at the top; calls of this model can be "
                              "held to \"properties\", \"required\" and \"additionalProperties\" "
                              "there",
                              other));
    }
    TRY_STATUS(read_members());
    add_rules(rules);
    return {};
  }

 private:
  struct Member {
    std::string text;  // the whole parameter
    bool required;
  };

  Status read_members() {
    const auto* properties = parameters_.if_contains("properties");
    if (properties != nullptr && !properties->is_object())
      return fail(ErrorCode::kInvalidArgument, "\"properties\" must be an object");
    const auto* list = parameters_.if_contains("required");
    if (list != nullptr && !list->is_array())
      return fail(ErrorCode::kInvalidArgument, "\"required\" must be an array");
    json::array required = list == nullptr ? json::array() : list->get_array();
    if (properties != nullptr) {
      for (const auto& member : properties->get_object()) {
        const auto named = std::ranges::find(required, json::value(member.key()));
        TRY(std::string text, parameter(member.key(), member.value()));
        members_.push_back({std::move(text), named != required.end()});
      }
    }
    for (const json::value& name : required) {
      const auto* text = name.if_string();
      if (text == nullptr) return fail(ErrorCode::kInvalidArgument, "\"required\" must hold names");
      const bool declared = properties != nullptr && properties->get_object().contains(*text);
      if (declared) continue;
      const auto* others = parameters_.if_contains("additionalProperties");
      if (others != nullptr && *others != true) {
        return fail(ErrorCode::kUnsupported,
                    fmt::format("\"required\" names {}, which is not in \"properties\"",
                                json::serialize(name)));
      }
      TRY(std::string member, parameter(*text, json::object()));
      members_.push_back({std::move(member), true});
    }
    return {};
  }

  // Each parameter with the line end behind it; a lone line end when there is none, as the family
  // writes its calls. From the last to the first: `rest` is what may follow a parameter, `first`
  // what may come where none has.
  void add_rules(std::string& rules) const {
    std::string first = grammar_literal("\n");
    std::string rest = grammar_literal("");
    for (std::size_t i = members_.size(); i-- > 0;) {
      const Member& member = members_[i];
      const std::string name = fmt::format("{}-{}", rule_, i);
      const auto skip = [&](const std::string& to) { return member.required ? "" : " | " + to; };
      rules += fmt::format("{0} ::= {1} \"\\n\" {2}\n{0}-rest ::= {0}{3}\n{0}-first ::= {0}{4}\n",
                           name, member.text, rest, skip(rest), skip(first));
      rest = name + "-rest";
      first = name + "-first";
    }
    rules += fmt::format("{} ::= {}\n", rule_, first);
  }

  Result<std::string> parameter(std::string_view name, const json::value& schema) const {
    if (name.contains('"')) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("this model can't write the parameter {}", json::serialize(name)));
    }
    if (schema == false) {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("the parameter \"{}\" takes no value", name));
    }
    return fmt::format("{} ({}) {} {}",
                       open_ + grammar_literal(prefix_ + "parameter name=\"" + std::string(name)),
                       value(name, schema), close_, grammar_literal(prefix_ + "parameter>"));
  }

  // From the quote behind the name on.
  std::string value(std::string_view name, const json::value& schema) const {
    const auto* object = schema.if_object();
    if (object == nullptr) return json_value(name, schema);  // `true`, or the compiler's to refuse
    if (!other_condition(*object, {"type", "enum", "const"}).empty())
      return json_value(name, schema);
    return with_text(name, *object);
  }

  // A schema of nothing but "type", "enum" and "const": its strings as text, the rest as JSON.
  std::string with_text(std::string_view name, const json::object& schema) const {
    json::array types;
    if (const auto* type = schema.if_contains("type"))
      types = type->is_array() ? type->get_array() : json::array{*type};
    const bool any_type = types.empty();
    const auto string = std::ranges::find(types, json::value("string"));
    if (!any_type && string == types.end()) return json_value(name, schema);
    if (!any_type) types.erase(string);
    const auto* values = schema.if_contains("enum");
    const auto* only = schema.if_contains("const");
    if ((values != nullptr && !values->is_array()) || (values != nullptr && only != nullptr))
      return json_value(name, schema);
    json::object other = schema;
    if (!any_type) other["type"] = types;
    bool others = any_type || !types.empty();
    std::string text = "raw";
    if (values != nullptr || only != nullptr) {
      text.clear();
      json::array rest;
      for (const json::value& one : only != nullptr ? json::array{*only} : values->get_array()) {
        const auto* word = one.if_string();
        if (word == nullptr) {
          rest.push_back(one);
        } else if (word->empty() || std::string_view(*word).contains(kClosing)) {
          return json_value(name, schema);
        } else {
          text += (text.empty() ? "" : " | ") + grammar_literal(*word);
        }
      }
      if (text.empty()) return json_value(name, schema);
      others = others && !rest.empty();
      other.erase("const");
      other["enum"] = std::move(rest);
    }
    std::string out = fmt::format("{} ({})", grammar_literal("\" string=\"true\">"), text);
    if (others)
      out += fmt::format(" | \"\\\" string=\\\"false\\\">\" %json {}", json::serialize(other));
    return out;
  }

  // By its own schema; where that refers to others, by the place it has in the whole.
  std::string json_value(std::string_view name, const json::value& schema) const {
    std::string out = "\"\\\" string=\\\"false\\\">\" %json ";
    if (schema.is_object() && !has_reference(schema)) return out + json::serialize(schema);
    return fmt::format("{}{} {}", out, grammar_literal("/properties" + pointer_step(name)),
                       json::serialize(parameters_));
  }

  std::string open_;   // "<" and the mark
  std::string close_;  // "</" and the mark
  std::string prefix_;
  std::string rule_;
  json::object parameters_;
  std::vector<Member> members_;
};

}  // namespace

std::string grammar_literal(std::string_view text) {
  return json::serialize(text);
}

std::string grammar_token(std::string_view content, const TokenIdOf& token_id) {
  const auto id = token_id(content);
  return id ? fmt::format("<[{}]>", *id) : grammar_literal(content);
}

std::string grammar_without(std::initializer_list<std::string_view> words) {
  std::string out = "%without (";
  for (const std::string_view word : words)
    out += grammar_literal(word) + " ";
  return out + ")";
}

Result<std::string> json_calls(const Conversation& conversation, const AnswerRules& rules,
                               std::string_view key) {
  std::string calls;
  for (std::size_t i = 0; i < conversation.tools.size(); ++i) {
    const ToolDefinition& tool = conversation.tools[i];
    if (rules.tools[i] == Arguments::kNone) continue;
    json::object parameters;
    if (rules.tools[i] == Arguments::kBySchema) {
      auto own = parameters_of(tool);
      if (!own) return about_tool(tool, std::move(own).error());
      parameters = std::move(*own);
    }
    if (auto object = make_object_schema(parameters); !object)
      return about_tool(tool, std::move(object).error());
    calls += fmt::format("{}{} %json {}", calls.empty() ? "" : " | ",
                         grammar_literal(fmt::format(R"({{"name": "{}", "{}": )", tool.name, key)),
                         json::serialize(parameters));
  }
  return "(" + calls + ") \"}\"";
}

Result<std::string> dsml_calls(const Conversation& conversation, const AnswerRules& rules,
                               const TokenIdOf& token_id, const DsmlSpelling& spelling) {
  const std::string mark = grammar_token(kDsml, token_id);
  const std::string open = "\"<\" " + mark + " ";
  const std::string close = "\"</\" " + mark;
  const std::string prefix(spelling.prefix);
  std::string calls;
  std::string bodies;
  for (std::size_t i = 0; i < conversation.tools.size(); ++i) {
    const ToolDefinition& tool = conversation.tools[i];
    if (rules.tools[i] == Arguments::kNone) continue;
    std::string body = "any-body";
    if (rules.tools[i] == Arguments::kBySchema) {
      body = fmt::format("tool{}", i);
      if (auto added = DsmlTool(open, close, prefix, body).add(tool, bodies); !added)
        return about_tool(tool, std::move(added).error());
    }
    calls += fmt::format("{}{}{} {} {} {}", calls.empty() ? "" : " | ", open,
                         grammar_literal(fmt::format("{}invoke name=\"{}\">\n", prefix, tool.name)),
                         body, close, grammar_literal(prefix + "invoke>\n"));
  }
  if (std::ranges::find(rules.tools, Arguments::kAny) != rules.tools.end()) {
    bodies += fmt::format(
        "any-body ::= \"\\n\" | (any-parameter \"\\n\")+\n"
        "any-parameter ::= {}{} /[^\"]*/ (\"\\\" string=\\\"true\\\">\" raw | "
        "\"\\\" string=\\\"false\\\">\" %json {{}}) {} {}\n",
        open, grammar_literal(prefix + "parameter name=\""), close,
        grammar_literal(prefix + "parameter>"));
  }
  const std::string block = prefix + std::string(spelling.block) + ">";
  return fmt::format("block ::= {}{} call{} {} {}\ncall ::= {}\nraw ::= {}\n{}", open,
                     grammar_literal(block + "\n"), rules.several_calls ? "+" : "", close,
                     grammar_literal(block), calls, grammar_without({kClosing}), bodies);
}

}  // namespace penstock::prompt
