//! Citations of documents, sections and invariants, in code and in documents.

use std::fmt;

use crate::titles::cited_titles;

/// What a text sends its reader to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Citation {
    /// A document, with the anchor or the section of it, if one is named.
    Document {
        /// As it is written.
        path: String,
        /// Where in it.
        place: Option<Place>,
    },
    /// The target of a Markdown link: a path from the citing file's folder, and the anchor behind its `#`.
    Link {
        /// As it is written; empty for a place of the citing document.
        path: String,
        /// Where in it.
        anchor: Option<String>,
    },
    /// A source file.
    Code(String),
    /// A section, a row or an appendix of the torchrun contract.
    Contract(String),
    /// A numbered invariant.
    Invariant(String),
    /// A section of no document, or a document without its name.
    Unnamed(String),
}

/// A place in a document.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Behind a `#`.
    Anchor(String),
    /// By its number or letter.
    Section(String),
    /// By its quoted title.
    Title(String),
}

impl fmt::Display for Citation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Document { path, place: None } => write!(f, "{path}"),
            Self::Document { path, place: Some(Place::Anchor(anchor)) } => write!(f, "{path}#{anchor}"),
            Self::Document { path, place: Some(Place::Section(id)) } => write!(f, "{path} section {id}"),
            Self::Document { path, place: Some(Place::Title(title)) } => write!(f, "{path} \"{title}\""),
            Self::Link { path, anchor: None } => write!(f, "link {path}"),
            Self::Link { path, anchor: Some(anchor) } => write!(f, "link {path}#{anchor}"),
            Self::Code(path) => write!(f, "{path}"),
            Self::Contract(id) => write!(f, "contract {id}"),
            Self::Invariant(id) => write!(f, "invariant {id}"),
            Self::Unnamed(text) => write!(f, "{text}"),
        }
    }
}

/// The contract of other launchers: `launchers contract 1.3` is a section of it.
const LAUNCHERS_CONTRACT: &str = "docs/dev/launchers-contract.md";

/// Documents of others that the text may name.
const FOREIGN: [&str; 2] = ["PERFORMANCE.md", "docs.rs"];

/// Folders of the checkout and rooms of the launcher: a word in backticks that begins with one is a path.
const FOLDERS: [&str; 26] = [
    ".ci",
    ".config",
    "agent",
    "blocking",
    "cli",
    "console",
    "control",
    "device",
    "device_assignment",
    "docs",
    "examples",
    "explain",
    "facts",
    "gc",
    "inspect",
    "job_event",
    "launcher",
    "logs",
    "process",
    "rendezvous",
    "reporter",
    "shim",
    "spec",
    "store",
    "tests",
    "worker-runtime",
];

/// A word without the signs around it.
pub(crate) struct Word<'a> {
    pub(crate) plain: &'a str,
    /// Whether a list goes on behind it.
    goes_on: bool,
    /// Whether a sign separates it from the next word.
    is_separated: bool,
    kind: WordKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WordKind {
    Prose,
    /// A word alone in backticks.
    Code,
    /// The target of a link: `[text](target)`.
    Link,
}

pub(crate) fn words(text: &str) -> Vec<Word<'_>> {
    let goes_on = |raw: &str| raw.ends_with(',') && !raw.ends_with("),");
    // A link's two halves are two words.
    let pieces =
        text.split(|letter: char| letter.is_whitespace()).flat_map(|raw| raw.split("](").enumerate());
    let kind = |half, raw| match half {
        0 if is_code(raw) => WordKind::Code,
        0 => WordKind::Prose,
        _ => WordKind::Link,
    };
    let mut all: Vec<Word<'_>> = Vec::new();
    for (half, raw) in pieces {
        let is_separated = raw.ends_with(['.', ',', ';', ':', '|']);
        let plain = trimmed(raw);
        if plain.is_empty() {
            all.iter_mut().next_back().into_iter().for_each(|word| word.is_separated |= is_separated);
        } else {
            all.push(Word { plain, goes_on: goes_on(raw), is_separated, kind: kind(half, raw) });
        }
    }
    all
}

/// A path may begin with dots, and a sentence ends with one.
fn trimmed(raw: &str) -> &str {
    let signs = |letter: char| "()[]{},;:!?\"'`*|<>".contains(letter);
    raw.trim_start_matches(signs).trim_end_matches(|letter| letter == '.' || signs(letter))
}

fn is_code(raw: &str) -> bool {
    let raw = raw.trim_start_matches(['(', '[', '*']);
    raw.starts_with('`') && raw.matches('`').count() == 2
}

/// The citations of a text.
#[must_use]
pub fn citations(text: &str) -> Vec<Citation> {
    let words = words(text);
    let mut found = cited_titles(text);
    for at in 0..words.len() {
        let word = words[at].plain;
        let lower = word.to_ascii_lowercase();
        match &*lower {
            "contract" if at > 0 && words[at - 1].plain.eq_ignore_ascii_case("launchers") => {
                let section = |id| Citation::Document {
                    path: LAUNCHERS_CONTRACT.to_owned(),
                    place: Some(Place::Section(id)),
                };
                found.extend(listed(&words[at + 1..], is_section).map(section));
            }
            "contract" => found.extend(listed(&words[at + 1..], is_section).map(Citation::Contract)),
            "appendix" => {
                let id = words.get(at + 1).filter(|id| is_letter(id.plain));
                found.extend(id.map(|id| Citation::Contract(format!("appendix {}", id.plain))));
            }
            "invariant" | "invariants" => {
                found.extend(listed(&words[at + 1..], is_invariant).map(Citation::Invariant));
            }
            "section" | "sections" => found.extend(section(&words, at)),
            "design" if next_is(&words, at, "document") => {
                found.push(Citation::Unnamed("the design document".to_owned()));
            }
            _ if words[at].kind == WordKind::Code && word.contains(['/', '{']) => {
                found.extend(code_paths(word).into_iter().map(|citation| with_section(citation, &words, at)));
            }
            _ if words[at].kind == WordKind::Link => {
                found.extend(link_target(word));
                let place = path(word).map(|citation| with_section(citation, &words, at));
                found.extend(place.filter(|citation| {
                    matches!(citation, Citation::Document { place: Some(Place::Section(_)), .. })
                }));
            }
            _ => found.extend(path(word).map(|citation| with_section(citation, &words, at))),
        }
    }
    found
}

fn next_is(words: &[Word<'_>], at: usize, expected: &str) -> bool {
    words.get(at + 1).is_some_and(|word| word.plain.eq_ignore_ascii_case(expected))
}

/// The numbers that follow, as in `5.4, 5.5 and 5.6`.
fn listed(words: &[Word<'_>], is_number: fn(&str) -> bool) -> impl Iterator<Item = String> + use<> {
    let mut numbers = Vec::new();
    let mut goes_on = true;
    for word in words {
        if word.plain == "and" && !numbers.is_empty() {
            goes_on = true;
        } else if goes_on && is_number(word.plain) {
            numbers.push(word.plain.to_owned());
            goes_on = word.goes_on;
        } else {
            break;
        }
    }
    numbers.into_iter()
}

fn is_section(word: &str) -> bool {
    word.split('.')
        .all(|part| !part.is_empty() && part.len() < 3 && part.bytes().all(|byte| byte.is_ascii_digit()))
}

fn is_invariant(word: &str) -> bool {
    let digits = word.strip_prefix('R').unwrap_or(word);
    !digits.is_empty() && digits.len() < 3 && digits.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_letter(word: &str) -> bool {
    word.len() == 1 && word.bytes().all(|byte| byte.is_ascii_uppercase())
}

/// `section 2.1 of the contract`; with a document's path beside it the path has the section.
fn section(words: &[Word<'_>], at: usize) -> Option<Citation> {
    let id = words.get(at + 1).filter(|id| is_section(id.plain))?.plain;
    let behind: Vec<_> = words[at + 2..].iter().take(3).map(|word| word.plain).collect();
    if let ["of", "the", "contract"] = behind[..] {
        return Some(Citation::Contract(id.to_owned()));
    }
    let is_document = |word: &str| matches!(path(word), Some(Citation::Document { .. }));
    let named_behind = behind.first() == Some(&"of") && behind.get(1).is_some_and(|word| is_document(word));
    let named_before = at > 0 && is_document(words[at - 1].plain);
    (!named_behind && !named_before).then(|| Citation::Unnamed(format!("section {id}")))
}

/// The paths of a word in backticks: documents, files and folders of the checkout. `a/{b,c}.rs` are two.
fn code_paths(word: &str) -> Vec<Citation> {
    let (before, choices, after) =
        match word.split_once('{').map(|(before, rest)| (before, rest.split_once('}'))) {
            Some((before, Some((choices, after)))) => (before, choices, after),
            _ => (word, "", ""),
        };
    let all = choices.split(',').map(|choice| format!("{before}{choice}{after}"));
    all.filter_map(|word| path(&word).or_else(|| folder_or_file(&word))).collect()
}

/// A path that begins with a folder of ours.
fn folder_or_file(word: &str) -> Option<Citation> {
    let is_plain = word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte));
    let first = word.split('/').next().unwrap_or_default();
    (is_plain && FOLDERS.contains(&first)).then(|| Citation::Code(word.to_owned()))
}

/// The target of a link: a place of the same document, a document, or another file or folder. A link of rustdoc names
/// an item instead, and an address of the web has a colon.
fn link_target(word: &str) -> Option<Citation> {
    let (path, anchor) = word.split_once('#').map_or((word, None), |(path, anchor)| (path, Some(anchor)));
    let is_plain = path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte));
    is_plain.then(|| Citation::Link { path: path.to_owned(), anchor: anchor.map(str::to_owned) })
}

/// A path of a document or of code.
pub(crate) fn path(word: &str) -> Option<Citation> {
    let (path, anchor) = word.split_once('#').map_or((word, None), |(path, anchor)| (path, Some(anchor)));
    let is_plain = path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte));
    if !is_plain || path.starts_with('.') && !path.starts_with("..") {
        return None;
    }
    if path.ends_with(".md") && path.len() > 3 && !FOREIGN.contains(&path) {
        let place = anchor.map(|anchor| Place::Anchor(anchor.to_owned()));
        return Some(Citation::Document { path: path.to_owned(), place });
    }
    // `src/…` is in a crate of the reader's.
    (path.ends_with(".rs") && path.len() > 3 && !path.starts_with("src/") && !FOREIGN.contains(&path))
        .then(|| Citation::Code(path.to_owned()))
}

fn with_section(citation: Citation, words: &[Word<'_>], at: usize) -> Citation {
    let Citation::Document { path, place: None } = citation else { return citation };
    let id =
        |at: usize| words.get(at).map(|word| word.plain).filter(|word| is_section(word) || is_letter(word));
    let is_section_word =
        |at: usize| words.get(at).is_some_and(|word| word.plain.eq_ignore_ascii_case("section"));
    let number = || words.get(at + 1).map(|word| word.plain).filter(|word| is_section(word));
    let behind = if is_section_word(at + 1) {
        id(at + 2)
    } else {
        // `docs/a.md 3.6`: a number without a sign between.
        number().filter(|_| !words[at].is_separated)
    };
    let before =
        || (at >= 3 && is_section_word(at - 3) && words[at - 1].plain == "of").then(|| id(at - 2)).flatten();
    let place = behind.or_else(before).map(|id| Place::Section(id.to_owned()));
    Citation::Document { path, place }
}

#[cfg(test)]
mod self_test {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        citations(text).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn numbers_of_a_list_are_citations_of_their_own() {
        assert_eq!(
            found("state that all share (contract 5.4, 5.5). Pure."),
            ["contract 5.4", "contract 5.5"]
        );
        let invariants = ["invariant 6", "invariant 7", "invariant 10"];
        assert_eq!(found("a signal (invariants 6, 7 and 10), 8 times"), invariants);
        assert_eq!(found("invariant 4: The 5 deadlines"), ["invariant 4"]);
        assert_eq!(found("(contract 5.4, appendix B)"), ["contract 5.4", "contract appendix B"]);
        assert_eq!(found("invariant R7: Leaving"), ["invariant R7"]);
        assert_eq!(found("the invariants hold; a contract of 3 pages"), [""; 0]);
    }

    #[test]
    fn section_belongs_to_the_document_beside_it() {
        assert_eq!(found("as section 6.2 of the contract says"), ["contract 6.2"]);
        assert_eq!(found("see `docs/a.md`, section 3"), ["docs/a.md section 3"]);
        assert_eq!(found("section 3 of `docs/a.md`"), ["docs/a.md section 3"]);
        assert_eq!(found("as section 3 says"), ["section 3"]);
        assert_eq!(found("as the design document says"), ["the design document"]);
        assert_eq!(found("launchers contract 3.6"), ["docs/dev/launchers-contract.md section 3.6"]);
        assert_eq!(
            found("the launchers' contract 1.3 and 9"),
            ["docs/dev/launchers-contract.md section 1.3", "docs/dev/launchers-contract.md section 9"]
        );
        assert_eq!(
            found("`docs/a.md` 99; docs/b.md, 4 times | `docs/c.md` | 5 |"),
            ["docs/a.md section 99", "docs/b.md", "docs/c.md"]
        );
        assert_eq!(found("[x](a.md), section 3"), ["link a.md", "a.md section 3"]);
    }

    #[test]
    fn paths_of_documents_and_code_are_found() {
        assert_eq!(
            found("([docs/stopping.md](docs/stopping.md#ctrl-c)),"),
            ["docs/stopping.md", "link docs/stopping.md#ctrl-c"]
        );
        assert_eq!(
            found("`agent/state.rs` and state.rs; nccl-tests' `PERFORMANCE.md`"),
            ["agent/state.rs", "state.rs"]
        );
        assert_eq!(
            found("`agent/{state,phase}.rs`, `launcher/src`"),
            ["agent/state.rs", "agent/phase.rs", "launcher/src"]
        );
        assert_eq!(found("(`device/probe/`); `a/b`, tests/gone"), ["device/probe/"]);
    }

    #[test]
    fn link_leads_to_any_file_and_to_places_of_its_own_document() {
        assert_eq!(found("[x](dev/gone.txt), [y](#gone-too)"), ["link dev/gone.txt", "link #gone-too"]);
        assert_eq!(found("[x](LICENSE), [y](docs/)"), ["link LICENSE", "link docs/"]);
        assert_eq!(found("[x](https://a.b/c), [`Self::x`](Self::x), [y](super::z), issue #1"), [""; 0]);
    }
}
