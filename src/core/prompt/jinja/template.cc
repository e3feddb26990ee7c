#include "core/prompt/jinja/template.h"

#include "base/result.h"
#include "core/prompt/jinja/evaluator.h"
#include "core/prompt/jinja/parser.h"

namespace penstock::jinja {

Fallible<std::shared_ptr<const Template>> Template::parse(std::string_view source) {
  TRY(Body body, jinja::parse(source));
  return std::shared_ptr<const Template>(new Template(std::move(body)));
}

Fallible<Text> Template::render(const Dict& variables, std::optional<std::int64_t> now,
                                const Limits& limits) const {
  return Evaluator(variables, now, limits).run(body_);
}

}  // namespace penstock::jinja
