//! `--wrap`: commands that start the program of chosen ranks, as a profiler or a debugger does. Pure: the command line
//! looks up their programs.

use std::ffi::OsString;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

use rankrun_contract::rank::{LocalRank, Rank};

use crate::shell::quote::for_people;

/// Global ranks, as in `0`, `0,2`, `0-3` or `all`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RankSet {
    All,
    Ranges(Vec<RangeInclusive<u32>>),
}

impl RankSet {
    #[must_use]
    pub fn contains(&self, rank: Rank) -> bool {
        match self {
            Self::All => true,
            Self::Ranges(ranges) => ranges.iter().any(|range| range.contains(&rank.0)),
        }
    }

    /// The highest rank that is named.
    #[must_use]
    pub fn highest(&self) -> Option<u32> {
        match self {
            Self::All => None,
            Self::Ranges(ranges) => ranges.iter().map(|range| *range.end()).max(),
        }
    }
}

impl FromStr for RankSet {
    type Err = WrapError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "all" {
            return Ok(Self::All);
        }
        let number = |text: &str| text.parse::<Rank>().map(|rank| rank.0).map_err(|_| WrapError::Form);
        let range = |item: &str| {
            let (first, last) = item.split_once('-').unwrap_or((item, item));
            let range = number(first)?..=number(last)?;
            if range.is_empty() { Err(WrapError::Form) } else { Ok(range) }
        };
        text.split(',').map(range).collect::<Result<_, _>>().map(Self::Ranges)
    }
}

impl fmt::Display for RankSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Ranges(ranges) = self else { return f.write_str("all") };
        for (at, range) in ranges.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            match (range.start(), range.end()) {
                (first, last) if first == last => write!(f, "{comma}{first}")?,
                (first, last) => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

/// A command for chosen ranks, as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrapCommand {
    pub ranks: RankSet,
    /// Its words, with placeholders behind the first one; never empty.
    pub words: Vec<String>,
}

/// Why a text is not a command for chosen ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WrapError {
    #[error("which is not RANKS:COMMAND with RANKS as in `0`, `0,2`, `0-3` or `all`")]
    Form,
    #[error("whose command has a quote without its end")]
    OpenQuote,
    #[error("which has no command behind the colon")]
    NoCommand,
    #[error("and `%{0}` is not a placeholder")]
    Placeholder(char),
}

impl WrapError {
    #[must_use]
    pub const fn hint(self) -> &'static str {
        match self {
            Self::Form | Self::NoCommand => "write it as in `--wrap 0:'nsys profile -o r%r'`",
            Self::OpenQuote => {
                "the command is split as a shell splits words: close the quote, or write it as `\\'`"
            }
            Self::Placeholder(_) => {
                "`%r` is the rank, `%l` the local rank, `%h` the host name; write `%%` for a percent sign"
            }
        }
    }
}

impl FromStr for WrapCommand {
    type Err = WrapError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (ranks, command) = text.split_once(':').ok_or(WrapError::Form)?;
        let ranks = ranks.trim().parse()?;
        let words = shlex::split(command).ok_or(WrapError::OpenQuote)?;
        let arguments = words.get(1..).ok_or(WrapError::NoCommand)?;
        for word in arguments {
            expand(word, |letter| matches!(letter, 'r' | 'l' | 'h').then(String::new))
                .map_err(WrapError::Placeholder)?;
        }
        Ok(Self { ranks, words })
    }
}

impl fmt::Display for WrapCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.words.iter().map(|word| for_people(word.as_ref())).collect();
        write!(f, "{}:{}", self.ranks, words.join(" "))
    }
}

/// The text with its placeholders replaced, or the first letter that is not one.
fn expand(text: &str, value: impl Fn(char) -> Option<String>) -> Result<String, char> {
    let mut expanded = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            expanded.push(letter);
            continue;
        }
        match letters.next().unwrap_or(' ') {
            '%' => expanded.push('%'),
            name => expanded.push_str(&value(name).ok_or(name)?),
        }
    }
    Ok(expanded)
}

/// A command for chosen ranks that can be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrapper {
    pub command: WrapCommand,
    /// The file of its program.
    pub path: PathBuf,
    /// The name of this host, for `%h`.
    pub host: String,
}

impl Wrapper {
    /// The words for this worker.
    #[must_use]
    pub fn argv(&self, rank: Rank, local_rank: LocalRank) -> Vec<OsString> {
        let value = |letter| match letter {
            'r' => Some(rank.to_string()),
            'l' => Some(local_rank.to_string()),
            'h' => Some(self.host.clone()),
            _ => None,
        };
        let expanded = |word: &String| expand(word, value).unwrap_or_else(|_| word.clone());
        let (program, arguments) = self.command.words.split_at(1);
        program.iter().cloned().chain(arguments.iter().map(expanded)).map(OsString::from).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv(text: &str) -> Vec<String> {
        let command = text.parse().unwrap();
        let wrapper = Wrapper { command, path: "/bin/tool".into(), host: "th%r".to_owned() };
        let argv = wrapper.argv(Rank(5), LocalRank(1));
        argv.into_iter().map(|word| word.into_string().unwrap()).collect()
    }

    #[test]
    fn wrap_command_is_split_and_expanded_for_its_rank() {
        assert_eq!(argv("0:nsys profile -o r%r.%l"), ["nsys", "profile", "-o", "r5.1"]);
        assert_eq!(argv("all: tool 'a b' \"%h\" %%r"), ["tool", "a b", "th%r", "%r"]);
        assert_eq!(argv(r"0-3:./a:b%r \%r ''"), ["./a:b%r", "5", ""]);
    }

    #[test]
    fn rank_set_contains_its_ranges_alone() {
        let set: RankSet = "0,2,4-6".parse().unwrap();
        let ranks: Vec<u32> = (0..9).filter(|rank| set.contains(Rank(*rank))).collect();
        assert_eq!((ranks, set.highest()), (vec![0, 2, 4, 5, 6], Some(6)));
        assert_eq!(set.to_string(), "0,2,4-6");
        let all: RankSet = "all".parse().unwrap();
        assert!(all.contains(Rank(7)) && all.highest().is_none() && all.to_string() == "all");
    }

    #[test]
    fn unreadable_wrap_command_names_its_mistake() {
        for (text, error) in [
            ("", WrapError::Form),
            ("nsys profile", WrapError::Form),
            (":nsys", WrapError::Form),
            ("3-1:nsys", WrapError::Form),
            ("-1:nsys", WrapError::Form),
            ("0,:nsys", WrapError::Form),
            ("0:", WrapError::NoCommand),
            ("0: ", WrapError::NoCommand),
            ("0:sh 'a", WrapError::OpenQuote),
            ("0:nsys -o %p", WrapError::Placeholder('p')),
            ("0:nsys 100%", WrapError::Placeholder(' ')),
        ] {
            assert_eq!(text.parse::<WrapCommand>(), Err(error), "{text}");
        }
    }
}
