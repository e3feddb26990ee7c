#include "service/gateway/answer_rules.h"

#include <fmt/format.h>
#include <algorithm>
#include <utility>

namespace penstock::gateway {
namespace {

using prompt::AnswerRules;
using protocol::ChatRequest;
using protocol::ToolChoiceMode;
using Arguments = AnswerRules::Arguments;

std::unexpected<Error> in_field(Error error, std::string_view field) {
  error.field = field;
  return std::unexpected(std::move(error));
}

// The format alone, behind the reasoning.
Status constrain_text(ChatRequest& request, const ServedModel& model) {
  Constraint& constraint = request.constraint;
  if (!model.encoding->thinks(request.conversation)) return {};
  constraint.after = model.tokenizer->token_id(model.encoding->reasoning_end());
  if (constraint.after) return {};
  return fail(ErrorCode::kUnsupported,
              "this model's reasoning has no end that is a token, so what follows can't be held to "
              "a format; turn thinking off",
              std::string(request.constraint_field));
}

class AnswerGrammar {
 public:
  AnswerGrammar(const ChatRequest& request, const ServedModel& model,
                grammar::CheckedConstraints& checked)
      : conversation_(request.conversation), model_(model), checked_(checked) {
    const auto& choice = request.tool_choice;
    const bool named = choice.mode == ToolChoiceMode::kNamed;
    rules_.must_call = named || choice.mode == ToolChoiceMode::kRequired;
    rules_.several_calls = request.parallel_tool_calls && !named;
    for (const ToolDefinition& tool : conversation_.tools) {
      const bool held = rules_.must_call || tool.strict;
      const auto arguments = held ? Arguments::kBySchema : Arguments::kAny;
      rules_.tools.push_back(named && tool.name != choice.name ? Arguments::kNone : arguments);
    }
  }

  // Without calls, the answer is of this format.
  void hold_text(const Constraint& format) {
    rules_.json =
        format.kind == Constraint::Kind::kJsonSchema ? format.text : R"({"type":"object"})";
  }

  // `field`: what is at fault when no single tool is.
  Result<Constraint> make(std::string_view field) {
    auto whole = compiled(rules_);
    if (whole) return whole;
    // Which of the tools it is shows when each stands alone.
    bool loosened = false;
    for (std::size_t i = 0; i < conversation_.tools.size(); ++i) {
      if (rules_.tools[i] != Arguments::kBySchema) continue;
      AnswerRules alone{.tools = {}, .must_call = true, .several_calls = false};
      alone.tools.assign(rules_.tools.size(), Arguments::kNone);
      alone.tools[i] = Arguments::kBySchema;
      auto one = compiled(alone);
      if (one) continue;
      const ToolDefinition& tool = conversation_.tools[i];
      Error why = std::move(one).error();
      if (why.code != ErrorCode::kUnsupported || tool.strict) {
        why.message = fmt::format("{}: {}", tool.field, why.message);
        return in_field(std::move(why), tool.field);
      }
      rules_.tools[i] = Arguments::kAny;
      loosened = true;
    }
    if (loosened) whole = compiled(rules_);
    if (!whole) return in_field(std::move(whole).error(), field);
    return whole;
  }

 private:
  Result<Constraint> compiled(const AnswerRules& rules) {
    TRY(std::string text,
        model_.encoding->answer_grammar(conversation_, rules, [&](std::string_view content) {
          return model_.tokenizer->token_id(content);
        }));
    Constraint constraint{Constraint::Kind::kEbnf, std::move(text)};
    TRY_STATUS(checked_.check(constraint));
    return constraint;
  }

  const Conversation& conversation_;
  const ServedModel& model_;
  grammar::CheckedConstraints& checked_;
  AnswerRules rules_;
};

}  // namespace

Result<AnswerShape> constrain_answer(ChatRequest& request, const ServedModel& model,
                                     grammar::CheckedConstraints& checked) {
  const Conversation& conversation = request.conversation;
  const ToolChoiceMode mode = request.tool_choice.mode;
  const bool forced = mode == ToolChoiceMode::kRequired || mode == ToolChoiceMode::kNamed;
  const bool strict = std::ranges::any_of(conversation.tools, &ToolDefinition::strict);
  AnswerGrammar grammar(request, model, checked);
  if (request.constraint && !forced) {
    if (conversation.continue_last_assistant) {
      return fail(ErrorCode::kUnsupported,
                  "an answer in JSON can't go with prefix completion here; leave one of them out",
                  std::string(request.constraint_field));
    }
    if (auto good = checked.check(request.constraint); !good)
      return in_field(std::move(good).error(), request.constraint_field);
    if (conversation.tools.empty()) {
      TRY_STATUS(constrain_text(request, model));
      if (!model.encoding->thinks(conversation)) return AnswerShape::kText;
      // A parser of the model's finds the end of the reasoning.
      return model.encoding->tells_json_from_calls() ? AnswerShape::kJsonOrCalls
                                                     : AnswerShape::kUsual;
    }
    if (!model.encoding->tells_json_from_calls()) {
      return fail(ErrorCode::kUnsupported,
                  "this model's calls can't be told from an answer in JSON; force a call, send "
                  "tool_choice \"none\", or leave the format or the tools out",
                  std::string(request.constraint_field));
    }
    grammar.hold_text(request.constraint);
    TRY(request.constraint, grammar.make(request.constraint_field));
    return AnswerShape::kJsonOrCalls;
  }
  if (!forced && !strict) return AnswerShape::kUsual;
  const std::string_view field = forced ? "tool_choice" : "tools";
  TRY(request.constraint, grammar.make(field));
  request.constraint_field = field;
  return AnswerShape::kUsual;
}

}  // namespace penstock::gateway
