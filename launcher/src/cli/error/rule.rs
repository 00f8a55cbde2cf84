//! What is wrong with a rule about restarts.

use std::borrow::Cow;

use super::Origin;

/// What is wrong with a rule about restarts, and the one thing to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct RuleProblem {
    /// The condition or action with the problem; `None` for the rule as a whole.
    pub(in crate::cli) key: Option<Cow<'static, str>>,
    pub(in crate::cli) text: Cow<'static, str>,
    hint: &'static str,
}

const ACTIONS: &str =
    "write `CONDITION:ACTION`; the actions are restart, fail, succeed, requeue and no-requeue";
const CONDITIONS: &str = "conditions are `exit=3`, `exit=10-19/42`, `signal=KILL`, `hang`, `desync`, `oom`, `rank=0`, `node=0` and `any`, with \
     `+` between";

/// The same in a file, where a rule is a table.
const ACTIONS_IN_FILE: &str =
    "write `then = \"fail\"`; the actions are restart, fail, succeed, requeue and no-requeue";

impl RuleProblem {
    /// The one thing to do, for a rule of an option or of a file.
    pub(in crate::cli) fn hint(&self, origin: &Origin) -> &'static str {
        match origin {
            Origin::File(_) if self.hint == ACTIONS => ACTIONS_IN_FILE,
            _ => self.hint,
        }
    }

    fn of_key(
        key: impl Into<Cow<'static, str>>,
        text: impl Into<Cow<'static, str>>,
        hint: &'static str,
    ) -> Self {
        Self { key: Some(key.into()), text: text.into(), hint }
    }

    fn of_rule(text: impl Into<Cow<'static, str>>, hint: &'static str) -> Self {
        Self { key: None, text: text.into(), hint }
    }

    pub(in crate::cli) fn without_action() -> Self {
        Self::of_rule("which does not say what follows", ACTIONS)
    }

    pub(in crate::cli) fn unknown_action(word: &str) -> Self {
        Self::of_key("then", format!("in which `{word}` is not an action"), ACTIONS)
    }

    pub(in crate::cli) fn unknown_condition(word: &str) -> Self {
        Self::of_rule(format!("in which `{word}` is not a condition"), CONDITIONS)
    }

    pub(in crate::cli) fn unreadable_condition(condition: &str) -> Self {
        let key = condition.split('=').next().unwrap_or_default().to_owned();
        Self::of_key(key, format!("in which `{condition}` cannot be read"), CONDITIONS)
    }

    pub(in crate::cli) fn repeated_condition(name: &'static str) -> Self {
        Self::of_key(name, format!("which names `{name}` twice"), "write one rule for each")
    }

    pub(in crate::cli) fn without_hang_timeout() -> Self {
        let text = "but without `--hang-timeout` a job that makes no progress does not fail";
        Self::of_key("cause", text, "set `--hang-timeout`, as in `--hang-timeout 5m`")
    }

    pub(in crate::cli) fn without_restarts() -> Self {
        let text = "but without `--max-restarts` above 0 nothing restarts";
        Self::of_key("then", text, "give `--max-restarts`, or leave the rule out")
    }

    /// The rule can never match, for this reason.
    pub(in crate::cli) fn never_matches(key: &'static str, reason: impl AsRef<str>) -> Self {
        let text = format!("which can never match: {}", reason.as_ref());
        Self::of_key(key, text, "correct it, or leave it out")
    }

    /// Earlier rules fit all that it fits.
    pub(in crate::cli) fn covered_by(rules: &str) -> Self {
        let text = format!("which can never match: {rules} before it takes all it would");
        Self::of_rule(text, "the first rule that fits decides: put the special one first")
    }
}
