//! The guides as a book: every guide has its place in `docs/SUMMARY.md`, and no link leads out of the book.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use harness::{Scratch, checkout, print_notice};

/// The targets of Markdown links.
fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next())
}

/// The pages of the table of contents.
fn pages() -> Vec<String> {
    let summary =
        fs::read_to_string(checkout().join("docs/SUMMARY.md")).expect("the book has a table of contents");
    links(&summary).map(str::to_owned).collect()
}

#[test]
fn guide_has_one_place_in_the_table_of_contents() {
    let pages = pages();
    let all: BTreeSet<_> = pages.iter().cloned().collect();
    assert_eq!(all.len(), pages.len(), "a page is listed twice: {pages:?}");
    let folder = fs::read_dir(checkout().join("docs")).expect("the guides are there");
    let names = folder.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned());
    let guides = names.filter(|name| name.ends_with(".md") && name != "SUMMARY.md");
    let missing: Vec<_> = guides.filter(|name| !all.contains(name)).collect();
    assert!(missing.is_empty(), "docs/SUMMARY.md does not have {missing:?}");
}

/// Whether each link of a page leads to a page of the book is a matter of paths; `text-rules` looks for the place behind a `#`.
#[test]
fn link_of_a_guide_leads_to_another_guide() {
    let pages: BTreeSet<_> = pages().into_iter().map(PathBuf::from).collect();
    for page in &pages {
        let text = fs::read_to_string(checkout().join("docs").join(page));
        let text = text.unwrap_or_else(|error| panic!("docs/{}: {error}", page.display()));
        for link in links(&text).filter(|link| !link.contains("://")) {
            let path = link.split('#').next().unwrap_or_default();
            let target = if path.is_empty() { page.clone() } else { normal(&page.with_file_name(path)) };
            assert!(pages.contains(&target), "docs/{}: `{link}` leads out of the book", page.display());
        }
    }
}

/// Without `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            normal.pop();
        } else {
            normal.push(part);
        }
    }
    normal
}

/// The values of an attribute in a page of HTML.
fn attributes<'a>(html: &'a str, name: &str) -> BTreeSet<&'a str> {
    html.split(&format!(" {name}=\"")).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

#[test]
#[expect(clippy::disallowed_methods, reason = "runs mdBook as a reader does, and looks whether this is CI")]
fn built_pages_have_every_place_of_their_links() {
    let scratch = Scratch::new();
    let mut mdbook = Command::new("mdbook");
    let built = mdbook.arg("build").arg(checkout()).arg("--dest-dir").arg(scratch.path()).output();
    let Ok(built) = built else {
        assert!(std::env::var_os("CI").is_none(), "CI has no mdbook: `tests/run` installs it");
        print_notice("SKIPPED: no `mdbook` here: `tests/run book` installs it");
        return;
    };
    let log = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success() && !log.contains("WARN"), "{log}");
    let html = |page: &str| page.replace(".md", ".html");
    let read = |page: String| {
        let text = fs::read_to_string(scratch.path().join(&page));
        let text = text.unwrap_or_else(|error| panic!("{page}: {error}"));
        (PathBuf::from(page), text)
    };
    let built: BTreeMap<_, _> = pages().iter().map(|page| read(html(page))).collect();
    let mut count = 0;
    for (page, text) in &built {
        let (_, content) = text.split_once("<main>").expect("a page has its content");
        let content = content.split("</main>").next().unwrap_or_default();
        for link in attributes(content, "href").into_iter().filter(|link| !link.contains("://")) {
            let (path, place) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { page.clone() } else { normal(&page.with_file_name(path)) };
            let there =
                built.get(&target).unwrap_or_else(|| panic!("{}: no page for `{link}`", page.display()));
            let has_place = place.is_empty() || attributes(there, "id").contains(place);
            assert!(has_place, "{}: no place for `{link}`", page.display());
            count += 1;
        }
    }
    assert!(count > 100, "{count}");
}
