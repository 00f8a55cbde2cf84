//! The documents of the checkout, and whether a citation leads to a place in them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::checkout::{RustFile, files, module_folder};
use crate::citations::{Citation, Place, citations};
use crate::items::{is_declared, item_paths, unknown_identifiers};
use crate::source::Source;
use crate::titles::{plain_title, row_title};

const CONTRACT: &str = "docs/dev/torchrun-contract.md";
/// The document that has the numbered invariants in full.
const ARCHITECTURE: &str = "ARCHITECTURE.md";

/// The places of a document to which a citation may lead.
#[derive(Debug, Default)]
struct Document {
    /// As in a link's `#`.
    anchors: BTreeSet<String>,
    /// Numbers and letters of sections, and numbers of rows and of list items.
    sections: BTreeSet<String>,
    /// The same below a heading about invariants.
    invariants: BTreeSet<String>,
    /// Titles of sections, first cells of rows and bold beginnings of paragraphs, without their signs.
    titles: BTreeSet<String>,
}

impl Document {
    fn parse(text: &str) -> Self {
        let mut document = Self::default();
        let (mut section, mut of_invariants, mut in_code) = (String::new(), false, false);
        for line in text.lines() {
            in_code ^= line.trim_start().starts_with("```");
            if in_code {
                continue;
            }
            document.titles.extend(row_title(line));
            let title = line.trim_start_matches('#');
            if title.len() < line.len() && title.starts_with(' ') {
                document.anchors.insert(anchor(title.trim()));
                document.titles.insert(plain_title(title));
                section = number(title.trim()).unwrap_or_default();
                document.sections.extend(Some(section.clone()).filter(|section| !section.is_empty()));
                of_invariants = title.to_ascii_lowercase().contains("invariant");
            } else if let Some(number) = number(line.trim_start_matches(['|', '-', '*', ' '])) {
                if of_invariants {
                    document.invariants.insert(number.clone());
                }
                // `8.22` names a row by itself; `22` is a row of its section only.
                document.sections.insert(format!("{section}.{number}"));
                document.sections.extend(Some(number).filter(|number| number.contains(['.', 'R'])));
            }
        }
        document
    }
}

/// The number at the beginning of a title or of a line: `3.6`, `R7`, `appendix A`.
fn number(text: &str) -> Option<String> {
    let mut tokens = text.split_whitespace();
    let first = tokens.next()?;
    if first.eq_ignore_ascii_case("appendix") {
        let letter = tokens.next()?.trim_end_matches(['.', ':', ',']);
        return Some(format!("appendix {letter}"));
    }
    let first = first.trim_matches(['.', ':', '*', '|']);
    let digits = first.strip_prefix('R').unwrap_or(first);
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    digits.split('.').all(is_number).then(|| first.to_owned())
}

/// As GitHub makes it of a title.
fn anchor(title: &str) -> String {
    let kept = |letter: &char| letter.is_alphanumeric() || [' ', '-', '_'].contains(letter);
    title
        .chars()
        .filter(kept)
        .map(|letter| if letter == ' ' { '-' } else { letter })
        .collect::<String>()
        .to_lowercase()
}

/// All documents of the checkout, by path.
#[derive(Debug)]
pub struct Documents {
    documents: BTreeMap<String, Document>,
    paths: BTreeSet<String>,
}

impl Documents {
    /// Reads them.
    ///
    /// # Panics
    /// When a file cannot be read.
    #[must_use]
    pub fn read(root: &Path) -> Self {
        let paths: BTreeSet<_> = files(root, |_| true).into_iter().collect();
        let markdown = paths.iter().filter(|path| path.ends_with(".md"));
        let read = |path: &String| {
            let text = fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
            (path.clone(), Document::parse(&text))
        };
        let documents = markdown.map(read).collect();
        Self { documents, paths }
    }

    /// Whether the citation leads to something.
    #[must_use]
    pub fn has(&self, citing: &str, citation: &Citation) -> bool {
        match citation {
            Citation::Document { path, place } => {
                self.document(citing, path).is_some_and(|document| match place {
                    None => true,
                    Some(Place::Anchor(anchor)) => document.anchors.contains(anchor),
                    Some(Place::Section(id)) => document.sections.contains(id),
                    Some(Place::Title(title)) => document.titles.contains(&plain_title(title)),
                })
            }
            Citation::Link { path, anchor } => self.has_target(citing, path, anchor.as_deref()),
            Citation::Code(path) => {
                let path = resolved(citing, path);
                let is_folder_of = |there: &str, path: &str| {
                    there.strip_prefix(path.trim_end_matches('/')).is_some_and(|rest| rest.starts_with('/'))
                };
                self.paths.iter().any(|there| {
                    let inside = there.find(&format!("/{path}")).map(|at| &there[at + 1..]);
                    *there == path
                        || there.ends_with(&format!("/{path}"))
                        || is_folder_of(there, &path)
                        || inside.is_some_and(|inside| is_folder_of(inside, &path))
                })
            }
            Citation::Contract(id) => {
                self.documents.get(CONTRACT).is_some_and(|contract| contract.sections.contains(id))
            }
            Citation::Invariant(id) => {
                self.documents.get(ARCHITECTURE).is_some_and(|page| page.invariants.contains(id))
            }
            Citation::Unnamed(_) => false,
        }
    }

    /// Whether a link of a document leads to a file, a folder or a place. In code a word without a path is an item.
    fn has_target(&self, citing: &str, path: &str, anchor: Option<&str>) -> bool {
        if !citing.ends_with(".md") && !path.contains(['/', '.']) {
            return true;
        }
        let folder = citing.rsplit_once('/').map_or("", |(folder, _)| folder);
        let path =
            if path.is_empty() { citing.to_owned() } else { resolved("", &format!("{folder}/{path}")) };
        match anchor {
            Some(anchor) => {
                self.documents.get(&path).is_some_and(|document| document.anchors.contains(anchor))
            }
            None => {
                self.paths.contains(&path)
                    || self
                        .paths
                        .range(format!("{path}/")..)
                        .next()
                        .is_some_and(|next| next.starts_with(&format!("{path}/")))
            }
        }
    }

    /// A document by its path from the root, from the citing file's folder, or from `docs/`.
    fn document(&self, citing: &str, path: &str) -> Option<&Document> {
        // A link to a place of its own document has no path.
        let path = if path.is_empty() { citing } else { path };
        let folder = citing.rsplit_once('/').map_or("", |(folder, _)| folder);
        // A path with `..` begins at the citing file's folder.
        let beside = if path.starts_with("..") { resolved(citing, path) } else { format!("{folder}/{path}") };
        let candidates = [path.to_owned(), beside, format!("docs/{path}"), format!("docs/dev/{path}")];
        candidates.iter().find_map(|path| self.documents.get(path.trim_start_matches('/')))
    }
}

/// A path without its `..`.
fn resolved(citing: &str, path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    let folder = citing.rsplit_once('/').map_or("", |(folder, _)| folder);
    if path.starts_with("..") {
        parts.extend(folder.split('/'));
    }
    for part in path.split('/').filter(|part| !part.is_empty()) {
        match part {
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Texts of the checkout that may cite: comments and literals of code, documents, help pages, the man page, scripts.
fn citing_texts(root: &Path, rust: &[RustFile]) -> Vec<(String, String)> {
    // The rules' own tests cite what does not exist.
    let rust = rust.iter().filter(|file| !file.path.starts_with("tests/text/"));
    let mut texts: Vec<_> = rust.map(|file| (file.path.clone(), text_of(file))).collect();
    let other_files = files(root, |path| {
        let is_script = [".py", ".sh", ".toml"].iter().any(|ending| path.ends_with(ending));
        let is_program = ["tests/run", "tests/miri", ".ci/run", "launcher/wheel", "justfile"].contains(&path);
        let is_document = [".md", ".txt", ".1"].iter().any(|ending| path.ends_with(ending));
        // The limits list citations that lead nowhere yet.
        (is_script || is_program || is_document) && !path.starts_with("tests/text/")
    });
    for path in other_files {
        let text = fs::read_to_string(root.join(&path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        let text = if path.ends_with(".1") { without_roff(&text) } else { text };
        texts.push((path, text));
    }
    texts
}

/// A man page without its escapes: `\-` is a hyphen, `\&` nothing, `\fB` a font.
fn without_roff(text: &str) -> String {
    let text = text.replace("\\-", "-").replace("\\&", "");
    ["\\fB", "\\fI", "\\fR"].iter().fold(text, |text, font| text.replace(font, ""))
}

/// A comment goes on over lines; a literal is a text of its own.
fn text_of(file: &RustFile) -> String {
    let mut text = String::new();
    for comment in &file.source.comments {
        text.push_str(&comment.text);
        text.push('\n');
    }
    for literal in &file.source.literals {
        text.push_str(".\n");
        text.push_str(&literal.text);
    }
    text
}

/// The citations that lead nowhere, as `FILE: CITATION`, each once.
#[must_use]
pub fn broken_citations(root: &Path, rust: &[RustFile]) -> Vec<String> {
    let documents = Documents::read(root);
    let mut found = BTreeSet::new();
    for file in rust.iter().filter(|file| !file.path.starts_with("tests/text/")) {
        let missing = missing_modules(&file.path, &file.source, &documents.paths);
        found.extend(missing.into_iter().map(|module| format!("{}: {module}", file.path)));
    }
    for (path, text) in citing_texts(root, rust) {
        for citation in citations(&text) {
            if !documents.has(&path, &citation) {
                found.insert(format!("{path}: {citation}"));
            }
        }
        if path == ARCHITECTURE {
            let missing = item_paths(&text).into_iter().filter(|item| !is_declared(item, rust));
            found.extend(missing.map(|item| format!("{path}: {item}")));
            let unknown = unknown_identifiers(&text, rust);
            found.extend(unknown.into_iter().map(|name| format!("{path}: {name}")));
        }
    }
    found.into_iter().collect()
}

/// The modules that a table of files or rooms in a module's documentation names, and that do not exist.
fn missing_modules(path: &str, source: &Source, paths: &BTreeSet<String>) -> Vec<String> {
    let folder = module_folder(path);
    let is_module = |name: &str| {
        [format!("{folder}/{name}.rs"), format!("{folder}/{name}/mod.rs")]
            .iter()
            .any(|path| paths.contains(path))
    };
    let mut is_table_of_modules = false;
    let mut missing = Vec::new();
    for comment in source.comments.iter().filter(|comment| comment.is_doc) {
        let Some(row) = comment.text.strip_prefix('|') else {
            is_table_of_modules = false;
            continue;
        };
        let first = row.split('|').next().unwrap_or_default().trim();
        is_table_of_modules |= ["file", "module", "room"].contains(&first);
        if is_table_of_modules {
            let names = first.split('`').skip(1).step_by(2).filter(|name| !is_module(name));
            missing.extend(names.map(|name| format!("module {name}")));
        }
    }
    missing
}

#[cfg(test)]
mod self_test {
    use super::*;

    const CONTRACT_TEXT: &str = "# The contract\n## 3. Life\n### 3.6 Log tree [R]\n## 8. Quirks\n| 8.22 | x |\n\
                                 1. A row.\n## Appendix A. Checks\n```\n# 9. not a title\n```\n";

    fn documents() -> Documents {
        let guide = "# Guide\n## Ctrl-C, and `kill`\n";
        let architecture =
            "# A\n## Invariants\n\n1. One.\n2. Two.\n- **R7** Leaving.\n## Threads\n3. Three.\n";
        let all = [(CONTRACT, CONTRACT_TEXT), ("docs/guide.md", guide), (ARCHITECTURE, architecture)];
        let documents = all.map(|(path, text)| (path.to_owned(), Document::parse(text))).into();
        let paths = all.map(|(path, _)| path).into_iter().chain(["launcher/src/agent/state.rs"]);
        Documents { documents, paths: paths.map(str::to_owned).collect() }
    }

    fn resolves(citing: &str, text: &str) -> Vec<bool> {
        let documents = documents();
        citations(text).iter().map(|citation| documents.has(citing, citation)).collect()
    }

    #[test]
    fn sections_rows_and_appendices_of_the_contract_resolve() {
        assert_eq!(resolves("a.rs", "contract 3.6, 8.22 and 3"), [true; 3]);
        assert_eq!(resolves("a.rs", "appendix A; contract 9, 8.23, 3.7"), [true, false, false, false]);
        assert_eq!(resolves("a.rs", "appendix B; contract 8.1, 1"), [false, true, false]);
    }

    #[test]
    fn links_resolve_from_the_citing_folder_and_from_docs() {
        assert_eq!(
            resolves("docs/other.md", "[x](guide.md#ctrl-c-and-kill) [y](guide.md#ctrl)"),
            [true, false]
        );
        assert_eq!(resolves("README.md", "`guide.md`, `docs/guide.md`, `docs/none.md`"), [true, true, false]);
        assert_eq!(resolves("docs/dev/x.md", "[x](../guide.md) [y](../../guide.md)"), [true, false]);
    }

    #[test]
    fn markdown_link_resolves_only_from_the_citing_folder() {
        assert_eq!(resolves("README.md", "[x](guide.md), [y](docs/guide.md#ctrl)"), [false, false]);
        assert_eq!(resolves("docs/other.md", "[x](docs/guide.md), [y](agent/state.rs)"), [false, false]);
        assert_eq!(
            resolves("docs/other.md", "[x](../ARCHITECTURE.md#invariants), [y](../docs)"),
            [true, true]
        );
        assert_eq!(resolves("a.rs", "[x](item)"), [true]);
    }

    #[test]
    fn cited_title_is_in_the_document() {
        assert_eq!(
            resolves("a.rs", "docs/guide.md, \"Ctrl-C, and kill\"; docs/guide.md \"Ctrl\""),
            [true, false, true, true]
        );
    }

    #[test]
    fn link_without_path_leads_to_its_own_document() {
        assert_eq!(resolves("docs/guide.md", "[x](#ctrl-c-and-kill) [y](#ctrl)"), [true, false]);
        assert_eq!(resolves("docs/guide.md", "[x](../launcher/src/) [y](gone.txt)"), [true, false]);
        assert_eq!(resolves("docs/guide.md", "[x](dev/gone.txt)"), [false]);
    }

    #[test]
    fn man_page_cites_without_its_escapes() {
        let text = without_roff("see \\fBdocs/guide.md\\fR, docs/\\&no\\-guide.md");
        assert_eq!(resolves("rankrun.1", &text), [true, false]);
    }

    #[test]
    fn help_pages_and_the_man_page_are_searched() {
        let texts = citing_texts(&crate::checkout::root(), &[]);
        for path in ["launcher/src/cli/help/stop.txt", "launcher/wheel-data/data/share/man/man1/rankrun.1"] {
            assert!(texts.iter().any(|(found, _)| found == path), "{path}");
        }
    }

    #[test]
    fn invariants_are_the_numbers_below_their_title() {
        assert_eq!(
            resolves("a.rs", "invariants 1, 2 and 3; invariant R7; invariant R8"),
            [true, true, false, true, false]
        );
    }

    #[test]
    fn code_resolves_by_the_end_of_its_path() {
        assert_eq!(resolves("ARCHITECTURE.md", "`agent/state.rs` `agent/gone.rs`"), [true, false]);
        assert_eq!(resolves("ARCHITECTURE.md", "state.rs, gone.rs, tate.rs"), [true, false, false]);
        assert_eq!(
            resolves("ARCHITECTURE.md", "`agent/`, `launcher/src`, `agent/st`, `control/`"),
            [true, true, false, false]
        );
    }

    #[test]
    fn module_tables_name_files_beside_the_module() {
        let broken = |header: &str, row: &str| {
            let text =
                format!("//! Title.\n//!\n//! | {header} | what |\n//! |---|---|\n//! | {row} | x |\n");
            let source = crate::source::Source::parse(&text);
            let paths = ["launcher/src/agent/state.rs", "launcher/src/lib.rs"].map(str::to_owned).into();
            missing_modules("launcher/src/agent/mod.rs", &source, &paths)
        };
        assert_eq!(broken("file", "`state`"), [""; 0]);
        assert_eq!(broken("file", "`state`, `gone`"), ["module gone"]);
        assert_eq!(broken("room", "[`gone`]"), ["module gone"]);
        assert_eq!(broken("status", "`gone`"), [""; 0]);
    }
}
