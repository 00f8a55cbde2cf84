//! Searches for NCCL's library.

#![expect(clippy::disallowed_methods, reason = "a shell: the variables that say where Python's packages are")]

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rankrun_contract::env::NCCL_LIBRARY;

/// File names: the runtime's, which the PyPI wheel and distributions use, and that of a development package.
const LIBRARY_NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
/// Path of the library in the PyPI wheel, below a folder of Python packages.
const WHEEL_LIBRARY_PATH: &str = "nvidia/nccl/lib/libnccl.so.2";
/// Folders of Python packages: pip's and Debian's.
const PACKAGE_FOLDERS: [&str; 2] = ["site-packages", "dist-packages"];

/// The environment variables that tell where libraries are.
#[derive(Debug, Default)]
pub(super) struct LibraryEnv {
    pub(super) named: Option<OsString>,
    pub(super) virtual_env: Option<OsString>,
    pub(super) conda_prefix: Option<OsString>,
    pub(super) path: OsString,
}

/// One place of the search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LibraryPlace {
    /// The user named this file; no other place is searched.
    Named { by: &'static str, file: PathBuf },
    /// A name for the loader's own search.
    Loader(&'static str),
    /// The file in the PyPI wheel.
    Wheel(PathBuf),
    /// A Python prefix without the wheel.
    NoWheel { of: &'static str, prefix: PathBuf },
}

impl LibraryEnv {
    /// Reads the environment of this process.
    pub(super) fn from_process() -> Self {
        let filled = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        Self {
            named: filled(NCCL_LIBRARY),
            virtual_env: filled("VIRTUAL_ENV"),
            conda_prefix: filled("CONDA_PREFIX"),
            path: filled("PATH").unwrap_or_default(),
        }
    }

    /// All places in search order. Python is not started: its prefixes follow from its path.
    pub(super) fn search_places(&self, explicit: Option<&Path>) -> Vec<LibraryPlace> {
        let named = explicit.map(|file| ("the program", file.to_owned()));
        let variable = self.named.as_ref().map(|file| (NCCL_LIBRARY, PathBuf::from(file)));
        if let Some((by, file)) = named.or(variable) {
            return vec![LibraryPlace::Named { by, file }];
        }
        let mut places: Vec<_> = LIBRARY_NAMES.into_iter().map(LibraryPlace::Loader).collect();
        let mut prefixes = Vec::new();
        prefixes.extend(self.virtual_env.iter().map(|prefix| ("VIRTUAL_ENV", PathBuf::from(prefix))));
        prefixes.extend(self.conda_prefix.iter().map(|prefix| ("CONDA_PREFIX", PathBuf::from(prefix))));
        prefixes.extend(python_prefixes(&self.path).into_iter().map(|prefix| ("the python in PATH", prefix)));
        let mut known = Vec::new();
        for (of, prefix) in prefixes {
            if known.contains(&prefix) {
                continue;
            }
            let wheels = wheel_libraries(&prefix);
            if wheels.is_empty() {
                places.push(LibraryPlace::NoWheel { of, prefix: prefix.clone() });
            }
            places.extend(wheels.into_iter().map(LibraryPlace::Wheel));
            known.push(prefix);
        }
        places
    }
}

/// The prefixes of the first `python3` and `python` in `PATH`: for a virtual environment the environment
/// itself, then the installation from which it was made.
fn python_prefixes(path: &OsStr) -> Vec<PathBuf> {
    let mut prefixes = Vec::new();
    for name in ["python3", "python"] {
        let Some(program) =
            std::env::split_paths(path).map(|folder| folder.join(name)).find(|path| is_executable(path))
        else {
            continue;
        };
        let real = fs::canonicalize(&program).ok();
        prefixes.extend(
            [Some(program), real].into_iter().flatten().filter_map(|program| program_prefix(&program)),
        );
    }
    prefixes
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// `/usr` for `/usr/bin/python3`.
fn program_prefix(program: &Path) -> Option<PathBuf> {
    program.parent()?.parent().map(Path::to_owned)
}

/// The library of the wheel below a prefix, for every Python version there, newest first.
fn wheel_libraries(prefix: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for lib in ["lib", "lib64"].map(|lib| prefix.join(lib)) {
        let versions = fs::read_dir(&lib).into_iter().flatten().flatten().map(|entry| entry.file_name());
        let mut versions: Vec<_> = versions.filter_map(|name| Some((python_version(&name)?, name))).collect();
        versions.sort_by(|a, b| b.cmp(a));
        for (_, version) in versions {
            let files =
                PACKAGE_FOLDERS.map(|packages| lib.join(&version).join(packages).join(WHEEL_LIBRARY_PATH));
            found.extend(files.into_iter().filter(|file| file.exists()));
        }
    }
    // `lib64` is usually a link to `lib`.
    let mut files = Vec::new();
    found.retain(|file| {
        let real = fs::canonicalize(file).ok();
        let is_new = !files.contains(&real);
        files.push(real);
        is_new
    });
    found
}

/// The version of `python3.11` after the 3; empty for Debian's `python3`.
fn python_version(name: &OsStr) -> Option<Vec<u32>> {
    let version = name.to_str()?.strip_prefix("python3")?;
    version.split('.').skip(1).map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_version_is_parsed_and_ordered() {
        assert_eq!(python_version(OsStr::new("python3.11")), Some(vec![11]));
        assert_eq!(python_version(OsStr::new("python3")), Some(vec![]));
        assert!(python_version(OsStr::new("python3.9")) < python_version(OsStr::new("python3.11")));
        assert_eq!(python_version(OsStr::new("python2.7")), None);
        assert_eq!(python_version(OsStr::new("python3.x")), None);
    }

    #[test]
    fn named_library_is_only_place_searched() {
        let surroundings = LibraryEnv { named: Some("/a".into()), ..LibraryEnv::default() };
        let named = |by, file: &str| vec![LibraryPlace::Named { by, file: file.into() }];
        assert_eq!(surroundings.search_places(None), named(NCCL_LIBRARY, "/a"));
        assert_eq!(surroundings.search_places(Some(Path::new("/b"))), named("the program", "/b"));
    }
}
