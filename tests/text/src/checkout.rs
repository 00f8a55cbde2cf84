//! The files of the checkout that the rules are about.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::names::test_only;
use crate::source::Source;

/// Folders without text of ours, by name.
const SKIPPED: [&str; 6] =
    ["target", "proptest-regressions", "node_modules", "__pycache__", "venv", "shared"];

/// The packages that users run; one within another comes first.
pub const PACKAGES: [&str; 7] = [
    "worker-runtime/adapters/candle",
    "worker-runtime/contract",
    "worker-runtime",
    "launcher/core",
    "launcher/host",
    "launcher/tools",
    "launcher",
];

/// A Rust file.
#[derive(Debug)]
pub struct RustFile {
    /// Its path below the root, with `/`.
    pub path: String,
    /// Taken apart.
    pub source: Source,
    /// Whether only tests, benches and fixtures compile it.
    pub is_test: bool,
    /// Lines that only tests compile.
    test_lines: Vec<std::ops::Range<usize>>,
}

impl RustFile {
    /// A file of that path. What tests alone compile is known only beside its neighbours.
    #[must_use]
    pub fn new(path: &str, text: &str) -> Self {
        let is_test = is_test_path(path);
        Self { path: path.to_owned(), source: Source::parse(text), is_test, test_lines: Vec::new() }
    }

    /// Whether users run this line.
    #[must_use]
    pub fn is_product(&self, line: usize) -> bool {
        !self.is_test && !self.test_lines.iter().any(|lines| lines.contains(&line))
    }

    /// The room: the folder below a `src`, else two folders deep.
    #[must_use]
    pub fn room(&self) -> String {
        let folder = self.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let parts: Vec<_> = folder.split('/').collect();
        let depth = parts.iter().position(|part| *part == "src").filter(|at| *at < 3).map_or(2, |at| at + 2);
        parts[..depth.min(parts.len())].join("/")
    }

    /// The package that users run, if this is a file of one.
    #[must_use]
    pub fn package(&self) -> Option<&'static str> {
        PACKAGES.into_iter().find(|package| self.path.starts_with(&format!("{package}/")))
    }
}

/// The root of the checkout.
///
/// # Panics
/// Never: this package is two folders below it.
#[must_use]
pub fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("this package is two folders below the root").to_owned()
}

/// The paths below the root for which `wanted` holds, in alphabetical order.
///
/// # Panics
/// When a folder cannot be read.
#[must_use]
pub fn files(root: &Path, wanted: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    let mut pending = vec![root.to_owned()];
    while let Some(folder) = pending.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the checkout can be read") {
            let entry = entry.expect("a folder of the checkout can be read");
            let name = entry.file_name().to_string_lossy().into_owned();
            let kind = entry.file_type().expect("a file has a type");
            let is_hidden = name.starts_with('.') && name != ".ci" && name != ".config" && name != ".cargo";
            if kind.is_dir() && !SKIPPED.contains(&&*name) && !is_hidden {
                pending.push(entry.path());
            } else if kind.is_file() {
                let path = entry.path();
                let path =
                    path.strip_prefix(root).expect("it is below the root").to_string_lossy().into_owned();
                found.extend(Some(path).filter(|path| wanted(path)));
            }
        }
    }
    found.sort();
    found
}

/// Every Rust file of the checkout, taken apart.
///
/// # Panics
/// When a file cannot be read.
#[must_use]
pub fn rust_files(root: &Path) -> Vec<RustFile> {
    let paths = files(root, |path| path.ends_with(".rs"));
    let read = |path: String| {
        let text = fs::read_to_string(root.join(&path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        RustFile::new(&path, &text)
    };
    let mut read: Vec<_> = paths.into_iter().map(read).collect();
    let mut test_modules = BTreeSet::new();
    for file in &mut read {
        let found = test_only(&file.source.code);
        test_modules
            .extend(found.modules.iter().map(|module| format!("{}/{module}", module_folder(&file.path))));
        file.test_lines = found.lines;
    }
    for file in &mut read {
        let module = file.path.trim_end_matches(".rs");
        file.is_test |= test_modules.iter().any(|test| {
            module.strip_prefix(&**test).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        });
    }
    read
}

/// Tests, benches, examples and what serves them.
fn is_test_path(path: &str) -> bool {
    path.starts_with("tests/")
        || path.starts_with("examples/tests/")
        || path.contains("/benches/")
        || path.contains("/tests/")
        || path.contains("/simulation/")
        || path.ends_with("_tests.rs")
        || path.ends_with("/tests.rs")
}

/// The folder in which Rust looks for the modules of a file.
#[must_use]
pub fn module_folder(path: &str) -> String {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    match name {
        "mod.rs" | "lib.rs" | "main.rs" => folder.to_owned(),
        _ => format!("{folder}/{}", name.trim_end_matches(".rs")),
    }
}

#[cfg(test)]
mod self_test {
    use super::*;

    #[test]
    fn file_declared_under_cfg_test_is_a_test_with_its_folder() {
        let files = rust_files(&root());
        let of = |path: &str| files.iter().find(|file| file.path == path).map(|file| file.is_test);
        assert_eq!(of("launcher/core/src/agent/simulation/world.rs"), Some(true));
        assert_eq!(of("launcher/src/main.rs"), Some(false));
    }

    #[test]
    fn room_is_the_folder_below_the_source() {
        let room = |path: &str| RustFile::new(path, "").room();
        assert_eq!(room("launcher/core/src/agent/state/start.rs"), "launcher/core/src/agent");
        assert_eq!(room("launcher/src/main.rs"), "launcher/src");
        assert_eq!(room("tests/e2e/nodes/firewalls.rs"), "tests/e2e");
        assert_eq!(room("worker-runtime/contract/src/env.rs"), "worker-runtime/contract/src");
    }
}
