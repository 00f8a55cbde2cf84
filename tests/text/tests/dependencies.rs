//! The crates of the launcher and their rooms depend downwards only, and the pure crate has no IO.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::LazyLock;

use text_rules::checkout;

/// The crates from the lowest to the highest, with the name by which another imports it.
const CRATES: [(&str, &str); 4] = [
    ("launcher/core", "rankrun_core"),
    ("launcher/host", "rankrun_host"),
    ("launcher/tools", "rankrun_tools"),
    ("launcher", "rankrun"),
];

/// What the pure crate may link: data and text, no system call.
const WITHOUT_IO: [&str; 11] = [
    "rankrun-contract",
    "base64",
    "bytesize",
    // An option is described where its type is. Only the command line runs it.
    "clap",
    "humantime",
    "memchr",
    "serde",
    "serde_json",
    "shlex",
    "thiserror",
    // The type alone: the feature that makes random ones is the host's.
    "uuid",
];

/// Modules and functions of the standard library that ask the system.
const IO_PATHS: [&str; 14] = [
    "std::fs",
    "std::net",
    "std::process",
    "std::thread",
    "std::env",
    "std::os::fd",
    "std::os::linux",
    "std::os::unix::fs",
    "std::os::unix::io",
    "std::os::unix::net",
    "std::os::unix::process",
    "std::io::std",
    "std::time::Instant::now",
    "std::time::SystemTime::now",
];

/// Methods of a path that ask the file system.
const IO_METHODS: [&str; 10] = [
    "exists",
    "try_exists",
    "is_file",
    "is_dir",
    "is_symlink",
    "metadata",
    "symlink_metadata",
    "canonicalize",
    "read_dir",
    "read_link",
];

/// Words that read the clock, draw random bits, print, or call C.
const IO_WORDS: [&str; 8] = [
    "Instant::now",
    "SystemTime::now",
    ".elapsed()",
    "Uuid::new_v",
    "println!",
    "print!",
    "dbg!",
    "extern \"C\"",
];

/// The Rust files of the checkout.
static FILES: LazyLock<Vec<checkout::RustFile>> = LazyLock::new(|| checkout::rust_files(&checkout::root()));

/// The packages that users of a manifest's package link, on any system.
fn linked(manifest: &str) -> BTreeSet<String> {
    let manifest: toml::Table = manifest.parse().expect("a manifest is TOML");
    let table = |value: &toml::Value, key: &str| value.get(key).and_then(toml::Value::as_table).cloned();
    let whole = toml::Value::Table(manifest);
    let targets = table(&whole, "target").unwrap_or_default();
    let places = [whole].into_iter().chain(targets.into_iter().map(|(_, target)| target));
    let sections = places.flat_map(|place| {
        ["dependencies", "build-dependencies"].map(|section| table(&place, section).unwrap_or_default())
    });
    // A renamed package counts by its own name.
    let package = |(name, value): (String, toml::Value)| {
        value.get("package").and_then(toml::Value::as_str).map_or(name, str::to_owned)
    };
    sections.flatten().map(package).collect()
}

fn linked_by(folder: &str) -> BTreeSet<String> {
    let path = checkout::root().join(folder).join("Cargo.toml");
    linked(&fs::read_to_string(&path).expect("a manifest can be read"))
}

/// The paths that code names below a root, groups as in `use std::{fs, io::{self, Read}}` taken apart.
fn paths_below<'a>(root: &'a str, code: &'a str) -> impl Iterator<Item = String> + 'a {
    let is_whole =
        |at: usize| !code[..at].ends_with(|letter: char| letter.is_alphanumeric() || letter == '_');
    let starts = code.match_indices(root).filter(move |(at, _)| is_whole(*at));
    starts
        .filter_map(|(at, _)| code[at + root.len()..].strip_prefix("::"))
        .flat_map(move |tree| expand(root, tree).0)
}

/// The paths of a use tree behind `prefix::`, and what follows the tree.
fn expand<'a>(prefix: &str, tree: &'a str) -> (Vec<String>, &'a str) {
    let tree = tree.trim_start();
    let Some(mut group) = tree.strip_prefix('{') else {
        let end = tree.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(tree.len());
        let (name, rest) = tree.split_at(end);
        let path = if name == "self" { prefix.to_owned() } else { format!("{prefix}::{name}") };
        return match rest.strip_prefix("::") {
            Some(rest) => expand(&path, rest),
            None => (vec![path], rest),
        };
    };
    let mut paths = Vec::new();
    while !group.is_empty() {
        let (found, rest) = expand(prefix, group);
        paths.extend(found);
        // `as name`
        let Some(at) = rest.find([',', '}']) else { return (paths, "") };
        group = rest[at + 1..].trim_start();
        if rest[at..].starts_with('}') {
            return (paths, group);
        }
        if let Some(rest) = group.strip_prefix('}') {
            return (paths, rest);
        }
    }
    (paths, "")
}

/// What code asks the system with, if it does.
fn system_access(code: &str) -> Option<String> {
    let is_io = |path: &String| {
        IO_PATHS.iter().any(|io| {
            format!("{path}::").starts_with(&format!("{io}::"))
                || (*io == "std::io::std" && path.starts_with(io))
        })
    };
    let methods = IO_METHODS
        .iter()
        .flat_map(|name| [format!(".{name}("), format!("Path::{name}"), format!("PathBuf::{name}")]);
    let mut words = IO_WORDS.iter().map(|word| (*word).to_owned()).chain(methods);
    paths_below("std", code).find(is_io).or_else(|| words.find(|word| code.contains(word.as_str())))
}

/// The lines of code that users run, of each file below a folder.
fn product_code(folder: &str) -> Vec<(String, String)> {
    let root = checkout::root();
    let source = format!("{folder}/src/");
    let files = FILES.iter().filter(|file| file.path.starts_with(&source));
    let product = |file: &checkout::RustFile| {
        let text = fs::read_to_string(root.join(&file.path)).expect("a source file can be read");
        let lines = text
            .lines()
            .enumerate()
            .filter(|(at, line)| file.is_product(at + 1) && !line.trim_start().starts_with("//"));
        let code: Vec<&str> = lines.map(|(_, line)| line).collect();
        (file.path.clone(), code.join("\n"))
    };
    files.filter(|file| !file.is_test && !file.path.ends_with("/fake.rs")).map(product).collect()
}

/// The room of a file: the module right below the root of its crate.
fn room<'a>(path: &'a str, folder: &str) -> &'a str {
    let path = path.strip_prefix(folder).and_then(|path| path.strip_prefix("/src/")).unwrap_or_default();
    path.split('/').next().unwrap_or_default().trim_end_matches(".rs")
}

/// The rooms that a file names by `super` alone, past the root of its own room.
fn rooms_by_super(path: &str, folder: &str, code: &str) -> Vec<String> {
    let source = format!("{folder}/src/");
    let file = path.strip_prefix(&source).unwrap_or_default().trim_end_matches(".rs");
    let depth = file.trim_end_matches("/mod").split('/').count();
    let whole = |path: &String| path.split("::").take_while(|part| *part == "super").count() == depth;
    let room = |path: String| path.split("::").nth(depth).map(str::to_owned);
    // Behind another one it is a part of that path.
    let outer = code.replace("::super", "::super_");
    paths_below("super", &outer)
        .map(|path| path.replace("super_", "super"))
        .filter(whole)
        .filter_map(room)
        .collect()
}

/// The rooms that each room imports from its own crate.
fn imports(folder: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, code) in product_code(folder) {
        let importing = room(&path, folder);
        if ["lib", "main"].contains(&importing) {
            continue;
        }
        let named = paths_below("crate", &code).filter_map(|path| Some(path.split("::").nth(1)?.to_owned()));
        let own = imports.entry(importing.to_owned()).or_default();
        own.extend(named.chain(rooms_by_super(&path, folder, &code)).filter(|name| name != importing));
    }
    imports
}

#[test]
fn pure_crate_links_no_crate_with_io() {
    let linked = linked_by("launcher/core");
    let allowed = WITHOUT_IO.map(str::to_owned).into_iter().collect::<BTreeSet<_>>();
    assert_eq!(linked.difference(&allowed).collect::<Vec<_>>(), [""; 0].iter().collect::<Vec<_>>());
    assert!(linked.contains("rankrun-contract"), "{linked:?}");
}

#[test]
fn pure_crate_asks_the_system_nothing() {
    let files = product_code("launcher/core");
    assert!(files.len() > 100, "{}", files.len());
    for (path, code) in files {
        assert_eq!(system_access(&code), None, "{path}");
    }
}

#[test]
fn system_access_is_found_in_every_form() {
    for (code, found) in [
        ("use std::fs;", "std::fs"),
        ("use std::{fs, io};", "std::fs"),
        (
            "use std::{\n    collections::{BTreeMap, BTreeSet},\n    os::{unix::{ffi::OsStrExt, net}},\n};",
            "std::os::unix::net",
        ),
        ("use std::{path::Path as P, fs::{self, File}};", "std::fs"),
        ("use std::io::{self, stdout};", "std::io::stdout"),
        ("let now = std::time::SystemTime::now();", "std::time::SystemTime::now"),
        ("std::process::exit(1)", "std::process::exit"),
        ("if path.exists() {", ".exists("),
        ("let real = path\n    .canonicalize()?;", ".canonicalize("),
        ("found.filter(|path| Path::exists(path))", "Path::exists"),
        ("let now = Instant::now();", "Instant::now"),
        ("let passed = start.elapsed();", ".elapsed()"),
        ("let id = uuid::Uuid::new_v4();", "Uuid::new_v"),
        ("eprintln!(\"a\");", "println!"),
    ] {
        assert_eq!(system_access(code).as_deref(), Some(found), "{code}");
    }
    for code in [
        "use std::{collections::BTreeMap, fmt, path::{Path, PathBuf}};",
        "use std::os::unix::ffi::OsStrExt;",
        "use std::io::{self, Read};",
        "use std::time::{Duration, Instant};",
        "use my_std::fs;",
        "let found = self.exists;",
    ] {
        assert_eq!(system_access(code), None, "{code}");
    }
}

#[test]
fn room_is_found_behind_super() {
    let rooms = |path: &str, code: &str| rooms_by_super(&format!("launcher/src/{path}"), "launcher", code);
    assert_eq!(rooms("agent/state/stop.rs", "use super::super::super::device::Choice;"), ["device"]);
    assert_eq!(rooms("agent/mod.rs", "use super::{device, spec::Spec};"), ["device", "spec"]);
    assert_eq!(rooms("agent/state/stop.rs", "use super::super::policy;"), [""; 0]);
}

#[test]
fn linked_packages_are_found_in_every_table() {
    let manifest = "[dependencies]\nserde.workspace = true\nio = { package = \"tokio\", version = \"1\" }\n\
        [dependencies.uuid]\nversion = \"1\"\n[dev-dependencies]\nproptest = \"1\"\n\
        [target.'cfg(unix)'.dependencies]\nnix = \"1\"\n[target.'cfg(windows)'.build-dependencies.cc]\nversion = \"1\"\n";
    let expected = ["cc", "nix", "serde", "tokio", "uuid"].map(str::to_owned).into_iter().collect();
    assert_eq!(linked(manifest), expected);
}

#[test]
fn crates_depend_downwards_only() {
    for (at, (folder, _)) in CRATES.iter().enumerate() {
        let linked = linked_by(folder);
        for (_, above) in &CRATES[at..] {
            assert!(!linked.contains(&above.replace('_', "-")), "{folder} links {above}");
        }
    }
}

#[test]
fn rooms_import_downwards_only() {
    for (folder, _) in CRATES {
        let mut imports = imports(folder);
        assert!(!imports.is_empty(), "{folder}");
        // Rooms that import only rooms that are left out already, until nothing changes: what stays is a circle.
        while let Some(lowest) = imports
            .iter()
            .find(|(_, imported)| !imported.iter().any(|room| imports.contains_key(room)))
            .map(|(room, _)| room.clone())
        {
            imports.remove(&lowest);
        }
        assert_eq!(imports, BTreeMap::new(), "{folder}: these rooms import each other in a circle");
    }
}
