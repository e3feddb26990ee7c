// JSON Schema (draft 2020-12, the part that strict output uses) to a grammar of its instances.
//
// Supported: type (one or a list), properties, required, additionalProperties, items, prefixItems,
// minItems, maxItems, enum, const, anyOf, allOf, oneOf when its branches evidently exclude one
// another, $ref into the same document ("#", "#/..."), recursion, pattern, format, minLength,
// maxLength, minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf, and true and false.
// Annotations and unknown words are ignored. Every other word of the standard is refused by name,
// with its path.
//
// What a document looks like: members in the order in which `properties` declares them, required
// ones that aren't declared after them, additional ones last; keys, enum, const and strings with a
// pattern or format in one spelling (json_escaped()); numbers as common_rules.h says, those with
// bounds without exponent; integers without fraction. White space as Whitespace says.
//
// Errors: kInvalidArgument for what isn't a schema, kUnsupported for what is refused; `field` is
// the path
// ("#/properties/a/not"), the message says it too. Concurrency: pure. Source:
// docs/design/0011-structured-output.md; json-schema.org/draft/2020-12.
#pragma once

#include <memory>
#include <string_view>

#include "base/result.h"
#include "core/grammar/common_rules.h"
#include "core/grammar/grammar.h"
#include "core/grammar/limits.h"

namespace penstock::grammar {

Result<std::shared_ptr<const Grammar>> json_schema_grammar(
    std::string_view schema, Whitespace whitespace = Whitespace::kLimited,
    const GrammarLimits& limits = {});
// Any JSON object.
Result<std::shared_ptr<const Grammar>> json_object_grammar(
    Whitespace whitespace = Whitespace::kLimited, const GrammarLimits& limits = {});

// The same as a part of a grammar under construction: the instances of the schema at `pointer` (""
// or
// "/properties/a") of the document.
Status add_json_schema(CommonRules& rules, std::string_view schema, std::string_view pointer,
                       const GrammarLimits& limits, GrammarBuilder::State from,
                       GrammarBuilder::State to);

}  // namespace penstock::grammar
