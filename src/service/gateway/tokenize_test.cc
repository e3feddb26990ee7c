// POST /tokenize and /detokenize through the gateway.
#include <string>

#include "core/protocol/tokenize.h"
#include "tests/support/gateway_rig.h"

namespace penstock::gateway {

TEST_CASE("a text becomes its tokens as it stands, and tokens become text again") {
  Rig rig;
  const std::string text = "Caf\u00e9 <｜User｜>\n";  // spells a special token, is none
  std::vector<TokenId> ids;
  REQUIRE(nano_tokenizer()->encode(text, ids));
  const auto answer =
      rig.send("POST", "/tokenize", R"({"model":"nano","prompt":"Caf\u00e9 <｜User｜>\n"})");
  CHECK(answer->status == 200);
  CHECK(answer->body == protocol::tokenize_answer(ids));
  CHECK(rig.last().usage == Usage{});
  std::string tokens = answer->body.substr(answer->body.find('['));
  tokens.pop_back();
  const auto back = rig.send("POST", "/detokenize", R"({"model":"nano","tokens":)" + tokens + "}");
  CHECK(back->body == protocol::detokenize_answer(text));
  CHECK(rig.send("POST", "/tokenize", R"({"model":"nano","prompt":""})")->body ==
        R"({"count":0,"tokens":[]})");
}

TEST_CASE("a conversation becomes the tokens of its prompt") {
  Rig rig;
  const std::string body = R"({"model":"nano","messages":[{"role":"user","content":"Hi"}]})";
  const auto answer = rig.send("POST", "/tokenize", body);
  CHECK(rig.engines.submitted == 0);
  rig.send("POST", "/v1/chat/completions", body);
  CHECK(answer->body == protocol::tokenize_answer(*rig.engines.open()[0].request.prompt));
  rig.emit_text("x", FinishReason::kLength);
}

TEST_CASE("what can't be tokenized or detokenized is refused by name") {
  Rig rig;
  struct Case {
    const char* path;
    const char* body;
    int status;
    const char* part;
  };
  for (const Case& c : {
           Case{"/tokenize", R"({"model":"nano","prompt":7})", 400, R"("param":"prompt")"},
           Case{"/tokenize", R"({"model":"nano"})", 400, R"("param":"messages")"},
           Case{"/tokenize", R"({"model":"nano","prompt":"a","messages":[]})", 400, "either"},
           Case{"/tokenize", R"({"model":"nano","prompt":"a","add_special_tokens":true})", 400,
                R"("param":"add_special_tokens")"},
           Case{"/tokenize", R"({"model":"no","prompt":"a"})", 404, "model_not_found"},
           Case{"/detokenize", R"({"model":"no","tokens":[]})", 404, "model_not_found"},
           Case{"/detokenize", R"({"model":"nano"})", 400, R"("param":"tokens")"},
           Case{"/detokenize", R"({"model":"nano","tokens":[1,"2"]})", 400,
                R"("param":"tokens[1]")"},
           Case{"/detokenize", R"({"model":"nano","tokens":[1,-2]})", 400,
                R"("param":"tokens[1]")"},
           Case{"/detokenize", R"({"model":"nano","tokens":[4000000000]})", 400, "vocabulary"},
       }) {
    CAPTURE(c.body);
    const auto answer = rig.send("POST", c.path, c.body);
    CHECK(answer->status == c.status);
    CHECK(contains(answer->body, c.part));
  }
  CHECK(rig.send("POST", "/detokenize", "{}", {{"content-type", "text/plain"}})->status == 415);
}

}  // namespace penstock::gateway
