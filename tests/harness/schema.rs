//! Checks a JSON document against a schema, as far as the schemas of this project go: `type`, `enum`, `required`,
//! `properties`, `additionalProperties: false`, `items` and `$ref` to `#/$defs/NAME`.

use serde_json::{Map, Value};

/// The words of a schema that say nothing about a document.
const ANNOTATIONS: [&str; 4] = ["$schema", "$defs", "title", "description"];

/// What is wrong with the document: each place with the problem; empty if it fits.
///
/// # Panics
/// When the schema has a word that is not known here.
#[must_use]
pub fn schema_problems(schema: &Value, document: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    Checker { root: schema }.check(schema, document, "$", &mut problems);
    problems
}

struct Checker<'a> {
    root: &'a Value,
}

impl Checker<'_> {
    fn check(&self, schema: &Value, value: &Value, place: &str, problems: &mut Vec<String>) {
        let schema = schema.as_object().expect("a schema is an object");
        for (word, rule) in schema {
            match word.as_str() {
                "$ref" => self.check(self.definition(rule), value, place, problems),
                "type" if !has_type(rule, value) => problems.push(format!("{place}: not of type {rule}")),
                "enum" if !list(rule).contains(value) => {
                    problems.push(format!("{place}: {value} not in {rule}"))
                }
                "required" => {
                    let missing =
                        list(rule).iter().filter_map(Value::as_str).filter(|name| value.get(name).is_none());
                    problems.extend(missing.map(|name| format!("{place}: no `{name}`")));
                }
                "properties" | "additionalProperties" => {}
                "items" => {
                    for (at, item) in value.as_array().into_iter().flatten().enumerate() {
                        self.check(rule, item, &format!("{place}[{at}]"), problems);
                    }
                }
                "type" | "enum" => {}
                word => assert!(ANNOTATIONS.contains(&word), "`{word}` of the schema is not known here"),
            }
        }
        let Some(fields) = value.as_object() else { return };
        let none = Map::new();
        let known = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
        let is_closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
        for (name, field) in fields {
            match known.get(name) {
                Some(rule) => self.check(rule, field, &format!("{place}.{name}"), problems),
                None if is_closed => problems.push(format!("{place}: unknown `{name}`")),
                None => {}
            }
        }
    }

    fn definition(&self, reference: &Value) -> &Value {
        let name = reference.as_str().and_then(|text| text.strip_prefix("#/$defs/"));
        let found = name.and_then(|name| self.root.get("$defs")?.get(name));
        found.unwrap_or_else(|| panic!("{reference} of the schema leads to nothing"))
    }
}

fn list(rule: &Value) -> &[Value] {
    rule.as_array().map_or(&[], Vec::as_slice)
}

fn has_type(rule: &Value, value: &Value) -> bool {
    match rule.as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some("number") => value.is_number(),
        _ => panic!("the type {rule} of the schema is not known here"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({
            "type": "object", "required": ["kind"], "additionalProperties": false,
            "properties": {
                "kind": {"type": "string", "enum": ["a", "b"]},
                "list": {"type": "array", "items": {"$ref": "#/$defs/point"}},
                "open": {"type": "object"}, "is_set": {"type": "boolean"}, "ratio": {"type": "number"},
            },
            "$defs": {"point": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}},
        })
    }

    #[test]
    fn fitting_document_has_no_problem() {
        let document = json!({"kind": "a", "list": [{"x": 1}, {"x": -2}], "open": {"any": 1}, "ratio": 1, "is_set": true});
        assert_eq!(schema_problems(&schema(), &document), [""; 0]);
    }

    #[test]
    fn wrong_document_has_each_problem_with_its_place() {
        for (document, problem) in [
            (json!([]), "$: not of type \"object\""),
            (json!({}), "$: no `kind`"),
            (json!({"kind": "c"}), "$.kind: \"c\" not in [\"a\",\"b\"]"),
            (json!({"kind": null}), "$.kind: not of type \"string\""),
            (json!({"kind": "a", "more": 1}), "$: unknown `more`"),
            (json!({"kind": "a", "list": [{"x": 1}, {}]}), "$.list[1]: no `x`"),
            (json!({"kind": "a", "list": [{"x": 1.5}]}), "$.list[0].x: not of type \"integer\""),
            (json!({"kind": "a", "list": {}}), "$.list: not of type \"array\""),
            (json!({"kind": "a", "is_set": 1}), "$.is_set: not of type \"boolean\""),
            (json!({"kind": "a", "ratio": "1"}), "$.ratio: not of type \"number\""),
        ] {
            let problems = schema_problems(&schema(), &document);
            assert!(problems.iter().any(|found| found == problem), "{document}: {problems:?}");
        }
    }

    #[test]
    #[should_panic(expected = "`minimum` of the schema is not known here")]
    fn unknown_word_of_schema_fails() {
        let _ = schema_problems(&json!({"minimum": 1}), &json!(1));
    }
}
