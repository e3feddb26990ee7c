#include "core/prompt/harmony_types.h"

#include <fmt/format.h>
#include <algorithm>
#include <vector>

#include "core/prompt/jinja/value.h"

namespace penstock::prompt {
namespace {

using jinja::Dict;
using jinja::List;
using jinja::Value;

const Value* find(const Value& object, std::string_view key) {
  return object.dict() == nullptr ? nullptr : object.dict()->find(key);
}
// The text under `key`; null when there is none.
const std::string* text_of(const Value& object, std::string_view key) {
  const Value* value = find(object, key);
  return value == nullptr || value->text() == nullptr ? nullptr : &value->text()->bytes();
}
const List* list_of(const Value& object, std::string_view key) {
  const Value* value = find(object, key);
  return value == nullptr ? nullptr : value->list();
}

// The default as a comment has it: strings quoted unless the type is an enumeration.
std::string default_of(const Value& schema) {
  const Value* value = find(schema, "default");
  if (value == nullptr) return {};
  if (value->text() != nullptr) {
    const bool plain = list_of(schema, "enum") != nullptr;
    return fmt::format(fmt::runtime(plain ? "default: {}" : "default: \"{}\""),
                       value->text()->bytes());
  }
  jinja::JsonStyle compact;
  compact.item_separator = ",";
  compact.key_separator = ":";
  return "default: " + jinja::to_json(*value, compact).value_or("null");
}

std::string type_of(const Value& schema, const std::string& indent);

// " // description default: x" with what there is of both.
std::string trailing(const std::string* description, const std::string& fallback) {
  if (description == nullptr && fallback.empty()) return {};
  const bool both = description != nullptr && !fallback.empty();
  return fmt::format(" // {}{}{}", description == nullptr ? "" : *description, both ? " " : "",
                     fallback);
}

std::string with_null(const Value& schema, std::string type) {
  const Value* nullable = find(schema, "nullable");
  const bool adds = nullable != nullptr && jinja::truthy(*nullable) && !type.contains("null");
  return adds ? type + " | null" : type;
}

void append_comments(const Value& schema, const std::string& indent, std::string& out) {
  if (const auto* title = text_of(schema, "title"))
    out += fmt::format("{0}// {1}\n{0}//\n", indent, *title);
  const auto* description = text_of(schema, "description");
  if (description != nullptr && list_of(schema, "oneOf") == nullptr)
    out += fmt::format("{}// {}\n", indent, *description);
  const List* examples = list_of(schema, "examples");
  if (examples == nullptr || examples->items.empty()) return;
  out += indent + "// Examples:\n";
  for (const Value& example : examples->items) {
    if (example.text() != nullptr)
      out += fmt::format("{}// - \"{}\"\n", indent, example.text()->bytes());
  }
}

// A property that is one of several types: a variant a line, with its description and default as
// comments. The property's own description stands above, unless it is the first variant's.
void append_one_of(const std::string& name, const Value& schema, const List& choices,
                   const std::string& indent, std::string& out) {
  const auto* description = text_of(schema, "description");
  const auto* first =
      choices.items.empty() ? nullptr : text_of(choices.items.front(), "description");
  const bool above = description != nullptr && (first == nullptr || *first != *description);
  if (above) out += fmt::format("{}// {}\n", indent, *description);
  if (const auto fallback = default_of(schema); !fallback.empty())
    out += fmt::format("{}// {}\n", indent, fallback);
  out += fmt::format("{}{}:\n", indent, name);
  for (const Value& choice : choices.items) {
    out += indent + " | " + with_null(choice, type_of(choice, indent + "   "));
    const auto* own = text_of(choice, "description");
    const bool said = (above && &choice == &choices.items.front()) ||
                      (own != nullptr && description != nullptr && *own == *description);
    out += trailing(said ? nullptr : own, default_of(choice)) + '\n';
  }
  out += indent + ",\n";
}

std::string object_type(const Value& schema, const std::string& indent) {
  std::string out;
  if (const auto* description = text_of(schema, "description"))
    out += fmt::format("{}// {}\n", indent, *description);
  out += "{\n";
  const Value* properties = find(schema, "properties");
  const List* required = list_of(schema, "required");
  const auto is_required = [&](std::string_view name) {
    return required != nullptr && std::ranges::any_of(required->items, [&](const Value& item) {
             return item.text() != nullptr && item.text()->view() == name;
           });
  };
  if (properties != nullptr && properties->dict() != nullptr) {
    for (const auto& [name, inner] : properties->dict()->entries) {
      append_comments(inner, indent, out);
      const std::string key = name->bytes() + (is_required(name->view()) ? "" : "?");
      if (const List* choices = list_of(inner, "oneOf")) {
        append_one_of(key, inner, *choices, indent, out);
        continue;
      }
      out +=
          fmt::format("{}{}: {},", indent, key, with_null(inner, type_of(inner, indent + "    ")));
      const std::string fallback = default_of(inner);
      if (!fallback.empty()) out += " // " + fallback;
      out += '\n';
    }
  }
  return out + indent + "}";
}

// One of several where no property stands: a variant a line.
std::string variants(const List& choices, const std::string& indent) {
  std::string out;
  for (std::size_t i = 0; i < choices.items.size(); ++i) {
    const Value& choice = choices.items[i];
    if (i > 0) out += '\n' + indent + " | ";
    out += with_null(choice, type_of(choice, indent + "   "));
    out += trailing(text_of(choice, "description"), default_of(choice));
  }
  return out;
}

std::string type_of(const Value& schema, const std::string& indent) {
  if (const List* choices = list_of(schema, "oneOf")) return variants(*choices, indent);
  if (const List* types = list_of(schema, "type")) {
    std::vector<std::string_view> names;
    for (const Value& type : types->items) {
      if (type.text() == nullptr) continue;
      names.push_back(type.text()->view() == "integer" ? "number" : type.text()->view());
    }
    if (!names.empty()) return fmt::format("{}", fmt::join(names, " | "));
  }
  const auto* type = text_of(schema, "type");
  if (type == nullptr) return "any";
  if (*type == "object") return object_type(schema, indent);
  if (*type == "number" || *type == "integer") return "number";
  if (*type == "boolean") return "boolean";
  if (*type == "array") {
    const Value* items = find(schema, "items");
    return items == nullptr ? "Array<any>" : type_of(*items, indent) + "[]";
  }
  if (*type != "string") return "any";
  std::vector<std::string> words;
  if (const List* values = list_of(schema, "enum")) {
    for (const Value& value : values->items) {
      if (value.text() != nullptr) words.push_back('"' + value.text()->bytes() + '"');
    }
  }
  return words.empty() ? "string" : fmt::format("{}", fmt::join(words, " | "));
}

}  // namespace

Result<std::string> typescript_function(std::string_view function_json) {
  const auto function = jinja::from_json(function_json);
  if (!function) return fail(ErrorCode::kInvalidArgument, function.error().why);
  std::string out;
  if (const auto* description = text_of(*function, "description")) {
    std::string_view rest = *description;
    while (!rest.empty()) {
      std::string_view line = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(rest.size(), line.size() + 1));
      if (line.ends_with('\r')) line.remove_suffix(1);
      out += fmt::format("// {}\n", line);
    }
  }
  const auto* name = text_of(*function, "name");
  const Value* parameters = find(*function, "parameters");
  out += fmt::format("type {} = ", name == nullptr ? std::string() : *name);
  if (parameters == nullptr || parameters->is<jinja::None>()) return out + "() => any;\n\n";
  return out + fmt::format("(_: {}) => any;\n\n", type_of(*parameters, ""));
}

}  // namespace penstock::prompt
