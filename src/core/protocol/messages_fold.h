// Folds the events of a Messages stream into the whole message, as a client does. For tests and
// fuzzers only.
//
// Checks on the way what a stream promises: names equal types, message_start once and first, blocks
// one after the other with deltas of their kind, a signature last in a thinking block, nothing
// after message_stop. `problem` says what is wrong, empty when nothing is.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <string_view>

namespace penstock::protocol {

struct FoldedMessage {
  boost::json::object whole;
  std::string problem;
  bool done = false;
  std::string error;  // the type of the error event, if one came
};

class MessagesFolder {
 public:
  FoldedMessage fold(std::string_view bytes) {
    while (!bytes.empty() && out_.problem.empty()) {
      if (bytes.starts_with(':')) {  // a comment is one line
        bytes.remove_prefix(std::min(bytes.size(), bytes.find('\n') + 1));
        continue;
      }
      const auto end = bytes.find("\n\n");
      if (end == std::string_view::npos) {
        complain("an event without end");
        break;
      }
      take_event(bytes.substr(0, end));
      bytes.remove_prefix(end + 2);
    }
    return std::move(out_);
  }

 private:
  using Object = boost::json::object;

  void complain(const std::string& what) {
    if (out_.problem.empty()) out_.problem = what;
  }

  void take_event(std::string_view text) {
    const auto line = text.find("\ndata: ");
    if (!text.starts_with("event: ") || line == std::string_view::npos) {
      return complain("not a named event: " + std::string(text));
    }
    const auto name = text.substr(7, line - 7);
    boost::json::error_code error;
    const auto parsed = boost::json::parse(text.substr(line + 7), error);
    if (error || !parsed.is_object()) return complain("no JSON object: " + std::string(text));
    const auto& event = parsed.get_object();
    if (event.at("type").as_string() != name) complain("the name is not the type");
    if (out_.done || !out_.error.empty()) complain("an event after the end");
    if (name == "error") {
      out_.error = event.at("error").at("type").as_string();
    } else if (name == "message_start") {
      if (!out_.whole.empty()) complain("a second message_start");
      out_.whole = event.at("message").as_object();
      if (!out_.whole.at("content").as_array().empty()) complain("content in message_start");
      if (!out_.whole.at("stop_reason").is_null()) complain("stop_reason in message_start");
    } else if (out_.whole.empty()) {
      complain("an event before message_start");
    } else {
      take_inner(name, event);
    }
  }

  void take_inner(std::string_view name, const Object& event) {
    if (name == "ping") return;
    if (name == "message_stop") {
      if (out_.whole.at("stop_reason").is_null()) complain("message_stop without message_delta");
      out_.done = true;
    } else if (name == "message_delta") {
      if (open_) complain("message_delta inside a block");
      if (!out_.whole.at("stop_reason").is_null()) complain("a second message_delta");
      for (const auto& [key, value] : event.at("delta").as_object())
        out_.whole[key] = value;
      out_.whole["usage"] = event.at("usage");
    } else if (event.at("index").to_number<std::size_t>() != content().size() - (open_ ? 1 : 0)) {
      complain("the index is not the open block's, or the next");
    } else if (name == "content_block_start") {
      if (open_) complain("a block inside a block");
      open_ = true;
      signed_ = false;
      input_.clear();
      content().push_back(event.at("content_block"));
    } else if (!open_) {
      complain("no block is open");
    } else if (name == "content_block_delta") {
      take_delta(event.at("delta").as_object());
    } else if (name == "content_block_stop") {
      close();
    } else {
      complain("unknown event " + std::string(name));
    }
  }

  void take_delta(const Object& delta) {
    auto& block = content().back().as_object();
    const std::string kind(block.at("type").as_string());
    const auto& type = delta.at("type").as_string();
    if (kind == "text" && type == "text_delta") {
      block.at("text").as_string() += delta.at("text").as_string();
    } else if (kind == "thinking" && type == "thinking_delta" && !signed_) {
      block.at("thinking").as_string() += delta.at("thinking").as_string();
    } else if (kind == "thinking" && type == "signature_delta" && !signed_) {
      signed_ = true;
      block["signature"] = delta.at("signature");
    } else if (kind == "tool_use" && type == "input_json_delta") {
      input_ += delta.at("partial_json").as_string();
    } else {
      complain(std::string(type) + " in a " + kind + " block");
    }
  }

  void close() {
    open_ = false;
    auto& block = content().back().as_object();
    if (block.at("type") == "thinking" && !signed_) complain("thinking without a signature");
    if (block.at("type") != "tool_use") return;
    boost::json::error_code error;
    boost::json::parse_options options;
    options.max_depth = 128;
    auto value = boost::json::parse(input_, error, {}, options);
    // A client would fail here; the whole answer keeps the text.
    if (error || !value.is_object()) value = Object{{"raw", input_}};
    block["input"] = std::move(value);
  }

  boost::json::array& content() { return out_.whole.at("content").as_array(); }

  FoldedMessage out_;
  std::string input_;  // of the open tool_use
  bool open_ = false;
  bool signed_ = false;
};

}  // namespace penstock::protocol
