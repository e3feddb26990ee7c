#include "app/config_file.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <filesystem>
#include <set>
#include <vector>

#include "app/option_table.h"
#include "app/suggest.h"
#include "io/files/files.h"

namespace penstock {
namespace {

constexpr Bytes kFileMax{1 << 20};
constexpr std::size_t kShownMax = 60;  // of a wrong value in a message

std::string shown(const std::string& text) {
  return text.size() <= kShownMax ? text : text.substr(0, kShownMax) + "...";
}

std::string_view kind_of(const YAML::Node& node) {
  switch (node.Type()) {
    case YAML::NodeType::Map:
      return "a map";
    case YAML::NodeType::Sequence:
      return "a list";
    case YAML::NodeType::Null:
      return "nothing";
    default:
      return "a value";
  }
}

class Loader {
 public:
  Loader(const std::string& path, const Environment& environment, Options& options)
      : path_(path),
        base_(std::filesystem::path(path).parent_path().string()),
        environment_(environment),
        options_(options) {
    for (const auto& row : option_table()) {
      if (!row.key.empty()) keys_.push_back(row.key);
    }
  }

  Status map(const YAML::Node& node, const std::string& prefix) {
    std::set<std::string> seen;
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) return bad(entry.first, prefix, "a key must be a word");
      const std::string name = entry.first.Scalar();
      const std::string key = prefix.empty() ? name : prefix + "." + name;
      if (!seen.insert(name).second) return bad(entry.first, key, "is given twice");
      if (const auto* row = find_key(key); row != nullptr) {
        TRY_STATUS(value(entry.second, *row));
      } else if (is_section(key)) {
        if (entry.second.IsNull()) continue;  // a heading with every line below commented out
        if (!entry.second.IsMap())
          return bad(entry.second, key,
                     fmt::format("expected a map of keys, got {}", kind_of(entry.second)));
        TRY_STATUS(map(entry.second, key));
      } else {
        return bad(entry.first, shown(key), "unknown key" + suggestion(key, name));
      }
    }
    return {};
  }

 private:
  Status value(const YAML::Node& node, const OptionInfo& row) {
    if (const auto* field = std::get_if<std::vector<Assignment> Options::*>(&row.field)) {
      if (!node.IsMap())
        return bad(node, row.key,
                   fmt::format("expected a {}, got {}", type_name(row), kind_of(node)));
      (options_.**field).clear();
      for (const auto& entry : node) {
        if (!entry.first.IsScalar() || !entry.second.IsScalar())
          return bad(entry.first, row.key, fmt::format("expected a {}", type_name(row)));
        if (entry.first.Scalar().find('=') != std::string::npos)
          return bad(entry.first, row.key,
                     fmt::format("\"{}\": a name must not hold a =", entry.first.Scalar()));
        const std::string text = absolute(row, entry.second.Scalar());
        TRY_STATUS(set(entry.first, row, entry.first.Scalar() + "=" + text));
      }
      return {};
    }
    if (row.form == OptionForm::kWords && node.IsSequence()) {
      std::string words;
      for (const auto& word : node) {
        if (!word.IsScalar()) return bad(word, row.key, "expected a list of words");
        words += (words.empty() ? "" : " ") + word.Scalar();
      }
      return set(node, row, words);
    }
    if (!node.IsScalar())
      return bad(node, row.key, fmt::format("expected {}, got {}", type_name(row), kind_of(node)));
    return set(node, row, absolute(row, node.Scalar()));
  }

  std::string absolute(const OptionInfo& row, const std::string& text) const {
    if (row.form != OptionForm::kPath || (row.fallback == "auto" && text == "auto")) return text;
    return absolute_path(text, base_, environment_);
  }

  Status set(const YAML::Node& node, const OptionInfo& row, const std::string& text) {
    if (auto status = set_option(options_, row, text); !status)
      return bad(node, row.key, status.error().message);
    return {};
  }

  bool is_section(const std::string& key) const {
    for (const auto known : keys_) {
      if (known.starts_with(key + ".")) return true;
    }
    return false;
  }

  // The nearest key, or the key elsewhere that ends with the same word.
  std::string suggestion(const std::string& key, const std::string& name) const {
    if (auto found = did_you_mean(key, keys_); !found.empty()) return found;
    for (const auto known : keys_) {
      if (known.ends_with("." + name)) return fmt::format("; did you mean {}?", known);
    }
    return "; `penstock config explain` lists the keys";
  }

  std::unexpected<Error> bad(const YAML::Node& node, std::string_view key,
                             std::string_view what) const {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}:{}: {}{}{}", path_, node.Mark().line + 1, key,
                            key.empty() ? "" : ": ", shown(std::string(what))),
                std::string(key));
  }

  const std::string& path_;
  std::string base_;
  const Environment& environment_;
  Options& options_;
  std::vector<std::string_view> keys_;
};

}  // namespace

Status apply_config(std::string_view text, const std::string& path, const Environment& environment,
                    Options& options) {
  try {
    const YAML::Node root = YAML::Load(std::string(text));
    if (root.IsNull() || !root.IsDefined()) return {};
    if (!root.IsMap())
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("{}: expected a map of keys, got {}", path, kind_of(root)));
    return Loader(path, environment, options).map(root, "");
  } catch (const YAML::Exception& error) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}:{}: not valid YAML: {}", path, error.mark.line + 1, error.msg));
  }
}

Status load_config_file(const std::string& path, const Environment& environment, Options& options) {
  auto text = read_file(path, kFileMax);
  if (!text) return std::unexpected(std::move(text).error().within("configuration"));
  return apply_config(*text, path, environment, options);
}

std::string effective_config(const Options& options) {
  boost::json::object root;
  for (const auto& row : option_table()) {
    if (row.key.empty()) continue;
    boost::json::object* section = &root;
    std::string_view rest = row.key;
    for (auto dot = rest.find('.'); dot != std::string_view::npos; dot = rest.find('.')) {
      auto& next = (*section)[rest.substr(0, dot)];
      if (!next.is_object()) next.emplace_object();
      section = &next.as_object();
      rest.remove_prefix(dot + 1);
    }
    (*section)[rest] = option_json(options, row);
  }
  return boost::json::serialize(root);
}

}  // namespace penstock
