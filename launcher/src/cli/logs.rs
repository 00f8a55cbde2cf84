//! Where the workers' output goes: `--log-dir`, `--redirects`, `--tee`, and what the console shows.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::error::hint_for_streams;
use super::error::{CliError, Expected, Origin, SettingError};
use super::option::OptionValue;
use super::python_text::parse_int;
use super::resolve::refused;
use super::settings::{Setting, Settings};
use rankrun_contract::rank::{LocalRank, LocalWorldSize};
use rankrun_core::facts::{Facts, FileKind, Permission};
use rankrun_core::notice::{IgnoredBecause, Notice};
use rankrun_core::spec::{CliFlavor, LineFilters, LogDir, LogSpec, StreamMap, Streams};
use rankrun_host::logs::error_folder::temporary_folders;

const LOCAL_RANKS: Expected = Expected::new("a list of local ranks, such as `0,2`", "0,2");
const STREAMS: Expected =
    Expected::new("0, 1, 2 or 3, or a list such as `0:3,12:1`", "3").advised(hint_for_streams);
const STREAMS_OF_TORCHRUN: Expected =
    Expected::new("0, 1, 2 or 3, or a list such as `0:3,1:2` with ranks of one digit", "3")
        .advised(hint_for_streams);

/// torch's default for the prefix template.
const PREFIX_VARIABLE: &str = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE";

/// The log tree, which streams go to it, and what the console shows.
///
/// # Errors
/// A text that is not a stream map or a list of ranks, or not a folder where one is needed.
pub(super) fn resolve_logs(
    settings: &Settings<'_>,
    workers: LocalWorldSize,
    notices: &mut Vec<Notice>,
) -> Result<LogSpec, CliError> {
    let redirects = stream_map(settings, &settings.args.torchrun.redirects)?;
    let tee = stream_map(settings, &settings.args.torchrun.tee)?;
    let duplicates = LineFilters {
        stdout: duplicate_filters(&settings.args.torchrun.duplicate_stdout_filters),
        stderr: duplicate_filters(&settings.args.torchrun.duplicate_stderr_filters),
    };
    let wants_logs =
        names_a_stream(&redirects) || names_a_stream(&tee) || duplicates != LineFilters::default();
    let dir = log_dir(settings, wants_logs);
    let mut console = console_ranks(settings)?;
    let prefix = prefix_template(settings)?;
    if dir == LogDir::Off {
        refuse_duplicates(settings)?;
        if settings.cli_flavor == CliFlavor::Torchrun {
            let silenced = console.take().is_some();
            let given = [names_a_stream(&redirects), names_a_stream(&tee), silenced];
            add_ignored_log_options(settings, given, notices);
        }
    }
    let logs = LogSpec { dir, redirects, tee, console, prefix, duplicates };
    notices.extend(missing_rank_notices(settings, &logs, workers));
    Ok(logs)
}

/// A warning for each list of ranks that names one above the last; torchrun says nothing.
fn missing_rank_notices(settings: &Settings<'_>, logs: &LogSpec, workers: LocalWorldSize) -> Vec<Notice> {
    if settings.cli_flavor == CliFlavor::Torchrun {
        return Vec::new();
    }
    let is_missing = |rank: &LocalRank| rank.0 >= workers.get();
    let names_missing = |map: &StreamMap| match map {
        StreamMap::All(_) => false,
        StreamMap::Ranks(ranks) => ranks.iter().any(|(rank, _)| is_missing(rank)),
    };
    let console = logs.console.as_ref();
    let is_silent = console.is_some_and(|ranks| ranks.iter().all(is_missing));
    let effect = if is_silent { "the console shows no output" } else { "higher ranks have no effect" };
    let lists = [
        (&settings.args.torchrun.redirects, names_missing(&logs.redirects), "higher ranks have no effect"),
        (&settings.args.torchrun.tee, names_missing(&logs.tee), "higher ranks have no effect"),
        (
            &settings.args.torchrun.local_ranks_filter,
            console.is_some_and(|ranks| ranks.iter().any(is_missing)),
            effect,
        ),
    ];
    let mut notices = Vec::new();
    for (list, _, effect) in lists.into_iter().filter(|(_, is_named, _)| *is_named) {
        if let Some(Setting { origin, value }) = settings.get(list) {
            notices.push(Notice::NoSuchRanks { origin, value, workers, effect });
        }
    }
    notices
}

/// Adds a notice for each of these options that has no effect without a log tree, as under torchrun. Under our own name
/// redirected streams are dropped then, and tee'd ones go to the console.
fn add_ignored_log_options(settings: &Settings<'_>, given: [bool; 3], notices: &mut Vec<Notice>) {
    let Some(Setting { origin: dir, .. }) = settings.find("log-dir") else { return };
    for (option, given) in ["redirects", "tee", "local-ranks-filter"].into_iter().zip(given) {
        if let Some(found) = settings.find(option).filter(|_| given) {
            let because = IgnoredBecause::NoLogTree(dir.clone());
            notices.push(Notice::Ignored { origin: found.origin, because });
        }
    }
}

fn refuse_duplicates(settings: &Settings<'_>) -> Result<(), CliError> {
    let mut options = ["duplicate-stdout-filters", "duplicate-stderr-filters"].into_iter();
    match options.find_map(|option| settings.find(option)) {
        Some(found) => {
            let problem = "copies lines to a file, and `--log-dir /dev/null` makes none";
            let hint = "name a log folder, or leave the filter out";
            Err(SettingError::of_origin(found.origin, problem, hint).into())
        }
        None => Ok(()),
    }
}

/// The texts of a duplicate filter. An empty text is in every line, and an empty list is one empty text, as under
/// torchrun.
fn duplicate_filters(filters: &Option<OptionValue<String>>) -> Vec<String> {
    filters.as_ref().map(|list| split_filters(&list.value)).unwrap_or_default()
}

/// Items between commas; two commas are a literal one.
fn split_filters(list: &str) -> Vec<String> {
    let mut items = vec![String::new()];
    let mut characters = list.chars().peekable();
    while let Some(character) = characters.next() {
        if character == ',' && characters.next_if_eq(&',').is_none() {
            items.push(String::new());
        } else if let Some(item) = items.last_mut() {
            item.push(character);
        }
    }
    items
}

/// The ranks heard on the console: ranks that do not exist silence the others all the same.
fn console_ranks(settings: &Settings<'_>) -> Result<Option<BTreeSet<LocalRank>>, CliError> {
    let found =
        settings.get(&settings.args.torchrun.local_ranks_filter).filter(|filter| !filter.value.is_empty());
    let Some(Setting { origin, value }) = found else { return Ok(None) };
    match value.split(',').map(parse_int).collect::<Option<Vec<_>>>() {
        Some(ranks) => {
            Ok(Some(ranks.into_iter().filter_map(|rank| u32::try_from(rank).ok()).map(LocalRank).collect()))
        }
        None => Err(refused(origin, value, LOCAL_RANKS)),
    }
}

/// The option, then torch's variable; empty ones count as none.
fn prefix_template(settings: &Settings<'_>) -> Result<Option<String>, CliError> {
    let option = settings
        .get(&settings.args.torchrun.log_line_prefix_template)
        .filter(|template| !template.value.is_empty());
    if let Some(template) = option {
        return Ok(Some(template.value));
    }
    let Some(value) = settings.facts.filled_variable(PREFIX_VARIABLE) else { return Ok(None) };
    match value.to_str() {
        Some(template) => Ok(Some(template.to_owned())),
        None => {
            let origin = Origin::Variable(PREFIX_VARIABLE.to_owned());
            Err(SettingError::not_unicode(origin, &value.to_string_lossy()).into())
        }
    }
}

fn log_dir(settings: &Settings<'_>, wants_logs: bool) -> LogDir {
    let facts = settings.facts;
    let Some(found) = settings.get(&settings.args.torchrun.log_dir).filter(|found| !found.value.is_empty())
    else {
        let only_error_files = settings.cli_flavor == CliFlavor::Rankrun && !wants_logs;
        let parent = temporary_folder(facts, only_error_files);
        return if only_error_files { LogDir::ErrorFiles(parent) } else { LogDir::Temporary(parent) };
    };
    let path = PathBuf::from(found.value);
    if path == Path::new("/dev/null") {
        return LogDir::Off;
    }
    // Not looked at here: its file system may not answer, and only the agent can wait for that.
    LogDir::At(match settings.cli_flavor {
        CliFlavor::Rankrun => facts.absolute(&path),
        // torchrun's workers see a relative TORCHELASTIC_ERROR_FILE then.
        CliFlavor::Torchrun => path,
    })
}

/// Python's `tempfile`: the first of these that can be written; `TMPDIR`'s or the first where none can. A tree of
/// error files alone, some kilobytes at most, is in memory unless the user named a place.
fn temporary_folder(facts: &Facts, only_error_files: bool) -> PathBuf {
    let mut candidates = temporary_folders(facts, only_error_files);
    let first = candidates.next().unwrap_or_default();
    let writable = |folder: &PathBuf| {
        facts.world().kind(folder) == FileKind::Directory
            && facts.world().has_permission(Permission::Write, folder)
    };
    if writable(&first) {
        return first;
    }
    candidates.find(writable).unwrap_or(first)
}

fn stream_map(settings: &Settings<'_>, streams: &Option<OptionValue<String>>) -> Result<StreamMap, CliError> {
    let Some(found) = settings.get(streams) else { return Ok(StreamMap::All(Streams::default())) };
    let any_rank = settings.cli_flavor == CliFlavor::Rankrun;
    parse_stream_map(&found.value, any_rank).ok_or_else(|| {
        refused(found.origin, found.value, if any_rank { STREAMS } else { STREAMS_OF_TORCHRUN })
    })
}

fn names_a_stream(map: &StreamMap) -> bool {
    let any = |streams: &Streams| streams.stdout || streams.stderr;
    match map {
        StreamMap::All(streams) => any(streams),
        StreamMap::Ranks(ranks) => ranks.iter().any(|(_, streams)| any(streams)),
    }
}

/// `3` or `0:3,1:2`. torchrun's ranks are one digit; with `any_rank` they are any rank.
fn parse_stream_map(text: &str, any_rank: bool) -> Option<StreamMap> {
    if let Some(streams) = parse_streams(text) {
        return Some(StreamMap::All(streams));
    }
    let item = |item: &str| {
        let (rank, streams) = item.split_once(':')?;
        let rank: LocalRank =
            rank.parse().ok().filter(|_| !rank.is_empty() && (any_rank || rank.len() == 1))?;
        Some((rank, parse_streams(streams)?))
    };
    text.split(',').map(item).collect::<Option<Vec<_>>>().map(StreamMap::Ranks)
}

fn parse_streams(text: &str) -> Option<Streams> {
    match text {
        "0" => Some(Streams::default()),
        "1" => Some(Streams { stdout: true, stderr: false }),
        "2" => Some(Streams { stdout: false, stderr: true }),
        "3" => Some(Streams { stdout: true, stderr: true }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn streams(bits: u8) -> Streams {
        Streams { stdout: bits & 1 != 0, stderr: bits & 2 != 0 }
    }

    #[test]
    fn stream_map_digit_applies_to_all_ranks() {
        for (text, bits) in [("0", 0), ("1", 1), ("2", 2), ("3", 3)] {
            assert_eq!(parse_stream_map(text, false), Some(StreamMap::All(streams(bits))));
        }
    }

    #[test]
    fn stream_map_list_assigns_ranks() {
        let ranks = vec![(LocalRank(0), streams(3)), (LocalRank(1), streams(0)), (LocalRank(0), streams(2))];
        assert_eq!(parse_stream_map("0:3,1:0,0:2", false), Some(StreamMap::Ranks(ranks)));
    }

    #[test]
    fn stream_map_ranks_above_nine_need_rankrun() {
        let ranks = vec![(LocalRank(10), streams(1))];
        assert_eq!(parse_stream_map("10:1", true), Some(StreamMap::Ranks(ranks)));
        assert_eq!(parse_stream_map("10:1", false), None);
    }

    #[test]
    fn invalid_stream_map_is_refused() {
        for text in ["", "4", "33", "0:1,", ",0:1", "0:4", ":1", "0:", "a:1", "-1:1", "0:1 ", "0:1:1"] {
            assert_eq!(parse_stream_map(text, true), None, "`{text}`");
        }
    }

    #[test]
    fn double_comma_in_filter_is_literal_comma() {
        for (list, items) in [
            ("apple,orange", vec!["apple", "orange"]),
            ("a,,b,c", vec!["a,b", "c"]),
            ("", vec![""]),
            ("x,", vec!["x", ""]),
            (",,", vec![","]),
            (",,,", vec![",", ""]),
            (",,,,", vec![",,"]),
            (" a , b", vec![" a ", " b"]),
        ] {
            assert_eq!(split_filters(list), items, "`{list}`");
        }
    }

    proptest! {
        #[test]
        fn any_stream_map_does_not_panic(text in "[0-9:,x ]{0,12}") {
            let _ = (parse_stream_map(&text, true), parse_stream_map(&text, false));
        }

        /// Python: `[item.replace(mark, ",") for item in text.replace(",,", mark).split(",")]`.
        #[test]
        fn filters_are_split_like_torchrun(text in "[ab,]{0,12}") {
            let marked = text.replace(",,", "\0");
            let items: Vec<String> = marked.split(',').map(|item| item.replace('\0', ",")).collect();
            prop_assert_eq!(split_filters(&text), items);
        }
    }
}
