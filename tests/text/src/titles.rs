//! Sections that a text cites by their quoted titles: `docs/a.md, "The title"`, and `"The title" of docs/a.md`.

use crate::citations::{Citation, Place, path, words};

/// The citations by title of a text.
pub(crate) fn cited_titles(text: &str) -> Vec<Citation> {
    let parts: Vec<&str> = text.split('"').collect();
    let cited = parts.windows(3).filter_map(|parts| {
        let [before, title, behind] = parts else { return None };
        let path = document_before(before).or_else(|| document_behind(behind))?;
        let begins_as_title = title.starts_with(|letter: char| letter.is_alphanumeric() || letter == '`');
        if !begins_as_title || title.ends_with(char::is_whitespace) {
            return None;
        }
        let title = title.split_whitespace().collect::<Vec<_>>().join(" ");
        Some(Citation::Document { path, place: Some(Place::Title(title)) })
    });
    cited.collect()
}

/// The document at the end of a text, before the title.
fn document_before(text: &str) -> Option<String> {
    let text = text.trim_end_matches(['(', ' ', '\n']);
    if text.ends_with(['.', ';']) {
        return None;
    }
    document(words(text).last()?.plain)
}

/// The document of `of docs/a.md`, behind the title.
fn document_behind(text: &str) -> Option<String> {
    let words = words(text);
    let [preposition, named, ..] = &words[..] else { return None };
    if ["in", "of"].contains(&preposition.plain) { document(named.plain) } else { None }
}

fn document(word: &str) -> Option<String> {
    match path(word)? {
        Citation::Document { path, .. } => Some(path),
        _ => None,
    }
}

/// The first cell of a row, or the bold beginning of a paragraph.
pub(crate) fn row_title(line: &str) -> Option<String> {
    let cell = line.strip_prefix("| ").and_then(|row| row.split(" |").next());
    let bold = || line.strip_prefix("**").and_then(|rest| rest.split("**").next());
    cell.or_else(bold).map(plain_title)
}

/// A title without its signs, as a text may quote it.
pub(crate) fn plain_title(title: &str) -> String {
    let words = title.split_whitespace().map(|word| word.replace('`', "").to_lowercase());
    words.collect::<Vec<_>>().join(" ").trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod self_test {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        cited_titles(text).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn quoted_title_beside_document_is_cited() {
        assert_eq!(found("see docs/a.md, \"The title\"."), ["docs/a.md \"The title\""]);
        assert_eq!(found("the row \"a new\nvendor\" of [a.md](a.md#x)"), ["a.md \"a new vendor\""]);
        assert_eq!(
            found("(`docs/a.md` \"One\"); \"Two\" in docs/b.md"),
            ["docs/a.md \"One\"", "docs/b.md \"Two\""]
        );
    }

    #[test]
    fn other_quoted_text_is_not_cited() {
        for text in [
            "readme = \"../a.md\"\nlicense = \"MIT\"",
            "see docs/a.md. \"Title\" is a word",
            "\"a\" or docs/a.md",
        ] {
            assert_eq!(found(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn row_and_bold_beginning_are_titles_without_their_signs() {
        assert_eq!(row_title("| a `new` vendor | x |"), Some("a new vendor".to_owned()));
        assert_eq!(row_title("**Own spawn.** A worker"), Some("own spawn".to_owned()));
        assert_eq!(row_title("A worker"), None);
    }
}
