//! The counter: what the rules for words forbid, per room and per package.

use std::collections::{BTreeMap, BTreeSet};

use crate::checkout::RustFile;
use crate::names::{identifiers, tests, types, words_of};

/// The most type names with several meanings in a package.
pub const MOST_NAMES: usize = 14;
/// The most short doc lines of a hundred.
pub const MOST_SHORT_DOCS: usize = 29;
/// A doc line of so many words or fewer is short.
const SHORT_DOC: usize = 5;
/// The most letters of a test's name.
const LONGEST_TEST: usize = 70;

/// Words that hide the component which acts.
const HIDING: [&str; 4] = ["who", "whoever", "nobody", "somebody"];

/// Figures of speech that a plain word replaces: a stop is a request or a signal, a node has a place, a peer is unknown.
const FIGURES: &str = "believe believed believes farewell seat seats stranger strangers stumble stumbles whom wish wished wishes";

/// The same in two or three words.
const PHRASES: [&[&str]; 2] = [&["last", "words"], &["without", "a", "word"]];

/// Words that make `is no` plain.
const COMPARATIVES: [&str; 8] =
    ["better", "earlier", "faster", "further", "larger", "later", "longer", "more"];

/// Words of the first version that a reader cannot guess or search for, with their plurals. Each has a standard name in
/// its place (`wish`: `command`, `seat`: `worker_device`, `book`: `oracle`).
const OLD: &str = "asleep beat beats believe believed believers believes bell bells bond book clash crowd crowds deed \
                   deputy door farewell fencepost foresee guest guests halt happening impatience introduction knock linger \
                   manner manners meeting news obey outlook parting persona pulse reseat reseated reseating seat seating \
                   seats sightings stranger strangers stuck stumble testimony told upheaval wish wished wishes witness";

/// The same in two words.
const OLD_PAIRS: [[&str; 2]; 2] = [["by", "hand"], ["left", "out"]];

/// Whole names of types and variants that say nothing without their place: participles and the like.
const VAGUE: [&str; 9] = ["Chosen", "Handed", "Look", "Others", "Over", "Seen", "Stuck", "Told", "Words"];

/// What a room still has of what the rules forbid.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Room {
    /// Lines of comments.
    pub comments: usize,
    /// Lines of comments with a hiding word.
    pub hiding_comments: usize,
    /// Literals of a product that have such a word.
    pub hiding_messages: usize,
    /// Tests with a name above the limit.
    pub long_tests: usize,
    /// Identifiers of a file that have an old word, summed over the files.
    pub old_words: usize,
}

impl Room {
    /// Whether there is anything to mend.
    #[must_use]
    pub const fn has_findings(&self) -> bool {
        self.hiding_comments + self.hiding_messages + self.long_tests + self.old_words > 0
    }
}

/// What a package still has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Package {
    /// Doc lines.
    pub docs: usize,
    /// Short ones.
    pub short_docs: usize,
    /// The type names that are declared more than once, with the places.
    pub names: BTreeMap<String, Vec<String>>,
}

impl Package {
    /// Short doc lines of a hundred, rounded up.
    #[must_use]
    pub fn short_doc_percentage(&self) -> usize {
        (self.short_docs * 100).div_ceil(self.docs.max(1))
    }
}

/// All that is counted.
#[derive(Debug, Default)]
pub struct Count {
    /// By path of the room.
    pub rooms: BTreeMap<String, Room>,
    /// By path of the package.
    pub packages: BTreeMap<&'static str, Package>,
    /// Each line that counts, with its place.
    pub findings: Vec<String>,
}

impl Count {
    /// Counts.
    #[must_use]
    pub fn of(files: &[RustFile]) -> Self {
        let mut count = Self::default();
        for file in files {
            count.add_words(file);
            count.add_tests(file);
            count.add_old_words(file);
            if let Some(package) = file.package() {
                count.add_package(package, file);
            }
        }
        for package in count.packages.values_mut() {
            package.names.retain(|_, places| places.len() > 1);
        }
        count
    }

    fn add_words(&mut self, file: &RustFile) {
        let room = self.rooms.entry(file.room()).or_default();
        let reasons = file.source.literals.iter().filter(|literal| literal.is_reason);
        let comments = file.source.comments.iter().map(|comment| (comment.line, &comment.text));
        for (line, text) in comments.chain(reasons.map(|reason| (reason.line, &reason.text))) {
            room.comments += 1;
            if has_hiding_word(text) {
                room.hiding_comments += 1;
                self.findings.push(format!("{}:{line}: comment: {text}", file.path));
            }
        }
        for literal in file.source.literals.iter().filter(|literal| !literal.is_reason) {
            if file.is_product(literal.line) && has_hiding_word(&literal.text) {
                room.hiding_messages += 1;
                self.findings.push(format!("{}:{}: message: {}", file.path, literal.line, literal.text));
            }
        }
    }

    fn add_tests(&mut self, file: &RustFile) {
        let room = self.rooms.entry(file.room()).or_default();
        for (line, name) in tests(&file.source.code) {
            if name.len() > LONGEST_TEST {
                room.long_tests += 1;
                self.findings.push(format!("{}:{line}: test of {} letters: {name}", file.path, name.len()));
            }
        }
    }

    fn add_old_words(&mut self, file: &RustFile) {
        // This list.
        if file.path.starts_with("tests/text/") {
            return;
        }
        let room = self.rooms.entry(file.room()).or_default();
        for (identifier, line) in identifiers(&file.source.code) {
            let words = words_of(identifier);
            let is_old = words.iter().any(|word| OLD.split(' ').any(|old| old == word))
                || words.windows(2).any(|pair| OLD_PAIRS.iter().any(|old| pair == old));
            if is_old || VAGUE.contains(&identifier) {
                room.old_words += 1;
                self.findings.push(format!("{}:{line}: old word: {identifier}", file.path));
            }
        }
    }

    fn add_package(&mut self, name: &'static str, file: &RustFile) {
        let package = self.packages.entry(name).or_default();
        let docs =
            file.source.comments.iter().filter(|comment| comment.is_doc && file.is_product(comment.line));
        let mut is_example = false;
        for doc in docs.filter(|doc| !doc.text.is_empty()) {
            let is_fence = doc.text.starts_with("```");
            is_example ^= is_fence;
            // Code and headings such as `# Errors` are not prose.
            if is_example || is_fence || doc.text.starts_with("# ") {
                continue;
            }
            package.docs += 1;
            package.short_docs += usize::from(doc.text.split_whitespace().count() <= SHORT_DOC);
        }
        // Two declarations in one file are alternatives of `cfg` or of two functions' bodies: one meaning for a reader.
        let mut here = BTreeSet::new();
        for (line, name) in types(&file.source.code) {
            if file.is_product(line) && here.insert(name.clone()) {
                package.names.entry(name).or_default().push(format!("{}:{line}", file.path));
            }
        }
    }

    /// The sum of the rooms.
    #[must_use]
    pub fn total(&self) -> Room {
        self.total_of(|_| true)
    }

    /// The sum of the rooms with such a path.
    #[must_use]
    pub fn total_of(&self, is_wanted: impl Fn(&str) -> bool) -> Room {
        let rooms = self.rooms.iter().filter(|(path, _)| is_wanted(path)).map(|(_, room)| room);
        rooms.fold(Room::default(), |sum, room| Room {
            comments: sum.comments + room.comments,
            hiding_comments: sum.hiding_comments + room.hiding_comments,
            hiding_messages: sum.hiding_messages + room.hiding_messages,
            long_tests: sum.long_tests + room.long_tests,
            old_words: sum.old_words + room.old_words,
        })
    }
}

/// Whether a text has a word that hides the component which acts, or a figure of speech. Code in backticks does not count.
fn has_hiding_word(text: &str) -> bool {
    let words = prose_words(text);
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    words.iter().any(|word| HIDING.contains(word) || FIGURES.split(' ').any(|figure| figure == *word))
        || PHRASES.iter().any(|phrase| words.windows(phrase.len()).any(|window| window == *phrase))
        || words.windows(4).any(|window| is_inverted_negation(window[0], window[1], window[2], window[3]))
}

/// The words in lower case, with a backtick in the place of code.
fn prose_words(text: &str) -> Vec<String> {
    let is_letter = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut words = Vec::new();
    for (at, part) in text.split('`').enumerate() {
        if at % 2 == 1 {
            words.push("`".to_owned());
        } else {
            let parts = part.split(|letter| !is_letter(letter)).filter(|word| !word.is_empty());
            words.extend(parts.map(str::to_lowercase));
        }
    }
    words
}

/// `x is no key` instead of `x is not a key`; `there is no key` and `it is no longer a key` are plain.
fn is_inverted_negation(subject: &str, verb: &str, no: &str, noun: &str) -> bool {
    no == "no"
        && ["is", "are", "was", "were"].contains(&verb)
        && !["there", "and", "or"].contains(&subject)
        && !COMPARATIVES.contains(&noun)
}

#[cfg(test)]
mod self_test {
    use super::*;

    #[test]
    fn hiding_words_are_found_as_whole_words_outside_of_code() {
        for text in ["Nobody listens", "for whoever asks", "who's there", "(somebody)"] {
            assert!(has_hiding_word(text), "{text}");
        }
        for text in ["the whole file", "runs `who` in a shell", "whose name", "anybody_else"] {
            assert!(!has_hiding_word(text), "{text}");
        }
    }

    #[test]
    fn figures_of_speech_are_found_in_prose() {
        for text in
            ["the last words of a worker", "it waits without a word", "a file is no folder", "`x` is no key"]
        {
            assert!(has_hiding_word(text), "{text}");
        }
        for text in [
            "a file is not a folder",
            "there is no key",
            "it is no longer a key",
            "the last word",
            "is no more",
        ] {
            assert!(!has_hiding_word(text), "{text}");
        }
    }

    #[test]
    fn old_words_count_in_identifiers_of_every_room() {
        let file = |path: &str, code: &str| RustFile::new(path, code);
        let cli = file("launcher/src/cli/inspect.rs", "pub enum Manner { Seat } fn f() { let wish = 1; }");
        let tools =
            file("launcher/tools/src/gc/mod.rs", "enum End { Over, OverLimit } fn over(left_out: u8) {}");
        let count = Count::of(&[cli, tools]);
        assert_eq!(count.rooms["launcher/src/cli"].old_words, 3, "{:?}", count.findings);
        assert_eq!(count.rooms["launcher/tools/src/gc"].old_words, 2, "{:?}", count.findings);
    }

    #[test]
    fn percentage_is_rounded_up() {
        let package = |docs, short_docs| Package { docs, short_docs, names: BTreeMap::new() };
        assert_eq!(package(1000, 290).short_doc_percentage(), 29);
        assert_eq!(package(1000, 291).short_doc_percentage(), 30);
        assert_eq!(package(0, 0).short_doc_percentage(), 0);
    }
}
