#include "core/protocol/embeddings.h"

#include <string>

#include <doctest/doctest.h>

namespace penstock::protocol {

TEST_CASE("an embeddings request is checked; what is wrong is named") {
  for (const char* input : {R"("a")", R"(["a","b"])", "[1,2]", "[[1],[2,3]]"}) {
    CAPTURE(input);
    const auto request = parse_embeddings_request(
        std::string(R"({"model":"m","encoding_format":"base64","dimensions":8,"input":)") + input +
        "}");
    REQUIRE(request);
    CHECK(request->model == "m");
  }
  struct Case {
    const char* members;
    const char* field;
  };
  for (const Case& c : {
           Case{R"("input":"a")", "model"},
           Case{R"("model":"m")", "input"},
           Case{R"("model":"m","input":"")", "input"},
           Case{R"("model":"m","input":[])", "input"},
           Case{R"("model":"m","input":7)", "input"},
           Case{R"("model":"m","input":{})", "input"},
           Case{R"("model":"m","input":["a",""])", "input[1]"},
           Case{R"("model":"m","input":["a",1])", "input[1]"},
           Case{R"("model":"m","input":[1,-1])", "input[1]"},
           Case{R"("model":"m","input":[[1],[]])", "input[1]"},
           Case{R"("model":"m","input":[[1],2])", "input[1]"},
           Case{R"("model":"m","input":[["a"]])", "input[0][0]"},
           Case{R"("model":"m","input":"a","encoding_format":"int8")", "encoding_format"},
           Case{R"("model":"m","input":"a","dimensions":0)", "dimensions"},
       }) {
    CAPTURE(c.members);
    const auto request = parse_embeddings_request("{" + std::string(c.members) + "}");
    REQUIRE(!request);
    CHECK(request.error().field == c.field);
  }
}

}  // namespace penstock::protocol
