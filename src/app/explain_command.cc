// penstock explain: asks the running gateway why a request was placed where it was.
#include <fmt/format.h>

#include "app/commands.h"
#include "app/console.h"
#include "app/operator_access.h"
#include "app/placement_history.h"
#include "core/protocol/sse.h"

namespace penstock {

Result<int> run_explain(const Options& options) {
  if (options.words.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "give the id of a request: `penstock explain REQUEST`; it is in the access log and "
                "in the answer's x-request-id header");
  }
  const std::string& id = options.words[0];
  if (!protocol::request_id_is_safe(id)) {
    return fail(ErrorCode::kInvalidArgument,
                "a request's id has letters, digits, '.', '_', ':' and '-' only");
  }
  TRY(const ApiTarget target, find_gateway(options));
  auto answer = fetch(target, "/admin/explain/" + id);
  if (!answer && answer.error().code == ErrorCode::kUnavailable) {
    return std::unexpected(
        std::move(answer).error().within("the gateway of this data folder does not answer"));
  }
  if (!answer && answer.error().code == ErrorCode::kNotFound) {
    return fail(ErrorCode::kNotFound,
                fmt::format("nothing is known of the request {}: it was not placed, or is not "
                            "among the last ones",
                            id));
  }
  if (!answer) return std::unexpected(std::move(answer).error());
  return print_data(options.json ? pretty_json(*answer) : explanation_text(*answer));
}

}  // namespace penstock
