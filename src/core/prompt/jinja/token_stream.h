// The tokens of a template while it is parsed. Concurrency: one owner.
#pragma once

#include <fmt/format.h>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/prompt/jinja/lexer.h"

namespace penstock::jinja {

class TokenStream {
 public:
  using Kind = Token::Kind;
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  int line() const { return now().line; }
  Token take() {
    Token token = now();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  bool is(Kind kind) const { return now().kind == kind; }
  bool is_op(std::string_view op) const { return is(Kind::kOperator) && now().text == op; }
  bool is_word(std::string_view word) const { return is(Kind::kName) && now().text == word; }
  bool skip_op(std::string_view op) { return is_op(op) && (take(), true); }
  bool skip_word(std::string_view word) { return is_word(word) && (take(), true); }

  Fallible<void> need_op(std::string_view op) {
    if (skip_op(op)) return {};
    return unexpected(fmt::format("'{}'", op));
  }
  Fallible<void> need_word(std::string_view word) {
    if (skip_word(word)) return {};
    return unexpected(fmt::format("'{}'", word));
  }
  Fallible<std::string> need_name() {
    if (is(Kind::kName)) return take().text;
    return unexpected("a name");
  }
  Fallible<void> need(Kind kind, std::string_view what) {
    if (is(kind)) {
      take();
      return {};
    }
    return unexpected(what);
  }
  std::unexpected<Failure> unexpected(std::string_view wanted) const {
    const std::string found = is(Kind::kEnd)           ? "the template ends"
                              : is(Kind::kBlockEnd)    ? "there is '%}'"
                              : is(Kind::kVariableEnd) ? "there is '}}'"
                                                       : fmt::format("there is '{}'", now().text);
    return fail(fmt::format("{} is expected, {}", wanted, found));
  }
  std::unexpected<Failure> fail(std::string why) const {
    return std::unexpected(Failure{std::move(why), line(), false});
  }

 private:
  std::vector<Token> tokens_;
  std::size_t at_ = 0;
};

}  // namespace penstock::jinja
