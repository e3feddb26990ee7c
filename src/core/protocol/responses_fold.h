// Folds the events of a Responses stream into the object, as a client does. For tests and fuzzers.
//
// Checks on the way what a stream promises: names equal types, sequence numbers from 0 without a
// gap, one item open at a time, its pieces within its begin and end and joined equal to what the
// ends say, one terminal event with the same items, [DONE] last. `problem` says what is wrong,
// empty when nothing is.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <string_view>

#include "core/protocol/sse.h"

namespace penstock::protocol {

struct FoldedResponse {
  boost::json::object whole;
  std::string problem;
  bool done = false;
};

class ResponseFolder {
 public:
  FoldedResponse fold(std::string_view bytes) {
    std::string_view rest = bytes;
    while (!rest.empty() && out_.problem.empty()) {
      if (rest.starts_with(kSseKeepAlive)) {
        rest.remove_prefix(kSseKeepAlive.size());
        continue;
      }
      const auto end = rest.find("\n\n");
      if (end == std::string_view::npos) {
        complain("half an event");
        break;
      }
      take(rest.substr(0, end));
      rest.remove_prefix(end + 2);
    }
    if (out_.whole.empty()) complain("no terminal event");
    if (!out_.done) complain("no [DONE]");
    return std::move(out_);
  }

 private:
  using Object = boost::json::object;

  void complain(const std::string& what) {
    if (out_.problem.empty()) out_.problem = what;
  }
  void expect(bool fine, const std::string& what) {
    if (!fine) complain(what);
  }

  void take(std::string_view event) {
    if (event == "data: [DONE]") {
      expect(!out_.whole.empty() && !out_.done, "[DONE] in the wrong place");
      out_.done = true;
      return;
    }
    const auto line = event.find('\n');
    if (!event.starts_with("event: ") || line == std::string_view::npos) {
      return complain("an event without a name");
    }
    const auto name = event.substr(7, line - 7);
    const auto data = event.substr(line + 1);
    boost::json::error_code error;
    const auto value = boost::json::parse(data.substr(data.find(' ') + 1), error);
    if (error || !value.is_object()) return complain("data is not an object");
    const auto& object = value.get_object();
    expect(object.at("type").as_string() == name, "the name is not the type");
    expect(object.at("sequence_number").to_number<std::uint64_t>() == sequence_++,
           "a gap in the sequence");
    expect(out_.whole.empty(), "an event after the terminal one");
    take_event(std::string(name), object);
  }

  void take_event(const std::string& name, const Object& event) {
    if (name == "error") {
      failed_ = true;
    } else if (name == "response.created" || name == "response.queued" ||
               name == "response.in_progress") {
      expect(items_.empty() && open_.empty(), "a beginning in the middle");
      expect((name == "response.created") == (begun_++ == 0), "created is the first event");
    } else if (event.contains("response")) {
      expect(open_.empty(), "an item is still open");
      out_.whole = event.at("response").as_object();
      expect(name == "response." + std::string(out_.whole.at("status").as_string()),
             "the status is not the event");
      expect(out_.whole.at("output").as_array() == items_, "the items are not what was streamed");
      expect(failed_ == (name == "response.failed"), "an error event comes before failed");
    } else {
      take_item_event(name, event);
    }
  }

  void take_item_event(const std::string& name, const Object& event) {
    expect(begun_ > 0, "an item before the beginning");
    expect(event.at("output_index").to_number<std::uint64_t>() == items_.size(), "output_index");
    if (name == "response.output_item.added") {
      expect(open_.empty(), "two items open");
      open_ = event.at("item").as_object();
      text_.clear();
      logprobs_.clear();
      parts_ = 0;
      return;
    }
    if (open_.empty()) return complain("an event of no item");
    if (name == "response.output_item.done") {
      const auto& item = event.at("item").as_object();
      expect(item.at("id") == open_.at("id") && item.at("type") == open_.at("type"), "identity");
      check_item(item);
      items_.push_back(item);
      open_.clear();
      return;
    }
    expect(event.at("item_id") == open_.at("id"), "item_id");
    const bool call = open_.at("type").as_string() == "function_call";
    expect(event.contains("content_index") != call, "content_index");
    take_piece(name, event);
  }

  void take_piece(const std::string& name, const Object& event) {
    const auto type = std::string(open_.at("type").as_string());
    const std::string stem = type == "function_call" ? "response.function_call_arguments"
                             : type == "reasoning"   ? "response.reasoning_text"
                                                     : "response.output_text";
    if (name == "response.content_part.added") {
      expect(parts_++ == 0, "two parts");
    } else if (name == "response.content_part.done") {
      expect(event.at("part").at("text").as_string() == text_, "the part's text");
    } else if (name == stem + ".delta") {
      expect(type == "function_call" || parts_ == 1, "a piece before its part");
      text_ += std::string_view(event.at("delta").as_string());
      if (type != "message") return;
      for (const auto& entry : event.at("logprobs").as_array())
        logprobs_.push_back(entry);
    } else if (name == stem + ".done") {
      expect(event.at(type == "function_call" ? "arguments" : "text").as_string() == text_,
             "the joined pieces");
    } else {
      complain("an event that does not belong: " + name);
    }
  }

  void check_item(const Object& item) {
    if (item.at("type").as_string() == "function_call") {
      expect(item.at("arguments").as_string() == text_, "the item's arguments");
      expect(item.at("call_id") == open_.at("call_id") && item.at("name") == open_.at("name"),
             "the call's identity");
      return;
    }
    const auto& part = item.at("content").at(0).as_object();
    expect(part.at("text").as_string() == text_, "the item's text");
    if (item.at("type").as_string() == "message")
      expect(part.at("logprobs").as_array() == logprobs_, "the item's logprobs");
  }

  FoldedResponse out_;
  boost::json::array items_;
  Object open_;
  std::string text_;
  boost::json::array logprobs_;
  std::uint64_t sequence_ = 0;
  int parts_ = 0;
  int begun_ = 0;
  bool failed_ = false;
};

}  // namespace penstock::protocol
