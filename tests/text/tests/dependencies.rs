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
const WITHOUT_IO: [&str; 10] = [
    "rankrun-contract",
    "base64",
    "bytesize",
    // An option is described where its type is. Only the command line runs it.
    "clap",
    "humantime",
    "memchr",
    "serde",
    "serde_json",
    "thiserror",
    // The type alone: the feature that makes random ones is the host's.
    "uuid",
];

/// Modules of the standard library that ask the system.
const IO_MODULES: [&str; 7] =
    ["std::fs", "std::net", "std::process", "std::thread", "std::env", "std::os::fd", "std::io::std"];

/// The Rust files of the checkout.
static FILES: LazyLock<Vec<checkout::RustFile>> = LazyLock::new(|| checkout::rust_files(&checkout::root()));

/// The names in a section of a manifest.
fn manifest_names(folder: &str, section: &str) -> BTreeSet<String> {
    let path = checkout::root().join(folder).join("Cargo.toml");
    let text = fs::read_to_string(&path).expect("a manifest can be read");
    let lines = text.lines().skip_while(|line| *line != section).skip(1);
    let lines = lines.take_while(|line| !line.starts_with('['));
    lines.filter_map(|line| Some(line.split_once('=')?.0.trim().to_owned())).collect()
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

/// The rooms that each room imports from its own crate.
fn imports(folder: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, code) in product_code(folder) {
        let importing = room(&path, folder);
        if ["lib", "main"].contains(&importing) {
            continue;
        }
        let named = code.split("crate::").skip(1).flat_map(|rest| {
            // `crate::{a, b::c}` names several rooms.
            let list = rest.strip_prefix('{').map_or(rest, |list| list.split('}').next().unwrap_or_default());
            let count = if rest.starts_with('{') { usize::MAX } else { 1 };
            list.split(", ")
                .take(count)
                .map(|name| name.split(|c: char| !c.is_alphanumeric() && c != '_').next())
        });
        let own = imports.entry(importing.to_owned()).or_default();
        own.extend(named.flatten().filter(|name| *name != importing).map(str::to_owned));
    }
    imports
}

#[test]
fn pure_crate_links_no_crate_with_io() {
    let linked = manifest_names("launcher/core", "[dependencies]");
    let allowed = WITHOUT_IO.map(str::to_owned).into_iter().collect::<BTreeSet<_>>();
    assert_eq!(linked.difference(&allowed).collect::<Vec<_>>(), [""; 0].iter().collect::<Vec<_>>());
    assert!(linked.contains("rankrun-contract"), "{linked:?}");
}

#[test]
fn pure_crate_asks_the_system_nothing() {
    let files = product_code("launcher/core");
    assert!(files.len() > 100, "{}", files.len());
    for (path, code) in files {
        let found = IO_MODULES.iter().find(|module| code.contains(**module));
        assert_eq!(found, None, "{path}");
    }
}

#[test]
fn crates_depend_downwards_only() {
    for (at, (folder, _)) in CRATES.iter().enumerate() {
        let linked = manifest_names(folder, "[dependencies]");
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
