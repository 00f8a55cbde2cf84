//! `--config PATH`: settings from a file, below the command line and the variables.
//!
//! A file is read only where a user names it: one that merely lies in the working folder must not change what runs.
//! `[launch]` takes every option by its long name, `[nodes]`, `[restart]` and `[stop]` are shorter names for theirs,
//! each `[[restart.rules]]` is one rule, and `[stop.grace-for]` has a grace for each cause of a stop. What is known of
//! a value is checked here, with its line; what it means is decided where the option's is.

mod words;

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::Arg;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use words::{expected, in_words, kind_of, number_or_text, text_of};

use super::error::{CliError, ConfigError, ConfigProblem, FilePlace, Origin};
use super::option::{Kind, LaunchOption, find_option, options};
use super::settings::Setting;
use super::suggest::{nearest_of, option_for_foreign};
use rankrun_core::facts::Facts;
use rankrun_core::spec::CliFlavor;
use rankrun_core::spec::stop::GraceCause;
use rankrun_host::regular_file;

/// More than any such file has.
const MOST_BYTES: u64 = 1 << 20;
/// What is longer is no key of ours.
const LONGEST_KEY: usize = 60;
/// They ask for something else than a launch.
const NOT_HERE: [&str; 4] = ["help", "print-completion", "version", "config"];
const RESTART: [(&str, &str); 9] = [
    ("max-restarts", "max-restarts"),
    ("window", "restart-window"),
    ("delay", "restart-delay"),
    ("factor", "restart-factor"),
    ("max-delay", "restart-max-delay"),
    ("jitter", "restart-jitter"),
    ("reset-after", "restart-reset"),
    ("progress-dir", "progress-dir"),
    ("progress-restarts", "progress-restarts"),
];
const STOP: [(&str, &str); 2] = [("grace", "grace"), ("leftover", "leftover-grace")];
const NODES: [(&str, &str); 12] = [
    ("nnodes", "nnodes"),
    ("node-rank", "node-rank"),
    ("backend", "rdzv-backend"),
    ("endpoint", "rdzv-endpoint"),
    ("id", "rdzv-id"),
    ("join-timeout", "join-timeout"),
    ("last-call", "last-call"),
    ("lease", "lease"),
    ("local-addr", "local-addr"),
    ("iface", "iface"),
    ("port-range", "port-range"),
    ("store-limit", "store-limit"),
];
/// Two names of one value.
const GRACES: [&str; 2] = ["grace", "shutdown-timeout"];
const GRACE_FOR: &str = "grace-for";
const TABLES: [&str; 4] = ["launch", "nodes", "restart", "stop"];
const RULE: [&str; 5] = ["exit", "signal", "rank", "node", "then"];

/// What a file says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Config {
    values: Vec<(&'static Arg, Setting<OsString>)>,
    rules: Vec<RuleText>,
    graces: Vec<(GraceCause, Setting<String>)>,
}

/// One of the rules about restarts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RuleText {
    /// As `--restart-rules` has it.
    pub(super) text: Setting<String>,
    /// Where its conditions and its action stand, by their names.
    pub(super) keys: Vec<(String, Origin)>,
}

impl Config {
    /// The option's value, as it would stand on the command line.
    pub(super) fn find(&self, row: &Arg) -> Option<Setting<OsString>> {
        self.values.iter().find(|(known, _)| *known == row).map(|(_, setting)| setting.clone())
    }

    /// The rules about restarts.
    pub(super) fn rules(&self) -> &[RuleText] {
        &self.rules
    }

    /// The graces of single causes, as `--grace` has its own.
    pub(super) fn graces(&self) -> &[(GraceCause, Setting<String>)] {
        &self.graces
    }
}

/// The file that was named, if one was.
///
/// # Errors
/// A file that cannot be read, or has an unknown key or value.
pub(super) fn read(path: Option<Setting<OsString>>, facts: &Facts) -> Result<Config, CliError> {
    let Some(Setting { value, .. }) = path else { return Ok(Config::default()) };
    let fail = |problem| ConfigError { path: value.to_string_lossy().into_owned(), at: None, problem };
    let path = facts.absolute(Path::new(&value));
    let bytes = facts.world().read_file(&path, MOST_BYTES).map_err(|error| {
        let words = error.to_string();
        fail(match regular_file::not_regular_cause(&error) {
            Some(_) => ConfigProblem::NotRegular(words),
            None => ConfigProblem::Unreadable(words),
        })
    })?;
    match std::str::from_utf8(&bytes) {
        Ok(text) => Ok(parse(&value, text)?),
        Err(error) => {
            let at = Some((line_of(&bytes, error.valid_up_to()), String::new()));
            Err(ConfigError { at, ..fail(ConfigProblem::NotUnicode) }.into())
        }
    }
}

fn parse(path: &OsStr, text: &str) -> Result<Config, ConfigError> {
    let path = path.to_string_lossy().into_owned();
    let mut reader = Reader { path, text, config: Config::default() };
    if let Some(at) = text.find('\0') {
        return Err(reader.error("", at, ConfigProblem::NulByte));
    }
    match DeTable::parse(text) {
        Ok(document) => reader.document(document.get_ref())?,
        Err(error) => {
            let at = error.span().map(|span| (reader.line(span.start), String::new()));
            if error.message().contains("recurs") {
                return Err(ConfigError { path: reader.path, at, problem: ConfigProblem::TooDeep });
            }
            let key = error.span().and_then(|span| key_near(text, span.start));
            let what = error.message().replace('\n', ", ");
            // Without a place, as with an absurd depth.
            let what = if at.is_none() { format!("is no TOML: {what}") } else { what };
            let problem = ConfigProblem::Syntax { key, what };
            return Err(ConfigError { path: reader.path, at, problem });
        }
    }
    Ok(reader.config)
}

/// A key, and what stands behind it.
type Entry<'a> = (&'a Spanned<Cow<'a, str>>, &'a Spanned<DeValue<'a>>);

/// Lines count from 1.
fn line_of(text: &[u8], at: usize) -> usize {
    let before = text.get(..at).unwrap_or_default();
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}

/// The key or table of the line in which something is wrong, as far as there is one.
fn key_near(text: &str, at: usize) -> Option<String> {
    let start = text.get(..at)?.rfind('\n').map_or(0, |before| before + 1);
    let line = text.get(start..)?.lines().next()?;
    let key = line.split(['=', '#']).next()?.trim().trim_matches(['[', ']']).trim();
    let is_key = |letter: char| letter.is_ascii_alphanumeric() || "_-.".contains(letter);
    (!key.is_empty() && key.len() <= LONGEST_KEY && key.chars().all(is_key)).then(|| key.to_owned())
}

struct Reader<'a> {
    path: String,
    text: &'a str,
    config: Config,
}

impl Reader<'_> {
    fn line(&self, at: usize) -> usize {
        line_of(self.text.as_bytes(), at)
    }

    fn error(&self, key: &str, at: usize, problem: ConfigProblem) -> ConfigError {
        let at = Some((self.line(at), key.to_owned()));
        ConfigError { path: self.path.clone(), at, problem }
    }

    fn origin(&self, key: &str, at: usize) -> Origin {
        let place = FilePlace { path: self.path.clone(), line: self.line(at), key: key.to_owned() };
        Origin::File(Box::new(place))
    }

    fn document(&mut self, document: &DeTable<'_>) -> Result<(), ConfigError> {
        for (name, value) in document {
            let at = name.span().start;
            let known = TABLES.contains(&name.get_ref().as_ref());
            let table = match value.get_ref() {
                DeValue::Table(table) if known => table,
                _ if known => {
                    let problem = ConfigProblem::WrongType { is: kind_of(value), expected: "a table" };
                    return Err(self.error(name.get_ref(), at, problem));
                }
                _ => return Err(self.unknown("", name, &TABLES)),
            };
            for entry in table {
                match name.get_ref().as_ref() {
                    "launch" => self.launch(entry)?,
                    "restart" if entry.0.get_ref() == "rules" => self.rules(entry)?,
                    "restart" => self.short("restart", &RESTART, entry)?,
                    "nodes" => self.short("nodes", &NODES, entry)?,
                    _ if entry.0.get_ref().replace('_', "-") == GRACE_FOR => self.graces(entry)?,
                    _ => self.short("stop", &STOP, entry)?,
                }
            }
        }
        Ok(())
    }

    fn unknown(&self, table: &str, key: &Spanned<Cow<'_, str>>, known: &[&str]) -> ConfigError {
        let written = key.get_ref().replace('_', "-");
        let of_option = || if table == "launch" { option_for_foreign(&written) } else { None };
        let nearest = nearest_of(&written, known.iter().copied()).or_else(of_option).map(str::to_owned);
        let known =
            if known.len() < 16 { known.iter().map(|key| (*key).to_owned()).collect() } else { Vec::new() };
        let name =
            if table.is_empty() { key.get_ref().to_string() } else { format!("{table}.{}", key.get_ref()) };
        let problem = ConfigProblem::UnknownKey { nearest, is_table: table.is_empty(), known };
        self.error(&name, key.span().start, problem)
    }

    fn launch(&mut self, entry: Entry<'_>) -> Result<(), ConfigError> {
        let rows = || options(CliFlavor::Rankrun).filter(|option| !NOT_HERE.contains(&option.long_name()));
        let long = entry.0.get_ref().replace('_', "-");
        match rows().find(|row| row.long_name() == long) {
            Some(row) => self.value("launch", row, entry),
            None => {
                Err(self.unknown("launch", entry.0, &rows().map(LaunchOption::long_name).collect::<Vec<_>>()))
            }
        }
    }

    fn short(
        &mut self,
        table: &str,
        options: &[(&'static str, &'static str)],
        entry: Entry<'_>,
    ) -> Result<(), ConfigError> {
        let name = entry.0.get_ref().replace('_', "-");
        let option = options.iter().find(|(short, _)| *short == name).and_then(|(_, long)| find_option(long));
        match option {
            Some(option) => self.value(table, option, entry),
            None => {
                let mut known: Vec<&str> = options.iter().map(|(short, _)| *short).collect();
                match table {
                    "restart" => known.push("rules"),
                    "stop" => known.push(GRACE_FOR),
                    _ => {}
                }
                Err(self.unknown(table, entry.0, &known))
            }
        }
    }

    fn value(&mut self, table: &str, row: &'static Arg, (key, value): Entry<'_>) -> Result<(), ConfigError> {
        let (name, at) = (format!("{table}.{}", key.get_ref()), key.span().start);
        // Two names of one value.
        let twins = if GRACES.contains(&row.long_name()) { &GRACES[..] } else { &[row.long_name()] };
        let twin = self.config.values.iter().find(|(known, _)| twins.contains(&known.long_name()));
        if let Some((_, Setting { origin: Origin::File(place), .. })) = twin {
            let problem = ConfigProblem::Twice { line: place.line, key: place.key.clone() };
            return Err(self.error(&name, at, problem));
        }
        let Some(text) = in_words(row, value.get_ref()) else {
            let problem = ConfigProblem::WrongType { is: kind_of(value), expected: expected(row) };
            return Err(self.error(&name, at, problem));
        };
        if text.contains('\0') {
            return Err(self.error("", at, ConfigProblem::NulByte));
        }
        if let Kind::Choice(choices) = row.kind()
            && !choices.contains(&text)
        {
            return Err(self.error(&name, at, ConfigProblem::NoChoice { value: text, choices }));
        }
        let setting = Setting { origin: self.origin(&name, at), value: text.into() };
        self.config.values.push((row, setting));
        Ok(())
    }

    fn graces(&mut self, (key, value): Entry<'_>) -> Result<(), ConfigError> {
        let name = format!("stop.{}", key.get_ref());
        let DeValue::Table(table) = value.get_ref() else {
            let expected = "a table, as in `[stop.grace-for]`";
            let problem = ConfigProblem::WrongType { is: kind_of(value), expected };
            return Err(self.error(&name, key.span().start, problem));
        };
        for (key, value) in table {
            let (said, at) = (key.get_ref().replace('_', "-"), key.span().start);
            let Some(cause) = GraceCause::ALL.into_iter().find(|cause| cause.key() == said) else {
                return Err(self.unknown(&name, key, &GraceCause::ALL.map(GraceCause::key)));
            };
            let name = format!("{name}.{}", key.get_ref());
            if let Some((_, Setting { origin: Origin::File(place), .. })) =
                self.config.graces.iter().find(|(known, _)| *known == cause)
            {
                let (line, key) = (place.line, place.key.clone());
                return Err(self.error(&name, at, ConfigProblem::Twice { line, key }));
            }
            let Some(text) = text_of(value.get_ref()) else {
                let problem = ConfigProblem::WrongType { is: kind_of(value), expected: "a text or a number" };
                return Err(self.error(&name, at, problem));
            };
            self.config.graces.push((cause, Setting { origin: self.origin(&name, at), value: text }));
        }
        Ok(())
    }

    fn rules(&mut self, (key, value): Entry<'_>) -> Result<(), ConfigError> {
        const NAME: &str = "restart.rules";
        let wrong = |value| ConfigProblem::WrongType {
            is: kind_of(value),
            expected: "tables, as in `[[restart.rules]]`",
        };
        if let Some(Setting { origin: Origin::File(place), .. }) =
            find_option("restart-rules").and_then(|option| self.config.find(option))
        {
            let FilePlace { line, key: before, .. } = *place;
            return Err(self.error(NAME, key.span().start, ConfigProblem::Twice { line, key: before }));
        }
        let DeValue::Array(rules) = value.get_ref() else {
            return Err(self.error(NAME, key.span().start, wrong(value)));
        };
        for rule in rules {
            let DeValue::Table(table) = rule.get_ref() else {
                return Err(self.error(NAME, rule.span().start, wrong(rule)));
            };
            let value = self.rule(table)?;
            let text = Setting { origin: self.origin(NAME, rule.span().start), value };
            let origin =
                |key: &Spanned<_>| self.origin(&format!("{NAME}.{}", key.get_ref()), key.span().start);
            let keys = table.keys().map(|key| (key.get_ref().to_string(), origin(key))).collect();
            self.config.rules.push(RuleText { text, keys });
        }
        Ok(())
    }

    /// The rule as `--restart-rules` has it.
    fn rule(&self, table: &DeTable<'_>) -> Result<String, ConfigError> {
        let (mut conditions, mut then) = (Vec::new(), None);
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            if !RULE.contains(&name) {
                return Err(self.unknown("restart.rules", key, &RULE));
            }
            let text = match (name, value.get_ref()) {
                ("exit", DeValue::Array(codes)) => codes
                    .iter()
                    .map(|code| number_or_text(code.get_ref()))
                    .collect::<Option<Vec<_>>>()
                    .map(|codes| codes.join("/")),
                ("then", DeValue::String(text)) => Some(text.to_string()),
                ("then", _) => None,
                (_, value) => number_or_text(value),
            };
            let Some(text) = text else {
                let expected = match name {
                    "exit" => "a number, a range such as \"10-19\", or a list of those",
                    "signal" => "a number or a name",
                    "then" => "a text",
                    _ => "a number",
                };
                let problem = ConfigProblem::WrongType { is: kind_of(value), expected };
                return Err(self.error(&format!("restart.rules.{name}"), key.span().start, problem));
            };
            if name == "then" { then = Some(text) } else { conditions.push(format!("{name}={text}")) }
        }
        let conditions = if conditions.is_empty() { "any".to_owned() } else { conditions.join("+") };
        Ok(then.map_or_else(|| conditions.clone(), |then| format!("{conditions}:{then}")))
    }
}

#[cfg(test)]
mod tests;
