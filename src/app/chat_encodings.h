// chat_encoding_of(): how a served model writes conversations.
//
// In this order: the template file that --chat-template names; the built-in encoding whose special
// tokens the vocabulary has; the checkpoint's own template (chat_template.jinja, or chat_template
// in tokenizer_config.json).
//
// Errors: kUnsupported when there is none of them; kInvalidArgument with file and line for a
// template that doesn't parse. Concurrency: reads files, so before serving.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "core/prompt/chat_encoding.h"
#include "core/prompt/tokenizer.h"

namespace penstock {

// `template_file` may be empty.
Result<std::shared_ptr<const prompt::ChatEncoding>> chat_encoding_of(
    const std::string& model_dir, const std::string& template_file,
    std::shared_ptr<const Tokenizer> tokenizer);

}  // namespace penstock
