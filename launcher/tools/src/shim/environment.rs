//! Chooses the Python environment to change. Its data comes from the interpreter's own report ([`super::probe`]).

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::error::ShimError;
use super::script::Launcher;
use rankrun_core::facts::Facts;
use rankrun_host::program::{find_program, folder_of_launcher};

/// The program for the chosen Python, whose arguments are the launchers' packages: it prints texts between NUL bytes.
pub(super) const PROBE_SCRIPT: &str = include_str!("templates/probe.py");

/// A Python environment: a venv, a conda environment, or the folders of an installed Python.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PythonEnvironment {
    pub(super) python: PathBuf,
    pub(super) prefix: PathBuf,
    /// The folder of installed commands, such as `bin`.
    pub(super) scripts: PathBuf,
    /// The folder of installed packages (`site-packages`), with the `.pth` files of each start.
    pub(super) packages: PathBuf,
    /// The launchers' packages that it finds, wherever they are installed.
    pub(super) installs: BTreeMap<Launcher, PackageInstall>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PackageInstall {
    /// The folder of the package.
    pub(super) folder: PathBuf,
    /// The package's version, if the installation has it.
    pub(super) version: String,
}

impl PythonEnvironment {
    #[must_use]
    pub(super) fn has(&self, launcher: Launcher) -> bool {
        self.installs.contains_key(&launcher)
    }
}

/// The Python of the environment: the named one, else the one beside rankrun, else the active one.
///
/// # Errors
/// No Python is found there.
pub(super) fn choose_python(
    named: Option<&OsStr>,
    argv0: &OsStr,
    facts: &Facts,
) -> Result<PathBuf, ShimError> {
    if let Some(named) = named {
        let found = find_program(named, facts);
        return found.map(|python| facts.absolute(&python)).map_err(|problem| ShimError::NoSuchPython {
            named: named.to_string_lossy().into_owned(),
            problem,
        });
    }
    // A `python3` beside us in `/usr/bin` is the system's, and must not win over the venv that is active.
    let beside = folder_of_launcher(argv0, facts).map(|folder| (folder, &["python"][..]));
    let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(|name| {
        let prefix = facts.filled_variable(name)?;
        Some((facts.absolute(Path::new(prefix)).join("bin"), &["python", "python3"][..]))
    });
    let mut folders = Vec::new();
    for (folder, names) in beside.into_iter().chain(active) {
        let mut pythons = names.iter().map(|name| folder.join(name));
        if let Some(python) = pythons.find(|python| facts.is_executable(python)) {
            return Ok(python);
        }
        folders.push(folder);
    }
    Err(ShimError::NoEnvironment { folders })
}

/// Parses Python's answer.
///
/// # Errors
/// The Python is too old, or the answer is invalid.
pub(super) fn parse(python_path: &Path, answer: &[u8]) -> Result<PythonEnvironment, ShimError> {
    let fields: Vec<&OsStr> = answer.split(|byte| *byte == 0).map(OsStr::from_bytes).collect();
    match fields[..] {
        [_, _, version] => {
            Err(ShimError::PythonTooOld { python: python_path.to_owned(), version: display_word(version) })
        }
        [python, prefix, _, scripts, packages, ref installs @ ..]
            if installs.len() == 2 * Launcher::ALL.len() =>
        {
            // An interpreter that does not know its own path is called by the one that we know.
            let python = if python.is_empty() { python_path } else { Path::new(python) };
            let install = |(launcher, fields): (Launcher, &[&OsStr])| match fields {
                [folder, version] if !folder.is_empty() => {
                    Some((launcher, PackageInstall { folder: folder.into(), version: display_word(version) }))
                }
                _ => None,
            };
            let installs = Launcher::ALL.into_iter().zip(installs.chunks(2)).filter_map(install).collect();
            let [prefix, scripts, packages] = [prefix, scripts, packages].map(PathBuf::from);
            Ok(PythonEnvironment { python: python.to_owned(), prefix, scripts, packages, installs })
        }
        _ => Err(ShimError::PythonSilent {
            python: python_path.to_owned(),
            answer: String::from_utf8_lossy(answer).into_owned(),
        }),
    }
}

fn display_word(text: &OsStr) -> String {
    text.to_string_lossy().into_owned()
}

/// Refuses a path that a shell script and a Python source cannot hold between single quotes.
///
/// # Errors
/// It has a quote, a backslash or a control character.
pub(super) fn check_quotable(path: &Path) -> Result<(), ShimError> {
    let plain = |byte: &u8| !matches!(byte, b'\'' | b'\\') && !byte.is_ascii_control();
    let is_plain = path.as_os_str().as_bytes().iter().all(plain);
    if is_plain { Ok(()) } else { Err(ShimError::Unquotable { path: path.to_owned() }) }
}

/// The path by which rankrun was called if that is this program, since it stays when a new version replaces the
/// file; else the program's own.
pub(super) fn own_path(argv0: &OsStr, program: PathBuf, facts: &Facts) -> PathBuf {
    let name = Path::new(argv0).file_name().map(OsString::from).unwrap_or_default();
    let called = folder_of_launcher(argv0, facts).map(|folder| folder.join(name));
    let is_program = |path: &PathBuf| facts.world().resolve_links(path) == program;
    called.filter(is_program).unwrap_or(program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rankrun_core::facts::fake::FakeWorld;

    fn world() -> FakeWorld {
        let programs =
            ["/a/bin/python", "/a/bin/rankrun", "/b/bin/python3", "/c/bin/python", "/usr/bin/python3"];
        programs.into_iter().fold(FakeWorld::default(), FakeWorld::program).program("/usr/bin/rankrun")
    }

    fn choose(named: Option<&str>, argv0: &str, environment: &[(&str, &str)]) -> Result<String, String> {
        let facts = world().facts(environment);
        let chosen = choose_python(named.map(OsStr::new), OsStr::new(argv0), &facts);
        chosen.map(|python| python.display().to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn named_python_precedes_sibling_and_active_python() {
        let active = [("VIRTUAL_ENV", "/b"), ("CONDA_PREFIX", "/c"), ("PATH", "/usr/bin")];
        let path = [("PATH", "/a/bin:/usr/bin")];
        for (named, argv0, environment, python) in [
            (Some("/c/bin/python"), "/a/bin/rankrun", &active[..], "/c/bin/python"),
            (Some("python3"), "/a/bin/rankrun", &active, "/usr/bin/python3"),
            (None, "/a/bin/rankrun", &active, "/a/bin/python"),
            (None, "rankrun", &path, "/a/bin/python"),
            // Beside us is only `python3`, which is the system's.
            (None, "/usr/bin/rankrun", &active, "/b/bin/python3"),
            (None, "/usr/bin/rankrun", &active[1..], "/c/bin/python"),
        ] {
            assert_eq!(choose(named, argv0, environment).as_deref(), Ok(python), "{named:?} {argv0}");
        }
    }

    #[test]
    fn missing_python_error_lists_searched_folders() {
        let error = choose(None, "/usr/bin/rankrun", &[("VIRTUAL_ENV", "/gone")]).unwrap_err();
        assert!(error.ends_with("looked in `/usr/bin`, `/gone/bin`"), "{error}");
        let error = choose(Some("/gone/python"), "/usr/bin/rankrun", &[]).unwrap_err();
        assert!(error.contains("`/gone/python` does not exist"), "{error}");
    }

    #[test]
    fn python_probe_output_is_parsed() {
        let python_path = Path::new("/env/bin/python");
        let answer = b"/env/bin/python\0/env\x003.11\0/env/bin\0/env/lib/\xff\0/else/torch\x002.15.0\0\0\0/else/deepspeed\0";
        let environment = parse(python_path, answer).unwrap();
        assert_eq!(environment.packages.as_os_str().as_bytes(), b"/env/lib/\xff");
        let found: Vec<_> = environment
            .installs
            .iter()
            .map(|(launcher, install)| (*launcher, &install.version[..]))
            .collect();
        assert_eq!(found, [(Launcher::Torchrun, "2.15.0"), (Launcher::Deepspeed, "")]);
        let environment = parse(python_path, b"\0/env\x003.11\0/env/bin\0/env/lib\0\0\0\0\0\0").unwrap();
        assert_eq!((environment.python.as_path(), environment.installs.len()), (python_path, 0));
        let error = parse(python_path, b"/env/bin/python\0/env\x003.6").unwrap_err().to_string();
        assert!(error.contains("is Python 3.6"), "{error}");
        let error = parse(python_path, b"hello").unwrap_err().to_string();
        assert!(error.contains("hello"), "{error}");
    }

    #[test]
    fn own_path_keeps_called_name_if_same_file() {
        let facts = world().link("/l/bin/rankrun", "/real/rankrun").facts(&[]);
        let own = |argv0: &str| own_path(OsStr::new(argv0), "/real/rankrun".into(), &facts);
        assert_eq!(own("/l/bin/rankrun"), Path::new("/l/bin/rankrun"));
        assert_eq!(own("/a/bin/rankrun"), Path::new("/real/rankrun"));
        assert_eq!(own(""), Path::new("/real/rankrun"));
    }
}
