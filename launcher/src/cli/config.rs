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

use words::{in_words, kind_of, number_or_text, text_of};

use super::contradiction::beside;
use super::error::{CliError, Expected, FilePlace, Origin, SettingError, expected, hint_for_type};
use super::option::{Kind, LaunchOption, find_option, options};
use super::settings::Setting;
use super::suggest::{nearest_of, option_for_foreign};
use rankrun_core::facts::Facts;
use rankrun_core::spec::CliFlavor;
use rankrun_core::spec::stop::GraceCause;
use rankrun_host::regular_file;

const PATH: Expected = Expected::new("the path of a file", "rankrun.toml");
/// More than any such file has.
const MOST_BYTES: u64 = 1 << 20;
/// A longer text is not a known key.
const LONGEST_KEY: usize = 60;
/// A longer value is named by its type.
const LONGEST_VALUE: usize = 40;
/// They ask for something else than the launch of one node.
const NOT_HERE: [&str; 8] =
    ["help", "print-completion", "version", "config", "hosts", "hostfile", "export", "ssh"];
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
const NODES: [(&str, &str); 14] = [
    ("nnodes", "nnodes"),
    ("node-rank", "node-rank"),
    ("backend", "rdzv-backend"),
    ("endpoint", "rdzv-endpoint"),
    ("id", "rdzv-id"),
    ("join-timeout", "join-timeout"),
    ("last-call", "last-call"),
    ("lease", "lease"),
    ("exclude", "exclude-node"),
    ("exclude-after", "exclude-node-after"),
    ("local-addr", "local-addr"),
    ("iface", "iface"),
    ("port-range", "port-range"),
    ("store-limit", "store-limit"),
];
/// Two names of one value.
const GRACES: [&str; 2] = ["grace", "shutdown-timeout"];
const GRACE_FOR: &str = "grace-for";
const TABLES: [&str; 4] = ["launch", "nodes", "restart", "stop"];
const RULE: [&str; 6] = ["exit", "signal", "cause", "rank", "node", "then"];

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
pub(super) fn read(named: Option<OsString>, facts: &Facts) -> Result<Config, CliError> {
    let Some(value) = named else { return Ok(Config::default()) };
    // An empty variable is none.
    if value.is_empty() {
        return Err(SettingError::unexpected(Origin::Option("config"), "", PATH).into());
    }
    let path = facts.absolute(Path::new(&value));
    let named = value.to_string_lossy();
    let bytes = facts.world().read_file(&path, MOST_BYTES).map_err(|error| {
        let hint = match regular_file::not_regular_cause(&error) {
            None => "name a file that can be read, in `--config` or `RANKRUN_CONFIG`, or leave both out",
            Some(cause) if cause.to_string().starts_with("a folder") => "name a file in the folder",
            Some(_) => "write it into a file, and name that: a pipe may be the input of the workers",
        };
        CliError::refused(format!("the configuration file `{named}` cannot be read: {error}"), hint)
    })?;
    std::str::from_utf8(&bytes)
        .map_err(|error| {
            let line = line_of(&bytes, error.valid_up_to());
            CliError::refused(format!("`{named}`, line {line}: this is not valid UTF-8"), "save it as UTF-8")
        })
        .and_then(|text| parse(&value, text))
}

fn parse(path: &OsStr, text: &str) -> Result<Config, CliError> {
    let path = path.to_string_lossy().into_owned();
    let mut reader = Reader { path, text, config: Config::default() };
    if let Some(at) = text.find('\0') {
        return Err(reader.nul_byte(at));
    }
    let error = match DeTable::parse(text) {
        Ok(document) => return reader.document(document.get_ref()).map(|()| reader.config),
        Err(error) => error,
    };
    let at = error.span().map(|span| span.start);
    let place = match at {
        Some(at) => format!("`{}`, line {}", reader.path, reader.line(at)),
        None => format!("the configuration file `{}`", reader.path),
    };
    let message = error.message().replace('\n', ", ");
    let key = at.and_then(|at| key_near(text, at)).map_or_else(String::new, |key| format!("`{key}`: "));
    Err(match message {
        message if message.contains("recurs") => CliError::refused(
            format!("{place}: tables or lists are nested too deeply"),
            "write `key = value` below `[launch]`: no option needs more levels",
        ),
        message if message.contains("duplicate key") => {
            CliError::refused(format!("{place}: {key}{message}"), "drop one of them")
        }
        message => CliError::refused(
            format!("{place}: {key}{message}"),
            "the file is TOML: `key = value` below `[launch]`, texts in quotes",
        ),
    })
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

/// The table and the key in it that have what an option of this name or a key of another table says.
fn place_of(name: &str) -> Option<(&'static str, &'static str)> {
    let tables = [("stop", &STOP[..]), ("restart", &RESTART), ("nodes", &NODES)];
    let keys = tables
        .into_iter()
        .flat_map(|(table, keys)| keys.iter().map(move |(short, long)| (table, *short, *long)));
    let keys = keys.chain([("restart", "rules", "restart-rules"), ("stop", GRACE_FOR, GRACE_FOR)]);
    let of_launch = || {
        find_option(name).filter(|_| !NOT_HERE.contains(&name)).map(|option| ("launch", option.long_name()))
    };
    let mut found = keys
        .filter(|(_, short, long)| [*short, *long].contains(&name))
        .map(|(table, short, _)| (table, short));
    found.next().or_else(of_launch)
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

    fn nul_byte(&self, at: usize) -> CliError {
        CliError::refused(
            format!("`{}`, line {}: there is a NUL byte in the text", self.path, self.line(at)),
            "remove it; a file in UTF-16 is saved again as UTF-8",
        )
    }

    /// Another type is expected. A value of one line is shown as it is written.
    fn wrong_type(
        &self,
        (key, at): (&str, usize),
        value: &Spanned<DeValue<'_>>,
        expected: &str,
        hint: impl FnOnce(&Origin, &str) -> String,
    ) -> CliError {
        let origin = self.origin(key, at);
        let source = self.text.get(value.span()).unwrap_or_default();
        let hint = hint(&origin, source);
        let is_shown = !source.contains('\n') && source.len() <= LONGEST_VALUE;
        match kind_of(value.get_ref()).filter(|_| !is_shown) {
            Some(kind) => {
                SettingError::of_origin(origin, format!("is {kind}, which is not {expected}"), hint)
            }
            None => SettingError::of_value(origin, source, format!("which is not {expected}"), hint),
        }
        .into()
    }

    /// The same thing is said twice.
    fn twice(&self, key: &str, at: usize, before: &Origin) -> CliError {
        let problem = format!("says what {} says", beside(before));
        SettingError::of_origin(self.origin(key, at), problem, "drop one of them").into()
    }

    fn origin(&self, key: &str, at: usize) -> Origin {
        let place = FilePlace { path: self.path.clone(), line: self.line(at), key: key.to_owned() };
        Origin::File(Box::new(place))
    }

    fn document(&mut self, document: &DeTable<'_>) -> Result<(), CliError> {
        for (name, value) in document {
            let at = name.span().start;
            let known = TABLES.contains(&name.get_ref().as_ref());
            let table = match value.get_ref() {
                DeValue::Table(table) if known => table,
                _ if known => {
                    let hint = |_: &_, _: &_| format!("write `[{}]`, and keys below it", name.get_ref());
                    return Err(self.wrong_type((name.get_ref(), at), value, "a table", hint));
                }
                _ => return Err(self.unknown("", name, &TABLES)),
            };
            // What stands first in the file is reported first.
            let mut entries: Vec<_> = table.iter().collect();
            entries.sort_by_key(|(key, _)| key.span().start);
            for entry in entries {
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

    fn unknown(&self, table: &str, key: &Spanned<Cow<'_, str>>, known: &[&str]) -> CliError {
        let written = key.get_ref().replace('_', "-");
        let of_option = || if table == "launch" { option_for_foreign(&written) } else { None };
        let nearest = nearest_of(&written, known.iter().copied()).or_else(of_option);
        let hint = match (place_of(&written), nearest) {
            (Some((place, name)), _) if name == written => format!("it belongs in `[{place}]`"),
            (Some((place, name)), _) => format!("write `{name}` in `[{place}]`"),
            (_, Some(nearest)) => format!("did you mean `{nearest}`?"),
            (_, None) if table.is_empty() => {
                "the tables are `[launch]`, `[nodes]`, `[restart]` and `[stop]`; an option stands below `[launch]`"
                    .to_owned()
            }
            (_, None) if known.len() < 16 => format!("there are {}", known.join(", ")),
            (_, None) => "keys are the long names of options, as in `rankrun --help`, without dashes in front"
                .to_owned(),
        };
        let name =
            if table.is_empty() { key.get_ref().to_string() } else { format!("{table}.{}", key.get_ref()) };
        let origin = self.origin(&name, key.span().start);
        SettingError::of_origin(origin, "is not a known key", hint).into()
    }

    fn launch(&mut self, entry: Entry<'_>) -> Result<(), CliError> {
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
    ) -> Result<(), CliError> {
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

    fn value(&mut self, table: &str, row: &'static Arg, (key, value): Entry<'_>) -> Result<(), CliError> {
        let (name, at) = (format!("{table}.{}", key.get_ref()), key.span().start);
        // Two names of one value.
        let twins = if GRACES.contains(&row.long_name()) { &GRACES[..] } else { &[row.long_name()] };
        let twin = self.config.values.iter().find(|(known, _)| twins.contains(&known.long_name()));
        if let Some((_, before)) = twin {
            return Err(self.twice(&name, at, &before.origin));
        }
        let Some(text) = in_words(row, value.get_ref()) else {
            let hint = |origin: &_, source: &_| hint_for_type(row, origin, source);
            return Err(self.wrong_type((&name, at), value, &expected(row.kind()), hint));
        };
        if text.contains('\0') {
            return Err(self.nul_byte(at));
        }
        if let Kind::Choice(choices) = row.kind()
            && !choices.contains(&text)
        {
            return Err(SettingError::not_of_type(row, self.origin(&name, at), text).into());
        }
        let setting = Setting { origin: self.origin(&name, at), value: text.into() };
        self.config.values.push((row, setting));
        Ok(())
    }

    fn graces(&mut self, (key, value): Entry<'_>) -> Result<(), CliError> {
        let name = format!("stop.{}", key.get_ref());
        let DeValue::Table(table) = value.get_ref() else {
            let hint =
                |_: &_, _: &_| "write `[stop.grace-for]`, and a grace for each cause below it".to_owned();
            return Err(self.wrong_type((&name, key.span().start), value, "a table", hint));
        };
        for (key, value) in table {
            let (said, at) = (key.get_ref().replace('_', "-"), key.span().start);
            let Some(cause) = GraceCause::ALL.into_iter().find(|cause| cause.key() == said) else {
                return Err(self.unknown(&name, key, &GraceCause::ALL.map(GraceCause::key)));
            };
            let name = format!("{name}.{}", key.get_ref());
            if let Some((_, before)) = self.config.graces.iter().find(|(known, _)| *known == cause) {
                return Err(self.twice(&name, at, &before.origin));
            }
            let Some(text) = text_of(value.get_ref()) else {
                let hint = |_: &_, _: &_| "write seconds, or a time in quotes, as in `\"1m\"`".to_owned();
                return Err(self.wrong_type((&name, at), value, &expected(Kind::Text), hint));
            };
            self.config.graces.push((cause, Setting { origin: self.origin(&name, at), value: text }));
        }
        Ok(())
    }

    fn rules(&mut self, (key, value): Entry<'_>) -> Result<(), CliError> {
        const NAME: &str = "restart.rules";
        let wrong = |reader: &Self, at, value| {
            let hint = |_: &_, _: &_| "write tables, as in `[[restart.rules]]`".to_owned();
            reader.wrong_type((NAME, at), value, "a list of tables", hint)
        };
        let at = key.span().start;
        if let Some(before) = find_option("restart-rules").and_then(|option| self.config.find(option)) {
            return Err(self.twice(NAME, at, &before.origin));
        }
        let DeValue::Array(rules) = value.get_ref() else { return Err(wrong(self, at, value)) };
        for rule in rules {
            let DeValue::Table(table) = rule.get_ref() else {
                return Err(wrong(self, rule.span().start, rule));
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
    fn rule(&self, table: &DeTable<'_>) -> Result<String, CliError> {
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
                ("then" | "cause", DeValue::String(text)) => Some(text.to_string()),
                ("then" | "cause", _) => None,
                (_, value) => number_or_text(value),
            };
            let Some(text) = text else {
                let expected = match name {
                    "exit" => "a number, a range such as \"10-19\", or a list of those",
                    "signal" => "a number or a name",
                    "then" | "cause" => "a text",
                    _ => "a whole number",
                };
                let name = format!("restart.rules.{name}");
                let hint = |_: &_, _: &_| format!("write {expected}");
                return Err(self.wrong_type((&name, key.span().start), value, expected, hint));
            };
            match name {
                "then" => then = Some(text),
                "cause" => conditions.push(text),
                _ => conditions.push(format!("{name}={text}")),
            }
        }
        let conditions = if conditions.is_empty() { "any".to_owned() } else { conditions.join("+") };
        Ok(then.map_or_else(|| conditions.clone(), |then| format!("{conditions}:{then}")))
    }
}

#[cfg(test)]
mod tests;
