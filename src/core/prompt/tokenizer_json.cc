#include "core/prompt/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json.hpp>
#include <initializer_list>
#include <optional>

#include "core/prompt/tokenizer.h"
#include "core/prompt/unicode_utf8.h"

namespace penstock {
namespace {

namespace json = boost::json;

constexpr std::size_t kAddedTokensMax = 65536;
constexpr std::size_t kStagesMax = 32;

std::unexpected<Error> malformed(std::string_view key, std::string_view what) {
  return fail(ErrorCode::kInvalidArgument, fmt::format("tokenizer.json: {} {}", key, what),
              std::string(key));
}
std::unexpected<Error> unsupported(std::string_view key, std::string_view what) {
  return fail(ErrorCode::kUnsupported, fmt::format("tokenizer.json: {} {}", key, what),
              std::string(key));
}
// Puts the key in front of an error that does not know where it happened.
std::unexpected<Error> at_key(std::string_view key, Error error) {
  error.message = fmt::format("tokenizer.json: {}: {}", key, error.message);
  error.field = key;
  return std::unexpected(std::move(error));
}

std::string_view view(const json::string& text) {
  return {text.data(), text.size()};
}

// An object of the file together with its path, for messages.
class Node {
 public:
  static Result<Node> of(const json::value& value, std::string path) {
    const json::object* object = value.if_object();
    if (object == nullptr) return malformed(path, "must be an object");
    return Node(*object, std::move(path));
  }

  std::string key(std::string_view name) const {
    return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
  }
  const std::string& path() const { return path_; }
  const json::object& object() const { return *object_; }

  // The value of a key; null counts as absent.
  const json::value* find(std::string_view name) const {
    const json::value* value = object_->if_contains(name);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  Status only(std::initializer_list<std::string_view> known) const {
    for (const auto& pair : *object_) {
      const std::string_view name(pair.key().data(), pair.key().size());
      if (std::ranges::find(known, name) == known.end()) {
        return unsupported(key(name), "is not a key that Penstock knows");
      }
    }
    return {};
  }
  Result<std::string_view> text(std::string_view name) const {
    const json::value* value = find(name);
    if (value == nullptr || !value->is_string()) return malformed(key(name), "must be a string");
    return view(value->get_string());
  }
  Result<bool> flag(std::string_view name, bool fallback) const {
    const json::value* value = find(name);
    if (value == nullptr) return fallback;
    if (!value->is_bool()) return malformed(key(name), "must be true or false");
    return value->get_bool();
  }

 private:
  Node(const json::object& object, std::string path) : object_(&object), path_(std::move(path)) {}
  const json::object* object_;
  std::string path_;
};

// The bytes behind the characters of the byte-level alphabet: printable Latin-1 stands for itself,
// the other 68 bytes are U+0100 and up, in order.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    bytes_.fill(-1);
    std::size_t next = 0x100;
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const bool is_itself = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      bytes_[is_itself ? byte : next++] = static_cast<std::int16_t>(byte);
    }
  }
  // Returns the bytes a string of the vocabulary stands for, or nothing when a character is not of
  // the alphabet.
  std::optional<std::string> bytes_of(std::string_view text) const {
    std::string bytes;
    for (std::size_t i = 0; i < text.size();) {
      const unicode::Decoded c = unicode::decode(text.data() + i);
      if (c.code_point >= bytes_.size() || bytes_[c.code_point] < 0) return std::nullopt;
      bytes.push_back(static_cast<char>(bytes_[c.code_point]));
      i += c.size;
    }
    return bytes;
  }

 private:
  std::array<std::int16_t, 0x144> bytes_{};
};

class Reader {
 public:
  Result<TokenizerFile> read(const json::value& value) {
    TRY(const Node root, Node::of(value, ""));
    TRY_STATUS(root.only({"version", "truncation", "padding", "added_tokens", "normalizer",
                          "pre_tokenizer", "post_processor", "decoder", "model"}));
    for (const std::string_view name : {"truncation", "padding"}) {
      if (root.find(name) != nullptr) return unsupported(name, "must be null");
    }
    TRY_STATUS(read_model(root));
    TRY_STATUS(read_added(root));
    if (const json::value* normalizer = root.find("normalizer")) {
      TRY_STATUS(read_normalizer(*normalizer, "normalizer", 0));
    }
    TRY_STATUS(read_pre_tokenizer(root));
    TRY_STATUS(read_decoder(root));
    return std::move(file_);
  }

 private:
  Status read_model(const Node& root) {
    const json::value* value = root.find("model");
    if (value == nullptr) return malformed("model", "is missing");
    TRY(const Node model, Node::of(*value, "model"));
    TRY_STATUS(model.only({"type", "dropout", "unk_token", "continuing_subword_prefix",
                           "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges",
                           "vocab", "merges"}));
    TRY(const std::string_view type, model.text("type"));
    if (type != "BPE") {
      return unsupported("model.type", fmt::format("\"{}\" is not supported, only BPE", type));
    }
    if (const json::value* dropout = model.find("dropout")) {
      if (!dropout->is_number() || dropout->to_number<double>() != 0) {
        return unsupported("model.dropout", "must be null or 0");
      }
    }
    for (const std::string_view name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (model.find(name) == nullptr) continue;
      TRY(const std::string_view affix, model.text(name));
      if (!affix.empty()) return unsupported(model.key(name), "must be null or empty");
    }
    TRY(const bool byte_fallback, model.flag("byte_fallback", false));
    if (byte_fallback) return unsupported("model.byte_fallback", "must be false");
    // With all bytes in the vocabulary nothing is ever unknown, so these two have no effect.
    TRY_STATUS(model.flag("fuse_unk", false));
    if (model.find("unk_token") != nullptr) TRY_STATUS(model.text("unk_token"));
    TRY(file_.ignore_merges, model.flag("ignore_merges", false));
    TRY_STATUS(read_vocabulary(model));
    return read_merges(model);
  }

  Result<TokenId> read_id(const json::value& value, std::string_view key) const {
    boost::system::error_code error;
    const auto number = value.to_number<std::int64_t>(error);
    if (error || number < 0 || number >= std::int64_t{Tokenizer::kTokenIdLimit}) {
      return malformed(key,
                       fmt::format("must be an id from 0 to {}", Tokenizer::kTokenIdLimit - 1));
    }
    return static_cast<TokenId>(number);
  }

  // Makes room for the id; fails when another string has it.
  Status claim(TokenId id, std::string_view key) {
    if (id >= taken_.size()) {
      taken_.resize(id + 1);
      file_.text_bytes.resize(id + 1);
      file_.decoded.resize(id + 1);
    }
    if (taken_[id]) return malformed(key, fmt::format("uses id {} a second time", id));
    taken_[id] = true;
    return {};
  }

  Status read_vocabulary(const Node& model) {
    const json::value* value = model.find("vocab");
    if (value == nullptr || !value->is_object())
      return malformed("model.vocab", "must be an object");
    vocabulary_ = &value->get_object();
    for (const auto& pair : *vocabulary_) {
      const std::string_view text(pair.key().data(), pair.key().size());
      TRY(const TokenId id, read_id(pair.value(), "model.vocab"));
      TRY_STATUS(claim(id, "model.vocab"));
      std::optional<std::string> bytes = alphabet_.bytes_of(text);
      file_.decoded[id] = bytes ? *bytes : std::string(text);
      if (bytes) file_.text_bytes[id] = std::move(*bytes);
    }
    return {};
  }

  Result<TokenId> entry(std::string_view text, std::size_t index) const {
    const json::value* value = vocabulary_->if_contains(text);
    if (value == nullptr) {
      return malformed(fmt::format("model.merges[{}]", index),
                       fmt::format("needs \"{}\", which is not in the vocabulary", text));
    }
    return value->to_number<TokenId>();
  }

  Status read_merges(const Node& model) {
    const json::value* value = model.find("merges");
    if (value == nullptr || !value->is_array())
      return malformed("model.merges", "must be an array");
    file_.merges.reserve(value->get_array().size());
    std::string product;
    for (std::size_t i = 0; i < value->get_array().size(); ++i) {
      const json::value& merge = value->get_array()[i];
      std::string_view left;
      std::string_view right;
      if (const json::string* text = merge.if_string()) {
        if (view(*text).starts_with("#version")) continue;
        const std::size_t space = view(*text).find(' ');
        if (space != std::string_view::npos) {
          left = view(*text).substr(0, space);
          right = view(*text).substr(space + 1);
        }
      } else if (const json::array* pair = merge.if_array(); pair != nullptr && pair->size() == 2 &&
                                                             (*pair)[0].is_string() &&
                                                             (*pair)[1].is_string()) {
        left = view((*pair)[0].get_string());
        right = view((*pair)[1].get_string());
      }
      if (left.empty() || right.empty() || (merge.is_string() && right.contains(' '))) {
        return malformed(fmt::format("model.merges[{}]", i), "must be \"left right\" or a pair");
      }
      product.assign(left).append(right);
      TRY(const TokenId left_id, entry(left, i));
      TRY(const TokenId right_id, entry(right, i));
      TRY(const TokenId product_id, entry(product, i));
      file_.merges.push_back({left_id, right_id, product_id});
    }
    return {};
  }

  Status read_added(const Node& root) {
    const json::value* value = root.find("added_tokens");
    if (value == nullptr) return {};
    const json::array* list = value->if_array();
    if (list == nullptr) return malformed("added_tokens", "must be an array");
    if (list->size() > kAddedTokensMax) {
      return fail(ErrorCode::kPayloadTooLarge,
                  fmt::format("tokenizer.json: more than {} added tokens", kAddedTokensMax),
                  "added_tokens");
    }
    for (std::size_t i = 0; i < list->size(); ++i) {
      TRY(const Node node, Node::of((*list)[i], fmt::format("added_tokens[{}]", i)));
      TRY_STATUS(read_added_token(node));
    }
    return {};
  }

  Status read_added_token(const Node& node) {
    TRY_STATUS(
        node.only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
    const json::value* id = node.find("id");
    if (id == nullptr) return malformed(node.key("id"), "is missing");
    AddedToken token;
    TRY(token.id, read_id(*id, node.key("id")));
    TRY(const std::string_view content, node.text("content"));
    if (content.empty()) return malformed(node.key("content"), "must not be empty");
    token.content = content;
    TRY(token.single_word, node.flag("single_word", false));
    TRY(token.lstrip, node.flag("lstrip", false));
    TRY(token.rstrip, node.flag("rstrip", false));
    TRY(token.special, node.flag("special", false));
    TRY(token.normalized, node.flag("normalized", !token.special));
    if (const json::value* entry = vocabulary_->if_contains(content)) {
      if (entry->to_number<TokenId>() != token.id) {
        return malformed(node.key("id"), "differs from the vocabulary's id of the same string");
      }
      for (const AddedToken& other : file_.added) {
        if (other.id == token.id) return malformed(node.key("content"), "is there twice");
      }
    } else {
      TRY_STATUS(claim(token.id, node.key("id")));
    }
    file_.decoded[token.id] = alphabet_.bytes_of(content).value_or(token.content);
    file_.added.push_back(std::move(token));
    return {};
  }

  Status read_normalizer(const json::value& value, const std::string& path, std::size_t depth) {
    TRY(const Node node, Node::of(value, path));
    TRY(const std::string_view type, node.text("type"));
    if (type == "NFC") {
      file_.normalizes_nfc = true;
      return node.only({"type"});
    }
    if (type != "Sequence" || depth > 8) {
      return unsupported(node.key("type"), fmt::format("\"{}\" is not supported, only NFC", type));
    }
    TRY_STATUS(node.only({"type", "normalizers"}));
    const json::value* list = node.find("normalizers");
    if (list == nullptr || !list->is_array()) {
      return malformed(node.key("normalizers"), "must be an array");
    }
    for (std::size_t i = 0; i < list->get_array().size(); ++i) {
      TRY_STATUS(read_normalizer(list->get_array()[i], fmt::format("{}.normalizers[{}]", path, i),
                                 depth + 1));
    }
    return {};
  }

  Status read_pre_tokenizer(const Node& root) {
    const json::value* value = root.find("pre_tokenizer");
    if (value == nullptr) return unsupported("pre_tokenizer", "must end with ByteLevel");
    TRY_STATUS(read_stage(*value, "pre_tokenizer", 0));
    if (!ends_byte_level_) return unsupported("pre_tokenizer", "must end with ByteLevel");
    file_.pre_tokenizer.finish();
    return {};
  }

  Status read_stage(const json::value& value, const std::string& path, std::size_t depth) {
    TRY(const Node node, Node::of(value, path));
    TRY(const std::string_view type, node.text("type"));
    if (type == "Sequence" && depth <= 8) return read_stages(node, depth);
    if (ends_byte_level_) return unsupported(path, "comes after ByteLevel");
    if (++stages_ > kStagesMax) return unsupported(path, "is one stage too many");
    if (type == "Split") return read_split(node);
    if (type == "Digits") {
      TRY_STATUS(node.only({"type", "individual_digits"}));
      TRY(const bool individual, node.flag("individual_digits", false));
      file_.pre_tokenizer.add_digits(individual);
      return {};
    }
    if (type == "ByteLevel") {
      TRY_STATUS(node.only({"type", "add_prefix_space", "trim_offsets", "use_regex"}));
      TRY(const bool add_prefix_space, node.flag("add_prefix_space", true));
      TRY(const bool use_regex, node.flag("use_regex", true));
      ends_byte_level_ = true;
      return file_.pre_tokenizer.add_byte_level(add_prefix_space, use_regex);
    }
    return unsupported(node.key("type"),
                       fmt::format("\"{}\" is not supported, only Sequence, Split, Digits and "
                                   "ByteLevel",
                                   type));
  }

  Status read_stages(const Node& node, std::size_t depth) {
    TRY_STATUS(node.only({"type", "pretokenizers"}));
    const json::value* list = node.find("pretokenizers");
    if (list == nullptr || !list->is_array()) {
      return malformed(node.key("pretokenizers"), "must be an array");
    }
    for (std::size_t i = 0; i < list->get_array().size(); ++i) {
      TRY_STATUS(read_stage(list->get_array()[i],
                            fmt::format("{}.pretokenizers[{}]", node.path(), i), depth + 1));
    }
    return {};
  }

  Status read_split(const Node& node) {
    TRY_STATUS(node.only({"type", "pattern", "behavior", "invert"}));
    const json::value* value = node.find("pattern");
    if (value == nullptr) return malformed(node.key("pattern"), "is missing");
    TRY(const Node pattern, Node::of(*value, node.key("pattern")));
    TRY_STATUS(pattern.only({"Regex", "String"}));
    PreTokenizer::Split split;
    split.is_regex = pattern.find("Regex") != nullptr;
    TRY(const std::string_view text, pattern.text(split.is_regex ? "Regex" : "String"));
    split.pattern = text;
    TRY(const std::string_view behavior, node.text("behavior"));
    struct Name {
      std::string_view text;
      SplitBehavior value;
    };
    static constexpr Name kNames[] = {
        {"Removed", SplitBehavior::kRemoved},
        {"Isolated", SplitBehavior::kIsolated},
        {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
        {"MergedWithNext", SplitBehavior::kMergedWithNext},
        {"Contiguous", SplitBehavior::kContiguous},
    };
    const Name* const name = std::ranges::find(kNames, behavior, &Name::text);
    if (name == std::end(kNames)) {
      return unsupported(node.key("behavior"), fmt::format("\"{}\" is not supported", behavior));
    }
    split.behavior = name->value;
    TRY(split.invert, node.flag("invert", false));
    if (Status status = file_.pre_tokenizer.add_split(split); !status) {
      return at_key(node.key("pattern"), std::move(status).error());
    }
    return {};
  }

  Status read_decoder(const Node& root) {
    const json::value* value = root.find("decoder");
    if (value == nullptr) return unsupported("decoder", "must be ByteLevel");
    TRY(const Node decoder, Node::of(*value, "decoder"));
    TRY(const std::string_view type, decoder.text("type"));
    if (type != "ByteLevel") {
      return unsupported("decoder.type",
                         fmt::format("\"{}\" is not supported, only ByteLevel", type));
    }
    return decoder.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  }

  ByteAlphabet alphabet_;
  TokenizerFile file_;
  std::vector<bool> taken_;
  const json::object* vocabulary_ = nullptr;
  bool ends_byte_level_ = false;
  std::size_t stages_ = 0;
};

}  // namespace

Result<TokenizerFile> read_tokenizer_json(std::string_view text) {
  if (text.size() > Tokenizer::kJsonBytesMax) {
    return fail(ErrorCode::kPayloadTooLarge,
                fmt::format("tokenizer.json has {} bytes, over the limit of {}", text.size(),
                            Tokenizer::kJsonBytesMax));
  }
  json::monotonic_resource memory;
  json::parse_options options;
  options.max_depth = 32;
  boost::system::error_code error;
  json::stream_parser parser(json::storage_ptr(), options);
  parser.reset(&memory);
  const std::size_t used = parser.write_some(text.data(), text.size(), error);
  if (!error && used == text.size()) parser.finish(error);
  if (error || used != text.size()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("tokenizer.json is not valid JSON at byte {}: {}", used,
                            error ? error.message() : "text behind the value"));
  }
  const json::value value = parser.release();
  return Reader().read(value);
}

}  // namespace penstock
