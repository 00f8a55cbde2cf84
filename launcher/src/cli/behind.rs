//! Options of the launcher that stand behind the entrypoint, where they reach the program alone. Pure.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::{Arg, Command};

use super::option::{Kind, LaunchOption};
use super::settings::CommandLine;
use rankrun_core::notice::Notice;

/// Options that programs have too: behind the entrypoint they are the program's.
const COMMON: &[&str] = &[
    "config",
    "device-type",
    "devices",
    "grace",
    "help",
    "iface",
    "lease",
    "local-addr",
    "local-rank",
    "log-dir",
    "master-addr",
    "master-port",
    "module",
    "node-rank",
    "quiet",
    "role",
    "stdin",
    "tee",
    "time-limit",
    "verbose",
    "version",
];

/// A notice of the options of `known` behind the entrypoint that only a launcher has. A `--`, or the same option before the
/// entrypoint, says that they are meant for the program.
pub(super) fn options_behind_notice(line: &CommandLine, known: &'static Command) -> Option<Notice> {
    if line.is_separated {
        return None;
    }
    let mut found = Vec::new();
    let mut words = line.arguments.iter().peekable();
    while let Some(word) = words.next().filter(|word| *word != "--") {
        let Some(row) = row_of(word, known).filter(|row| is_meant(row, line)) else { continue };
        let mut text = word.to_string_lossy().into_owned();
        let takes_next = row.kind() != Kind::Flag && !word.as_bytes().contains(&b'=');
        if let Some(value) = words.next_if(|next| takes_next && !next.as_bytes().starts_with(b"-")) {
            text = format!("{text} {}", value.to_string_lossy());
        }
        found.push(text);
    }
    let entrypoint = line.entrypoint.to_string_lossy().into_owned();
    (!found.is_empty()).then_some(Notice::BehindEntrypoint { options: found, entrypoint })
}

fn is_meant(row: &Arg, line: &CommandLine) -> bool {
    !COMMON.contains(&row.long_name()) && line.options.iter().all(|typed| typed.option != row)
}

/// The option whose whole long spelling a word is, with or without a value.
fn row_of(word: &OsString, known: &'static Command) -> Option<&'static Arg> {
    let name = word.as_bytes().split(|byte| *byte == b'=').next()?;
    let is_it = |row: &&Arg| row.spellings().iter().any(|known| OsStr::new(known).as_bytes() == name);
    known.get_arguments().filter(|row| row.get_long().is_some()).find(is_it)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::option::{command, options};
    use crate::cli::settings::{ParsedArgs, parse};
    use rankrun_core::spec::CliFlavor;

    fn notice_text(line: &str) -> Option<String> {
        let words: Vec<OsString> = line.split_whitespace().map(Into::into).collect();
        match parse(CliFlavor::Rankrun, &words).unwrap() {
            ParsedArgs::Launch(line) => {
                let known = command(CliFlavor::Rankrun);
                options_behind_notice(&line, known).map(|notice| notice.to_string())
            }
            other => panic!("no launch: {other:?}"),
        }
    }

    #[test]
    fn launcher_options_after_script_are_named_with_values() {
        assert_eq!(
            notice_text("train.py --lr 1 --nproc-per-node 4").unwrap(),
            "`--nproc-per-node 4` stands behind `train.py` and goes to it; if it should reach the launcher, put it before \
             `train.py`; a `--` before it silences this line"
        );
        let both = notice_text("x --nproc_per_node=4 --standalone --max-restarts -1").unwrap();
        assert!(
            both.starts_with("`--nproc_per_node=4`, `--standalone`, `--max-restarts` stand behind `x`"),
            "{both}"
        );
    }

    #[test]
    fn ambiguous_options_after_script_are_not_named() {
        for line in [
            "train.py --devices 2 --tee 3 --config c.toml --local-rank 0 --master_port 1",
            "train.py -- --nproc-per-node 4",
            "-- train.py --nproc-per-node 4",
            "train.py a -- --nproc-per-node 4",
            "--nproc-per-node 2 launcher.py --nproc-per-node 4",
            "train.py --nproc --nnodes-of-tree 3 nnodes",
        ] {
            assert_eq!(notice_text(line), None, "{line}");
        }
    }

    #[test]
    fn common_options_exist_in_option_options() {
        for name in COMMON.iter().filter(|name| **name != "local-rank") {
            assert!(options(CliFlavor::Rankrun).any(|row| row.long_name() == *name), "{name}");
        }
    }
}
